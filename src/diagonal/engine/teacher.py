"""The bidirectional model that causal ones are distilled from: the whole video at once, many steps, with guidance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from diagonal.engine.attention import WIDE, Full
from diagonal.engine.protocols import DiffusionModel


def unipc(steps: int, shift: float, device: torch.device) -> Any:
    """diffusers' UniPC for flow matching, as Wan is published with."""
    try:
        import diffusers
    except ImportError as error:
        raise ValueError("the bidirectional model is run with diffusers' solver: pip install diffusers") from error
    schedulers: Any = diffusers  # its classes are untyped
    scheduler = schedulers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=shift
    )
    scheduler.set_timesteps(steps, device=device)
    return scheduler


@torch.inference_mode()
def sample_whole(
    model: DiffusionModel,
    scheduler: Any,
    text_BLC: Tensor,
    negative_BLC: Tensor,
    guidance: float,
    noise_BFCHW: Tensor,
) -> Tensor:
    """Denoise a whole video. The velocity of each step is that without the prompt plus `guidance` times the difference
    that the prompt makes; `scheduler` is one of diffusers', with its timesteps set."""
    side, (rows, cols) = model.config.patch, noise_BFCHW.shape[-2:]
    rope = model.rope(torch.arange(noise_BFCHW.shape[1], device=noise_BFCHW.device), rows // side, cols // side)
    text, negative = model.embed_text(text_BLC), model.embed_text(negative_BLC)
    x = noise_BFCHW
    for level in scheduler.timesteps:
        with sdpa_kernel(WIDE, set_priority=True):
            with_it, without = (model(x, level.reshape(1, 1), one, rope, Full()).float() for one in (text, negative))
        x = scheduler.step(without + guidance * (with_it - without), level, x, return_dict=False)[0]
    if not bool(torch.isfinite(x).all()):
        raise ValueError("the video came out as NaN or infinite; the weights or the prompt embeddings are damaged")
    return x
