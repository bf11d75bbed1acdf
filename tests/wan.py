"""The recorded Wan model, and one way to run it that also keeps every call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diagonal import checkpoints
from diagonal.engine.attention import Full
from diagonal.engine.chunks.cache import WindowCache, WindowSpec
from diagonal.engine.chunks.denoise import Chunk, DenoiseSettings, Text, denoise
from diagonal.engine.chunks.protocols import Memory, Rope, TextKV
from diagonal.engine.chunks.solvers import unipc
from diagonal.models.wan import VARIANTS
from tests.conftest import golden

SIZE = (8, 12)
TOKENS = 24


def recorded_model() -> Any:
    with torch.device("meta"):
        module = VARIANTS["tiny"].config.build()
    checkpoints.load(module, golden("wan/tiny_weights.safetensors"), "the recorded model")
    return module.eval().requires_grad_(False)


def sigma(level: float, shift: float = 5.0) -> float:
    """The share of noise at a timestep: that of the nearest entry of the shifted table of 1000."""
    line = np.linspace(1, 0, 1001)[:-1]
    table = shift * line / (1 + (shift - 1) * line)
    return float(table[np.abs(1000 * table - level).argmin()])


@dataclass(frozen=True)
class Steps:
    """A schedule as a table: the levels of each chunk, of which the last repeats."""

    table: tuple[tuple[float, ...], ...]
    context: float | None = None
    shift: float = 5.0
    lag: int | None = None

    def levels(self, chunk: int) -> tuple[float, ...]:
        return self.table[min(chunk, len(self.table) - 1)]

    def context_level(self, chunk: int) -> float | None:
        return self.context


@dataclass(frozen=True)
class Replay:
    """The noise that a recording started from and drew on the way, in the order in which it was drawn."""

    data: dict[str, Tensor]
    schedule: Steps

    def __call__(self, chunk: int, step: int, shape: tuple[int, ...]) -> Tensor:
        if step == 0:
            return self.data["noise"][:, chunk * shape[1] : (chunk + 1) * shape[1]]
        drawn = sum(len(self.schedule.levels(index)) - 1 for index in range(chunk)) + step - 1
        names = sorted(name for name in self.data if name.startswith("renoise"))
        return self.data[names[drawn]].reshape(shape)


class Recorder:
    """A model that keeps the velocity and the x0 of every call."""

    def __init__(self, model: Any) -> None:
        self.model, self.config, self.cache_spec = model, model.config, model.cache_spec
        self.embed_text, self.rope, self.rotate = model.embed_text, model.rope, model.rotate
        self.flows: list[Tensor] = []
        self.x0s: list[Tensor] = []

    def __call__(self, x_BFCHW: Tensor, level: float | Tensor, text: TextKV, rope: Rope, memory: Memory) -> Tensor:
        flow: Tensor = self.model(x_BFCHW, level, text, rope, memory)
        assert isinstance(level, float)
        self.flows.append(flow)
        self.x0s.append(x_BFCHW - sigma(level) * flow)
        return flow


def new_cache(model: Any, window: WindowSpec, batch: int = 1) -> WindowCache:
    return WindowCache(model.cache_spec, window, TOKENS, batch, torch.device("cpu"), torch.float32)


def video(
    model: Any, window: WindowSpec, settings: DenoiseSettings, text: Text, frames: int
) -> tuple[Tensor, list[Chunk]]:
    """All latents of a run, and its chunks."""
    chunks = list(denoise(model, new_cache(model, window), settings, text, frames))
    return torch.cat([chunk.latents for chunk in chunks], 1), chunks


@torch.inference_mode()
def sample_whole(model: Any, steps: int, texts: tuple[Tensor, Tensor], guidance: float, noise: Tensor) -> Tensor:
    """The teacher without our loop: diffusers' solver over bidirectional calls, with guidance."""
    solver, frames = unipc(steps, 8.0), torch.arange(noise.shape[1])
    side, (rows, cols) = model.config.patch, noise.shape[-2:]
    rope, x = model.rope(frames, rows // side, cols // side), noise
    for level in solver.timesteps:
        with_it, without = (model(x, level.reshape(1, 1), model.embed_text(text), rope, Full()) for text in texts)
        x = solver.step(without + guidance * (with_it - without), level, x, return_dict=False)[0]
    return x
