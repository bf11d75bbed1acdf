"""Weights that a rule makes from the names of tensors, and pictures likewise: the recordings in golden/metrics were
made with them, so that no file of weights is needed. The rule is SplitMix64 over the crc32 of the name."""

from __future__ import annotations

import re
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor


def bits(name: str, count: int) -> np.ndarray:
    """24 random bits for each element of the tensor called `name`."""
    with np.errstate(over="ignore"):
        start = np.uint64(zlib.crc32(name.encode()) << 32)
        z = start + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return (z ^ z >> np.uint64(31)) >> np.uint64(40)


def uniform(name: str, *shape: int) -> np.ndarray:
    """Numbers in [-1, 1)."""
    return (bits(name, int(np.prod(shape))) / 2**23 - 1).reshape(shape)


def tensor(name: str, shape: list[int], rules: list[Any]) -> Tensor:
    """The tensor that the first rule makes whose pattern is found in its name."""
    _, kind, centre, scale = next(rule for rule in rules if re.search(rule[0], name))
    if kind == "zero":
        return torch.zeros(shape, dtype=torch.int64)
    u = uniform(name, *shape)
    fans = {"fan": 0, "fan_t": 1}
    if kind in fans:
        scale = scale * np.sqrt(3 / (np.prod(shape) / shape[fans[kind]]))
    return torch.from_numpy((centre + scale * (np.abs(u) if kind == "abs" else u)).astype(np.float32))


def weights(manifest: dict[str, list[int]], rules: list[Any], name_of=lambda key: key) -> dict[str, Tensor]:
    """A state dict in the published layout."""
    return {key: tensor(name_of(key), shape, rules) for key, shape in manifest.items()}


def crc32(state: dict[str, Tensor]) -> int:
    """Over all floats of a state dict, in its order."""
    total = 0
    for value in state.values():
        if value.is_floating_point():
            total = zlib.crc32(value.numpy().tobytes(), total)
    return total


def clip(name: str, frames: int, height: int, width: int, cell: int = 8, dx: int = 3, dy: int = 1) -> Tensor:
    """A video (T, 3, H, W) of blocks that move, with some noise."""

    def noise(part: str, *shape: int) -> np.ndarray:
        return (bits(f"{name}:{part}", int(np.prod(shape))) >> np.uint64(16)).astype(np.int64).reshape(shape)

    coarse = noise("coarse", (height + dy * frames) // cell + 2, (width + dx * frames) // cell + 2, 3)
    fine = noise("fine", frames, height, width, 3)
    t, y, x = np.ogrid[:frames, :height, :width]
    blocks = coarse[(y + dy * t) // cell, (x + dx * t) // cell]
    return torch.from_numpy(((7 * blocks + fine) // 8).astype(np.uint8)).permute(0, 3, 1, 2).contiguous()
