"""A preset as the engine takes it: the window of the cache, the cache itself, and the settings of `denoise`.

The only place that turns a `Preset` into these: inference, training on rollouts and evaluation ask here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from diagonal.engine.chunks.cache import WindowCache, WindowSpec
from diagonal.engine.chunks.denoise import DenoiseSettings
from diagonal.engine.chunks.protocols import DiffusionModel, Noise
from diagonal.engine.chunks.solvers import Euler, Solver, UniPC
from diagonal.planning.denoising.noise import START, FlowTable
from diagonal.planning.lag import most_together
from diagonal.planning.presets import EULER, RENOISE, UNIPC, UNIPC_IN_PLACE, Preset

LONG = 256  # chunks after which no schedule has more of them in a call


def window_of(preset: Preset, frames: int | None) -> WindowSpec:
    """What a chunk sees in a video of so many latent frames; None: without end, or the preset's own in any case."""
    if preset.segment_frames is not None:
        frames = preset.segment_frames if frames is None else min(frames, preset.segment_frames)
    if preset.window_frames is not None and (frames is None or frames > preset.window_frames):
        return WindowSpec(preset.window_frames, preset.sink_frames, preset.relative_rope, _ahead(preset, frames))
    if frames is None:
        raise ValueError("a video without end needs a window; this preset has none")
    return WindowSpec(frames)  # nothing ever leaves it


def _ahead(preset: Preset, frames: int | None) -> int:
    """Latent frames of later chunks that are in a call beside a chunk, at most."""
    if preset.schedule.lag is None:
        return 0
    size = preset.chunk_frames or 1
    chunks = LONG if frames is None else min(LONG, -(-frames // size))
    return (most_together(preset.schedule, chunks, preset.sees) - 1) * size


def cache_of(
    model: DiffusionModel,
    window: WindowSpec,
    size: Sequence[int],
    batch: int,
    device: torch.device,
    dtype: torch.dtype,
) -> WindowCache:
    """An empty cache for videos whose latents have this height and width."""
    return WindowCache(model.cache_spec, window, frame_tokens(model, size), batch, device, dtype)


def frame_tokens(model: DiffusionModel, size: Sequence[int]) -> int:
    """Tokens of a latent frame of this height and width."""
    side = model.config.patch
    return (size[0] // side) * (size[1] // side)


def settings_of(preset: Preset, noise: Noise, size: Sequence[int]) -> DenoiseSettings:
    """How latents of this height and width are denoised under a preset that works in chunks."""
    assert preset.chunk_frames is not None
    solvers: dict[str, Callable[[], Solver] | None] = {
        RENOISE: None,
        UNIPC: lambda: UniPC(preset.schedule),
        UNIPC_IN_PLACE: lambda: UniPC(preset.schedule, True),
        EULER: Euler,
    }
    return DenoiseSettings(
        preset.schedule,
        FlowTable(preset.shift).sigma if preset.solver == RENOISE else _straight,
        noise,
        (size[0], size[1]),
        preset.chunk_frames,
        sees=preset.sees,
        solver=solvers[preset.solver],
    )


def _straight(level: float) -> float:
    return level / START
