"""Recorded gameplay as tensors: frames for tokenizers, tokens for worlds.

A recording is a folder of shards (see worlds/vizdoom.py) or of VPT clips (mp4 with a jsonl of the same name). Both
become `Part`s, one file at a time. `tokenize` turns parts into one `TokenData` that fits in memory: 192 tokens of two
bytes a frame are 75 kB for a minute of Doom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import Tensor

from diagonal.media.video import resize
from diagonal.worlds import vizdoom, vpt
from diagonal.worlds.recordings import Part

CHUNK = 256  # frames encoded at a time


def read(folder: str | Path, size: tuple[int, int]) -> Iterator[Part]:
    """The parts of a recording; VPT clips are resized to `size` (height, width), shards must have it."""
    folder = Path(folder)
    # Names that begin with a dot are what a killed process had not finished.
    shards, clips = sorted(folder.glob("[!.]*.safetensors")), sorted(folder.glob("[!.]*.mp4"))
    if not shards and not clips:
        raise ValueError(f"{folder} holds no recording: neither shards (*.safetensors) nor clips (*.mp4 with *.jsonl)")
    for path in shards:
        data = _shard(path)
        if data["frames"].shape[1:3] != size:
            raise ValueError(f"{path} has frames of {data['frames'].shape[1:3]}, the tokenizer takes {size}")
        if data["actions"].max(initial=0) >= len(vizdoom.ACTIONS):
            raise ValueError(f"{path} has action {data['actions'].max()}; there are {len(vizdoom.ACTIONS)}")
        actions = vizdoom.tokens([vizdoom.ACTIONS[index] for index in data["actions"]], 0)
        yield _part(data["frames"], actions, data["episodes"])
    for number, path in enumerate(clips):
        frames, taken = vpt.read_clip(path)
        frames = frames if frames.shape[1:3] == size else resize(frames, *size)
        yield _part(frames, vpt.tokens(taken, 0), np.full(len(frames), number))


def ahead(parts: Iterator[Part]) -> Iterator[Part]:
    """The same parts, the next one being read while this one is used."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, parts, None)
        while (part := coming.result()) is not None:
            coming = pool.submit(next, parts, None)
            yield part


def _shard(path: Path) -> dict[str, Any]:
    try:
        data = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is no shard of a recording: {error}") from error
    missing = {"frames", "actions", "episodes"} - data.keys()
    if missing:
        raise ValueError(f"{path} is no shard of a recording: it lacks {', '.join(sorted(missing))}")
    return data


def _part(frames: Any, actions: list[list[int]], episodes: Any) -> Part:
    return Part(torch.from_numpy(frames), torch.tensor(actions), torch.from_numpy(episodes.astype(np.int64)))


def frames(folder: str | Path, size: tuple[int, int], device: torch.device | str, most: int | None = None) -> Part:
    """A recording, or its first files with `most` frames, on one device; episodes of different files stay apart."""
    parts: list[Part] = []
    for part in read(folder, size):
        if most is not None and sum(len(one.episodes_N) for one in parts) >= most:
            break
        parts.append(Part(part.frames_NHWC.to(device), part.actions_NA.to(device), part.episodes_N))
    return one_after_another(parts)


def one_after_another(parts: Sequence[Part]) -> Part:
    """Several parts as one; their episodes stay apart."""
    episodes, offset = [], 0
    for part in parts:
        episodes.append(part.episodes_N + offset)
        offset = int(episodes[-1].max()) + 1
    return Part(
        torch.cat([part.frames_NHWC for part in parts]),
        torch.cat([part.actions_NA for part in parts]),
        torch.cat(episodes),
    )


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


def join(parts: list[TokenData]) -> TokenData:
    """Several files as one; their episodes stay apart."""
    episodes, offset = [], 0
    for part in parts:
        episodes.append(part.episodes_N + offset)
        offset = int(episodes[-1].max()) + 1
    return TokenData(torch.cat([part.units_NU for part in parts]), torch.cat(episodes))


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
