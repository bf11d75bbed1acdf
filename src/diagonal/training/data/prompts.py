"""Prompts to distil with, from a file (text/prompt_files.py says which).

found = read("prompts.txt", most=10_000, seed=0)
for done in prepare(found.texts, encoder, device="cuda"): ...    # text.prepare: every text is encoded once
source = FilePrompts(found.texts, encoder, device)                   # embeddings come from the disk as they are needed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from diagonal.text.encoders import Encoder, embed
from diagonal.text.prompt_files import numbered
from diagonal.training.data.latents import Batch


@dataclass(frozen=True, slots=True)
class Found:
    """The prompts of a file in the order of a seed, and how many lines were left out, and why."""

    texts: tuple[str, ...]
    blank: int  # lines without a prompt
    repeated: int  # that a line before them has too
    beyond: int  # more than were asked for


def read(path: str | Path, most: int | None = None, seed: int = 0) -> Found:
    """Each prompt once, shuffled by the seed; `most` of them at most. White space around a prompt is none of it."""
    if most is not None and most < 1:
        raise ValueError(f"at most {most} prompts asked for; it must be 1 or more, or left out for all")
    lines = numbered(path)
    written = [text for _, text in lines if text]
    texts = list(dict.fromkeys(written))
    order = np.random.default_rng(seed).permutation(len(texts))[:most]
    left_out = len(lines) - len(written), len(written) - len(texts), len(texts) - len(order)
    return Found(tuple(texts[index] for index in order), *left_out)


@dataclass(frozen=True, slots=True)
class FilePrompts:
    """Prompts whose embeddings are read when they are needed: a `latents.Source` of any length."""

    texts: Sequence[str]
    encoder: Encoder
    device: torch.device
    cache: Path | None = None  # of `text.embed`

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, chosen: Sequence[int]) -> Batch:
        return Batch(embed([self.texts[index] for index in chosen], self.encoder, device=self.device, cache=self.cache))
