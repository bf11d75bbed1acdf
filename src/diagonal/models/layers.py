"""The few layers that several models share: RMSNorm and rotary embedding."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / rms(x) * weight, the norm in float32, the weight applied after the cast back (as LLaMA does)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps)
        return normed.to(x.dtype) * self.weight


def rope_1d(slots_S: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin (S, D) of slot * theta^(-2i/D), in float32: computed, not stored, so no cast can round it."""
    half = torch.arange(0, head_dim, 2, device=slots_S.device, dtype=torch.float32)
    angles = slots_S.float()[:, None] * theta ** (-half / head_dim)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x_BHSD: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding over pairs (x[i], x[i + D/2])."""
    cos, sin = rope
    x1, x2 = x_BHSD.chunk(2, dim=-1)
    turned = torch.cat([-x2, x1], dim=-1)
    return (x_BHSD * cos + turned * sin).to(x_BHSD.dtype)
