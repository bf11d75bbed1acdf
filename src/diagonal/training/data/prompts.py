"""Prompts to distil with, from a file: one a line, or the column `prompt` of a CSV file such as VidProM's.

found = read("prompts.txt", most=10_000, seed=0)
for done in prepare(found.texts, encoder, device="cuda"): ...    # text.prepare: every text is encoded once
source = FilePrompts(found.texts, encoder, device)                   # embeddings come from the disk as they are needed
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from diagonal.text.encoders import Encoder, embed
from diagonal.training.data.latents import Batch

COLUMN = "prompt"
LONGEST = 10_000  # characters; the encoder counts its tokens besides


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
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"prompts {str(path)!r} do not exist; give a text file, one prompt a line, or a .csv")
    lines = [(number, text.strip()) for number, text in _lines(path)]
    for number, text in lines:
        if len(text) > LONGEST:
            raise ValueError(
                f"{path}, line {number}: a prompt of {len(text)} characters; {LONGEST} are allowed. Shorten it or take "
                "it out: nothing is cut off"
            )
    written = [text for _, text in lines if text]
    texts = list(dict.fromkeys(written))
    if not texts:
        raise ValueError(f"{path} holds no prompt; write one a line")
    order = np.random.default_rng(seed).permutation(len(texts))[:most]
    left_out = len(lines) - len(written), len(written) - len(texts), len(texts) - len(order)
    return Found(tuple(texts[index] for index in order), *left_out)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers and what stands there."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix.lower() != ".csv":
                yield from enumerate(file, 1)
                return
            rows = csv.DictReader(file, strict=True)
            columns = rows.fieldnames or []
            if COLUMN not in columns:
                raise ValueError(f"{path} has no column {COLUMN!r}, but {', '.join(map(repr, columns)) or 'none'}")
            for row in rows:
                yield rows.line_num, row[COLUMN] or ""
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except csv.Error as error:
        raise ValueError(f"{path} is no CSV file: {error}") from error


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
