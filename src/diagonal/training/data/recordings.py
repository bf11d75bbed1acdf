"""Recorded gameplay as tensors: frames for tokenizers, tokens for worlds.

A recording is a folder of files that a module of `worlds` reads (see worlds/recordings.py), one file at a time, as
`Part`s. `tokenize` turns parts into one `TokenData` that fits in memory: 192 tokens of two bytes a frame are 75 kB for
a minute of Doom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from diagonal.worlds.recordings import Part, Recorded, find

PARTS = ("train", "held-out")  # of what a recipe records, each in a folder
CHUNK = 256  # frames encoded at a time


def read(folder: str | Path, size: tuple[int, int]) -> Iterator[Part]:
    """The parts of a recording, file by file, with frames of `size` (height, width)."""
    reader, files = find(folder)
    for number, path in enumerate(files):
        yield _part(path, reader.read_recording(path, size), number)


def _part(path: Path, recorded: Recorded, number: int) -> Part:
    """A file as tensors; one that is a single episode has the number of the file for it."""
    frames, episodes = torch.from_numpy(recorded.frames), recorded.episodes
    if not len(frames) == len(recorded.actions) == len(frames if episodes is None else episodes):
        raise ValueError(f"{path}: {len(frames)} frames, {len(recorded.actions)} actions read; each frame needs one")
    numbers = np.full(len(frames), number) if episodes is None else episodes.astype(np.int64)
    return Part(frames, torch.tensor(recorded.actions), torch.from_numpy(numbers))


def frames(folder: str | Path, size: tuple[int, int], device: torch.device | str, most: int | None = None) -> Part:
    """A recording, or its first files with `most` frames, on one device; episodes of different files stay apart."""
    parts: list[Part] = []
    for part in read(folder, size):
        if most is not None and sum(len(one.episodes_N) for one in parts) >= most:
            break
        parts.append(Part(part.frames_NHWC.to(device), part.actions_NA.to(device), part.episodes_N))
    return join(parts)


def starts(episodes_N: Tensor, length: int) -> Tensor:
    """Where windows of `length` frames begin that stay within one episode."""
    last = len(episodes_N) - length + 1
    if last < 1:
        raise ValueError(f"the recording has {len(episodes_N)} frames; windows of {length} need more")
    begin = (episodes_N[:last] == episodes_N[length - 1 :]).nonzero().flatten()
    if not len(begin):
        raise ValueError(f"no episode of the recording has {length} frames")
    return begin


@dataclass(frozen=True, slots=True)
class TokenData:
    """A recording as ids: `units_NU` holds a frame's cells, then the ids of its action."""

    units_NU: Tensor
    episodes_N: Tensor

    def starts(self, length: int) -> Tensor:
        """Where windows of `length` frames begin that stay within one episode."""
        return starts(self.episodes_N, length)

    def windows(self, starts_B: Tensor, length: int) -> Tensor:
        """Sequences (B, length * unit)."""
        index = starts_B[:, None] + torch.arange(length, device=starts_B.device)
        return self.units_NU[index].flatten(1).long()


Files = TypeVar("Files", Part, TokenData)


def join(parts: Sequence[Files]) -> Files:
    """Several files as one; their episodes stay apart."""
    episodes: list[Tensor] = []
    for part in parts:
        episodes.append(part.episodes_N + (int(episodes[-1].max()) + 1 if episodes else 0))
    rest = [one.name for one in fields(parts[0]) if one.name != "episodes_N"]
    whole = {name: torch.cat([getattr(part, name) for part in parts]) for name in rest}
    return replace(parts[0], episodes_N=torch.cat(episodes), **whole)


def tokenize(
    part: Part, tokenizer: Any, codebook: int, on_frames: Callable[[int], object] = lambda _: None
) -> TokenData:
    """Encode every frame; action ids follow the codebook."""
    cells = []
    device = next(tokenizer.parameters()).device
    for start in range(0, len(part.frames_NHWC), CHUNK):
        video = part.frames_NHWC[start : start + CHUNK].to(device).permute(0, 3, 1, 2)
        cells.append(tokenizer.encode(video[None])[0].flatten(1).to(torch.int32))
        on_frames(len(cells[-1]))
    units = torch.cat([torch.cat(cells), (part.actions_NA + codebook).to(device, torch.int32)], dim=1)
    return TokenData(units, part.episodes_N.to(device))
