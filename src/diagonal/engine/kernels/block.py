"""The parts of a LLaMA-like block that kernels compute in one pass each, in plain torch: what `linear` and `rope` must
give, with the same calls, on any device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMSNorm of every query and key before they are rotated."""

    q_D: Tensor
    k_D: Tensor
    eps: float


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight: the norm in float32, the weight applied after the cast back."""
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def norm_linear(x_MK: Tensor, norm_weight_K: Tensor, eps: float, weight_NK: Tensor) -> Tensor:
    """rms_norm(x) W^T, in the dtype of x."""
    return _product(rms_norm(x_MK, norm_weight_K, eps), weight_NK).to(x_MK.dtype)


def norm_gate_up(x_MK: Tensor, norm_weight_K: Tensor, eps: float, weight_2F_K: Tensor) -> Tensor:
    """silu(gate) * up of rms_norm(x), in the dtype of x: gate is the first half of the weight's rows, up the second."""
    gate, up = norm_linear(x_MK, norm_weight_K, eps, weight_2F_K).chunk(2, dim=-1)
    return F.silu(gate) * up


def linear_add(x_MK: Tensor, weight_NK: Tensor, residual_MN: Tensor) -> Tensor:
    """x W^T + residual, in the dtype of the residual."""
    return (_product(x_MK, weight_NK) + residual_MN).to(residual_MN.dtype)


def _product(x_MK: Tensor, weight_NK: Tensor) -> Tensor:
    """x W^T in the dtype of the weight: bfloat16 weights are never widened, so the product takes bfloat16 inputs."""
    return F.linear(x_MK.to(weight_NK.dtype), weight_NK)


def rope_cache(
    qkv_BSC: Tensor,
    rope: tuple[Tensor, Tensor],
    k_cache_BKLD: Tensor,
    v_cache_BKLD: Tensor,
    slots_S: Tensor,
    norm: HeadNorm | None = None,
) -> Tensor:
    """Rotate queries and keys, write keys and values to their slots of the cache, and return the queries (B, H, S, D).

    The channels of `qkv_BSC` are H heads of queries, then K of keys, then K of values, D wide: K and D are the cache's.
    `rope` is cos and sin (S, D); the pairs that turn are (x[i], x[i + D/2]). Slots are distinct and inside the cache.
    """
    kv_heads, head_dim = k_cache_BKLD.shape[1], k_cache_BKLD.shape[3]
    heads = qkv_BSC.unflatten(-1, (-1, head_dim)).transpose(1, 2)
    q, k, v = heads.split((heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads), dim=1)
    if norm is not None:
        q, k = rms_norm(q, norm.q_D, norm.eps), rms_norm(k, norm.k_D, norm.eps)
    k_cache_BKLD.index_copy_(2, slots_S, _rotate(k, rope).to(k_cache_BKLD.dtype))
    v_cache_BKLD.index_copy_(2, slots_S, v.to(v_cache_BKLD.dtype))
    return _rotate(q, rope)


def _rotate(x_BHSD: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """x[i] cos - x[i + D/2] sin and x[i + D/2] cos + x[i] sin, in the dtype of the rope, cast back."""
    cos, sin = rope
    low, high = x_BHSD.chunk(2, dim=-1)
    return (x_BHSD * cos + torch.cat([-high, low], dim=-1) * sin).to(x_BHSD.dtype)
