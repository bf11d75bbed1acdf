"""Which implementation serves an operation of tokenizers; `select` has those of token models and says how."""

from __future__ import annotations

import torch
from torch import Tensor

from diagonal.engine.kernels import reference
from diagonal.engine.kernels.select import by_triton


def norm_silu(x: Tensor, weight: Tensor, eps: float, plus: Tensor | None = None) -> Tensor:
    """silu of the RMS norm over the last dimension of x + plus."""
    if not by_triton("RMS norm + SiLU", x):
        return reference.norm_silu(x, weight, eps, plus)
    from diagonal.engine.kernels.triton import pointwise

    return pointwise.norm_silu(x, weight, eps, plus)


def add_bias(x: Tensor, bias: Tensor, other: Tensor) -> Tensor:
    """x + bias + other, with one bias for each place of the last dimension."""
    if not by_triton("bias + sum", x):
        return reference.add_bias(x, bias, other)
    from diagonal.engine.kernels.triton import pointwise

    return pointwise.add_bias(x, bias, other)


def frame_norm(x_BTHWC: Tensor, weight: Tensor, bias: Tensor, eps: float, silu: bool) -> Tensor:
    """(x - mean) / std * weight + bias, mean and std over all of a frame; with SiLU behind it."""
    if not by_triton("frame norm", x_BTHWC):
        return reference.frame_norm(x_BTHWC, weight, bias, eps, silu)
    from diagonal.engine.kernels.triton import frame_norm as kernels

    return kernels.frame_norm(x_BTHWC, weight, bias, eps, silu)


def group_norm_silu(x_NCHW: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """silu of (x - mean) / std * weight + bias, mean and std over a group of channels of a frame."""
    if not x_NCHW.is_contiguous(memory_format=torch.channels_last) or not by_triton("group norm + SiLU", x_NCHW):
        return reference.group_norm_silu(x_NCHW, weight, bias, groups, eps)
    from diagonal.engine.kernels.triton import frame_norm as kernels

    return kernels.group_norm_silu(x_NCHW, weight, bias, groups, eps)
