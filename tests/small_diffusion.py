"""A diffusion model of a few thousand weights, and videos of moving blobs with a prompt that says where they go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from diagonal.engine.chunks.cache import WindowCache, WindowSpec
from diagonal.models.wan import Config
from diagonal.training.data.latents import LatentClips
from diagonal.training.latents.losses import LossWeights
from diagonal.training.latents.methods import METHODS, Distillation

CPU = torch.device("cpu")
CONFIG = Config(dim=24, ffn=48, layers=2, heads=2, text_dim=6, text_length=3, freq_dim=16, channels=2)
SIZE = (4, 6)
TOKENS = 6
FRAMES = 6
NEGATIVE = torch.zeros(1, 3, 6)
PROMPTS_ONLY = LossWeights(regression=0.0, flow_regression=0.0)


def student(seed: int = 0) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CONFIG.build()


def texts(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 6, generator=torch.Generator().manual_seed(seed))


def cache(model: Any, batch: int, window: WindowSpec) -> WindowCache:
    return WindowCache(model.cache_spec, window, TOKENS, batch, CPU, torch.float32)


def method(name: str = "diagonal-distillation", **changes: Any) -> Distillation:
    """A published method on chunks of one frame and short videos."""
    preset = METHODS[name].preset
    small = replace(
        preset, chunk_frames=1, window_frames=preset.window_frames and 4, sink_frames=min(1, preset.sink_frames)
    )
    settings: dict[str, Any] = {"preset": small, "scored": FRAMES, "longest": FRAMES} | changes
    return replace(METHODS[name], **settings)


def blobs(count: int, frames: int = FRAMES, seed: int = 0) -> LatentClips:
    """A spot that wanders over a torus, bright or dark; the prompt gives its direction and its brightness."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.rand(count, 1, 2, generator=generator) * torch.tensor(SIZE)
    pace = torch.randint(-1, 2, (count, 1, 2), generator=generator)
    place = start + pace * torch.arange(frames)[None, :, None]
    cells = torch.stack(torch.meshgrid(*(torch.arange(side) for side in SIZE), indexing="ij"))
    turn = 2 * torch.pi * (cells - place[..., None, None]) / torch.tensor(SIZE)[:, None, None]
    bright = torch.randint(2, (count,), generator=generator) * 2.0 - 1
    video = torch.stack([turn.cos().sum(2), turn.sin().sum(2)], 2) / 2 + bright[:, None, None, None, None]
    text = torch.zeros(count, 3, 6)
    text[:, 0, :2] = 2 * pace[:, 0]
    text[:, 1, 2] = 2 * bright
    return LatentClips(text, video)
