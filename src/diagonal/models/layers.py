"""The few layers that several models share: RMSNorm, SwiGLU and rotary embedding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
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


class SwiGLU(nn.Module):
    """down(silu(gate x) * up x), with gate and up in one matrix."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x_BSM: Tensor) -> Tensor:
        gate, up = self.gate_up(x_BSM).chunk(2, dim=-1)
        out: Tensor = self.down(F.silu(gate) * up)
        return out


def frequencies(width: int, theta: float, device: torch.device) -> Tensor:
    """theta^(-2i/width) for i < width/2, in float32: computed, not stored, so no cast can round it."""
    return theta ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)


def rope_1d(slots_S: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin (S, D) of slot * theta^(-2i/D)."""
    return turns(slots_S.float()[:, None] * frequencies(head_dim, theta, slots_S.device))


def turns(angles: Tensor) -> tuple[Tensor, Tensor]:
    """What `rotate` takes: cos and sin of the angles of the pairs, once for each half of the head."""
    both = torch.cat([angles, angles], dim=-1)
    return both.cos(), both.sin()


def rotate(x_BHSD: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding over pairs (x[i], x[i + D/2])."""
    cos, sin = rope
    x1, x2 = x_BHSD.chunk(2, dim=-1)
    turned = torch.cat([-x2, x1], dim=-1)
    return (x_BHSD * cos + turned * sin).to(x_BHSD.dtype)
