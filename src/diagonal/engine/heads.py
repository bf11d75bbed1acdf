"""Queries, keys and values as a layer computes them, before they are normed and rotated.

A memory takes them like this, so that it can do what is left (norm, rotation, cache write) in one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diagonal.engine.linear import DeferredLinear

Rope = tuple[Tensor, Tensor]  # cos and sin (S, D) in float32, or (B, S, D) where samples differ


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMSNorm of every query and key before they are rotated."""

    q_D: Tensor
    k_D: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Heads:
    """H heads of queries, then K of keys, then K of values, D wide each, are the channels of `source`, which may be a
    deferred linear layer.

    `rope` rotates the pairs (x[i], x[i + D/2]) of queries and keys; None leaves them as they are.
    """

    source: Tensor | DeferredLinear
    kv_heads: int
    head_dim: int
    rope: Rope | None = None
    norm: HeadNorm | None = None

    @property
    def given(self) -> Tensor:
        """What there is so far: the channels, or what they are made of, (B, S, any)."""
        return self.source.x if isinstance(self.source, DeferredLinear) else self.source

    def qkv(self) -> Tensor:
        """The channels (B, S, C), computed now if they were deferred."""
        return self.source.result() if isinstance(self.source, DeferredLinear) else self.source

    @property
    def heads(self) -> int:
        """Heads of queries."""
        source = self.source
        channels = len(source.linear.weight_NK) if isinstance(source, DeferredLinear) else source.shape[-1]
        return channels // self.head_dim - 2 * self.kv_heads

    def split(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, S, D), keys and values (B, K, S, D), normed and rotated."""
        heads = self.qkv().unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if self.norm is not None:
            q, k = rms_norm(q, self.norm.q_D, self.norm.eps), rms_norm(k, self.norm.k_D, self.norm.eps)
        if self.rope is not None:
            q, k = rotate(q, self.rope), rotate(k, self.rope)
        return q, k, v


@dataclass(frozen=True, slots=True)
class LatentHeads:
    """The same of a diffusion transformer: as many heads of keys as of queries, normed over all heads at once, and
    `rope` rotates the pairs (x[2i], x[2i + 1]): cos and sin are (S, 1, D/2)."""

    qkv_BSC: Tensor
    heads: int
    q_norm_C: Tensor
    k_norm_C: Tensor
    eps: float
    rope: Rope

    def split(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B, H, S, D) each, normed and rotated."""
        q, k, v = self.qkv_BSC.chunk(3, dim=-1)
        q, k = rms_norm(q, self.q_norm_C, self.eps), rms_norm(k, self.k_norm_C, self.eps)
        q_BSHD, k_BSHD, v_BSHD = (part.unflatten(-1, (self.heads, -1)) for part in (q, k, v))
        turned = (rotate_pairs(q_BSHD, self.rope), rotate_pairs(k_BSHD, self.rope), v_BSHD)
        q, k, v = (part.transpose(1, 2) for part in turned)
        return q, k, v


def joined(mixed_BHSD: Tensor) -> Tensor:
    """What the heads mixed, side by side: (B, S, H * D)."""
    return mixed_BHSD.transpose(1, 2).flatten(-2)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight: the norm in float32, the weight applied after the cast back (as LLaMA does)."""
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def rotate(x_BHSD: Tensor, rope: Rope) -> Tensor:
    """Rotary embedding over pairs (x[i], x[i + D/2]), in the dtype of the rope, cast back."""
    cos, sin = (one.unsqueeze(-3) for one in rope)  # one for all heads
    x1, x2 = x_BHSD.chunk(2, dim=-1)
    return (x_BHSD * cos + torch.cat([-x2, x1], dim=-1) * sin).to(x_BHSD.dtype)


def rotate_pairs(x_BSHD: Tensor, rope: Rope) -> Tensor:
    """Rotary embedding over pairs (x[2i], x[2i + 1]), in float32, cast back; cos and sin are (S, 1, D/2)."""
    cos, sin = rope
    even, odd = x_BSHD.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    return turned.flatten(-2).to(x_BSHD.dtype)


def frequencies(width: int, theta: float, device: torch.device) -> Tensor:
    """theta^(-2i/width) for i < width/2, in float32: computed, not stored, so no cast can round it."""
    return theta ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)


def cos_sin(angles: Tensor) -> Rope:
    """A rotation: cos and sin of the angles of the pairs, once for each half of the head."""
    both = torch.cat([angles, angles], dim=-1)
    return both.cos(), both.sin()
