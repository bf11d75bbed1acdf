"""The bidirectional model that causal ones are distilled from, in training: the whole video in one call. Inference runs
it by the loop of all (`denoise.run` with `denoisers.Whole`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from diagonal.engine.attention import WIDE, Full
from diagonal.engine.chunks.protocols import DiffusionModel, Memory, Rope, TextKV


def velocity(model: DiffusionModel, x_BFCHW: Tensor, level_BF: Tensor, text: TextKV, memory: Memory) -> Tensor:
    """Of a whole video in one call, with a level for each sample and frame (or one for all of them: B or 1, F or 1)."""
    with sdpa_kernel(WIDE, set_priority=True):
        return model(x_BFCHW, level_BF, text, _rope(model, x_BFCHW), memory).float()


@torch.no_grad()
def trajectory(
    model: DiffusionModel, sigmas: Sequence[float], texts: tuple[Tensor, Tensor], guidance: float, noise_BFCHW: Tensor
) -> Iterator[Tensor]:
    """The states of a whole video at sigmas that fall from 1, and the clean end of it.

    Euler steps along the guided velocity: x += (next - sigma) * v. `texts` are the embeddings of the prompt and of the
    negative prompt.
    """
    with_it, without = (model.embed_text(one) for one in texts)
    x = noise_BFCHW
    for sigma, following in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
        yield x
        level = torch.full((1, 1), 1000 * sigma, dtype=torch.float64, device=x.device)
        free = velocity(model, x, level, without, Full())
        x = x + (following - sigma) * (free + guidance * (velocity(model, x, level, with_it, Full()) - free))
    _check(x)
    yield x


def _rope(model: DiffusionModel, x_BFCHW: Tensor) -> Rope:
    side, (rows, cols) = model.config.patch, x_BFCHW.shape[-2:]
    return model.rope(torch.arange(x_BFCHW.shape[1], device=x_BFCHW.device), rows // side, cols // side)


def _check(x: Tensor) -> None:
    if not bool(torch.isfinite(x).all()):
        raise ValueError("the video came out as NaN or infinite; the weights or the prompt embeddings are damaged")
