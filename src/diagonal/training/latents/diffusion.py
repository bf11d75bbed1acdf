"""What all training of latent video models needs: noise levels, memory and precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel
from torch.utils.checkpoint import checkpoint

from diagonal.engine.attention import WIDE
from diagonal.engine.chunks import masks as chunk_masks
from diagonal.engine.chunks.cache import WindowSpec
from diagonal.engine.chunks.protocols import Memory
from diagonal.media.video import VideoArray
from diagonal.planning.denoising.noise import FlowTable
from diagonal.planning.presets import Preset

HELD_OUT = 1_000_003  # added to a seed for what is drawn to evaluate
LONG = 4096  # tokens of a video whose mask is worth a kernel of its own


class Undecoded:
    """A task in latents: its samples need a decoder to be seen."""

    def sheet(self) -> VideoArray | None:
        """None: stages that have a decoder write samples.png, and `diagonal generate` shows more."""
        return None


def draw(seed: int, step: int, sample: int) -> np.random.Generator:
    """Where the random numbers of one sample of one step come from, whatever process and part it is in."""
    return np.random.default_rng([seed, step, sample])


def seed_of(rng: np.random.Generator) -> int:
    """A seed for a tensor of noise."""
    return int(rng.integers(2**62))


def noised(clean: Tensor, sigma: Tensor, noise: Tensor) -> Tensor:
    """x_t = (1 - s) x0 + s noise, with a sigma (B, F or 1) for each sample and frame."""
    sigma = sigma[..., None, None, None]
    return (1 - sigma) * clean + sigma * noise


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 on a GPU over float32 weights. Casts are not kept: older PyTorch would use one that was made without
    gradient where there is one."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False)


def recompute(module: Any) -> None:
    """Let the blocks of a model compute their activations again in the backward pass instead of keeping them."""

    def kernels() -> tuple[Any, Any]:
        return sdpa_kernel(WIDE, set_priority=True), sdpa_kernel(WIDE, set_priority=True)

    for block in module.blocks:
        block.forward = _again(block.forward, kernels)


def compiled(modules: Iterable[nn.Module], device: torch.device) -> None:
    """Compile modules, those of a class as one, for calls on a GPU that carry gradient: small operations take longer
    than the GEMMs between them. Without gradient there are kernels of our own."""
    for module in modules:
        module.forward = where_learnt(module.forward, device)


def where_learnt(plain: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """A function, compiled for calls on a GPU that carry gradient."""
    if device.type != "cuda":
        return plain
    torch._dynamo.config.recompile_limit = 64  # one level for all frames, or one for each; masks; batches; sizes
    fast: Callable[..., Any] = torch.compile(plain, dynamic=False)

    def run(*given: Any) -> Any:
        return fast(*given) if torch.is_grad_enabled() else plain(*given)

    return run


def _again(forward: Callable[..., Any], contexts: Callable[[], tuple[Any, Any]]) -> Callable[..., Any]:
    def run(*given: Any) -> Any:
        return checkpoint(forward, *given, use_reentrant=False, context_fn=contexts)

    return run


def chunk_memory(
    preset: Preset, frames: int, tokens: int, device: torch.device, use_flex: bool | None = None
) -> Memory:
    """What each frame sees when a whole video goes through the student at once: what its window would hold.

    Of long videos the mask over tokens is never made (FlexAttention); by default that is so on a GPU.
    """
    assert preset.chunk_frames is not None
    window = WindowSpec(preset.window_frames, preset.sink_frames) if preset.window_frames else None
    mask = chunk_masks.block_causal(frames, preset.chunk_frames, window).to(device)
    if use_flex is None:
        use_flex = device.type == "cuda" and frames * tokens > LONG
    return chunk_masks.flex(mask, tokens) if use_flex else chunk_masks.dense(mask, tokens)


def chunk_levels(
    presets: tuple[Preset, ...], frames: int, rngs: Sequence[np.random.Generator]
) -> tuple[Tensor, Tensor]:
    """A level for every chunk, drawn from all that the schedules have there: timesteps and sigmas, (B, F) each."""
    side = presets[0].chunk_frames
    assert side is not None
    met = [levels_met(presets, chunk) for chunk in range(frames // side)]
    drawn = [[levels[rng.integers(len(levels))] for levels in met] for rng in rngs]
    level, sigma = torch.tensor(drawn, dtype=torch.float64).repeat_interleave(side, 1).unbind(-1)
    return level, sigma


@cache
def levels_met(presets: tuple[Preset, ...], chunk: int) -> list[tuple[float, float]]:
    """The timesteps at which any of the presets calls the model for a chunk, each with its sigma."""
    pairs = {(level, FlowTable(one.shift).sigma(level)) for one in presets for level in one.schedule.levels(chunk)}
    return sorted(pairs, reverse=True)


def check_frames(preset: Preset, frames: int) -> None:
    """Refuse a preset that is no chunk schedule, or whose chunks overlap, and videos that do not divide into them."""
    if preset.chunk_frames is None:
        raise ValueError("the preset has no chunks: it is a teacher's; take one such as diagonal-distillation")
    if preset.schedule.lag is not None:
        raise ValueError(f"lag={preset.schedule.lag} given; training makes one chunk after the other: leave it out")
    if frames % preset.chunk_frames or frames < 1:
        raise ValueError(
            f"videos of {frames} latent frames given; they must divide into chunks of {preset.chunk_frames}"
        )


def preset_sigmas(presets: tuple[Preset, ...], frames: int) -> tuple[float, ...]:
    """The sigmas at which videos of this length meet the model: those to record trajectories at."""
    for one in presets:
        check_frames(one, frames)
    sides = {one.chunk_frames or frames for one in presets}
    if len(sides) > 1:
        raise ValueError(f"presets with chunks of {sorted(sides)} frames given; they must have chunks of one size")
    chunks = range(frames // sides.pop())
    return tuple(sorted({sigma for chunk in chunks for _, sigma in levels_met(presets, chunk)}, reverse=True))
