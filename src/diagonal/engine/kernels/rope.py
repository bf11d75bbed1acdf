"""What stands between the product that makes q, k and v and attention, in one kernel: norm, rotation, cache write."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagonal.engine.kernels.block import HeadNorm
from diagonal.engine.kernels.tiles import power_of_two

HEADS = 8  # of a program: enough of them for every multiprocessor, yet not one for each 128 bytes


def rope_cache(
    qkv_BSC: Tensor,
    rope: tuple[Tensor, Tensor],
    k_cache_BKLD: Tensor,
    v_cache_BKLD: Tensor,
    slots_S: Tensor,
    norm: HeadNorm | None = None,
) -> Tensor:
    """Rotate queries and keys, write keys and values to their slots of the cache, and return the queries (B, H, S, D).

    As `block.rope_cache`. Slots are read on the GPU and trusted: one outside the cache would write outside of it.
    """
    batch, kv_heads, length, head_dim = k_cache_BKLD.shape
    inputs = len(slots_S)
    heads = qkv_BSC.shape[-1] // head_dim - 2 * kv_heads
    norms = (None, None, 0.0) if norm is None else (norm.q_D, norm.k_D, norm.eps)
    if qkv_BSC.shape != (batch, inputs, (heads + 2 * kv_heads) * head_dim) or heads < 1:
        raise ValueError(
            f"qkv has shape {tuple(qkv_BSC.shape)}; the cache {tuple(k_cache_BKLD.shape)} and {inputs} slots need "
            f"({batch}, {inputs}, heads * {head_dim}) with more than {2 * kv_heads} heads"
        )
    if head_dim % 2 or head_dim != power_of_two(head_dim):
        raise ValueError(f"heads are {head_dim} wide; this kernel takes powers of two: use kernels.block")
    _check(qkv_BSC, rope, k_cache_BKLD, v_cache_BKLD, slots_S, norms[:2])
    q_BHSD = qkv_BSC.new_empty(batch, heads, inputs, head_dim)
    grid = (inputs, batch, triton.cdiv(heads + 2 * kv_heads, HEADS))
    _rope_cache[grid](
        qkv_BSC, *rope, slots_S, *norms, q_BHSD, k_cache_BKLD, v_cache_BKLD,
        inputs, length, heads, kv_heads, head_dim // 2, HEADS, num_warps=2,
    )  # fmt: skip
    return q_BHSD


def _check(
    qkv_BSC: Tensor,
    rope: tuple[Tensor, Tensor],
    k_cache_BKLD: Tensor,
    v_cache_BKLD: Tensor,
    slots_S: Tensor,
    norms: tuple[Tensor | None, Tensor | None],
) -> None:
    """Refuse what the kernel would read or write wrongly."""
    inputs, head_dim = len(slots_S), k_cache_BKLD.shape[3]
    wanted = [
        ("cos", rope[0], (inputs, head_dim)),
        ("sin", rope[1], (inputs, head_dim)),
        ("the cache of values", v_cache_BKLD, k_cache_BKLD.shape),
        ("the norm of queries", norms[0], (head_dim,)),
        ("the norm of keys", norms[1], (head_dim,)),
        ("slots", slots_S, (inputs,)),
        ("qkv", qkv_BSC, qkv_BSC.shape),
        ("the cache of keys", k_cache_BKLD, k_cache_BKLD.shape),
    ]
    for name, tensor, shape in wanted:
        if tensor is None:
            continue
        if tensor.shape != shape:
            raise ValueError(f"{name}: shape {tuple(tensor.shape)} given, {tuple(shape)} needed")
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: a view with strides {tensor.stride()} given; call .contiguous() on it")
        if tensor.device != qkv_BSC.device:
            raise ValueError(f"{name}: on {tensor.device}, qkv on {qkv_BSC.device}; move one of them")
    if slots_S.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"slots: {slots_S.dtype} given, int32 or int64 needed")


@triton.jit
def _rope_cache(
    qkv, cos_SD, sin_SD, slots_S, q_norm_D, k_norm_D, eps, q, k_cache, v_cache,
    inputs, length, heads, kv_heads, HALF: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Some heads of one input. Queries, keys and values go through the same lines; masks say where each is stored."""
    s = tl.program_id(0)
    b = tl.program_id(1).to(tl.int64)
    h = tl.program_id(2) * HEADS + tl.arange(0, HEADS)
    d = tl.arange(0, HALF)
    all_heads = heads + 2 * kv_heads
    exists = (h < all_heads)[:, None]
    at = ((b * inputs + s) * all_heads + h)[:, None] * (2 * HALF) + d[None, :]
    low = tl.load(qkv + at, mask=exists, other=0.0)
    high = tl.load(qkv + at + HALF, mask=exists, other=0.0)
    low32 = low.to(tl.float32)
    high32 = high.to(tl.float32)
    if q_norm_D is not None:
        mean = (tl.sum(low32 * low32, 1) + tl.sum(high32 * high32, 1)) / (2 * HALF)
        scale = tl.rsqrt(mean + eps)[:, None]
        gains = tl.where((h < heads)[:, None], q_norm_D + d[None, :], k_norm_D + d[None, :])
        # Rounded as the plain norm rounds: after the scale, and after the gain.
        low32 = (low32 * scale).to(low.dtype).to(tl.float32) * tl.load(gains).to(tl.float32)
        high32 = (high32 * scale).to(low.dtype).to(tl.float32) * tl.load(gains + HALF).to(tl.float32)
        low32 = low32.to(low.dtype).to(tl.float32)
        high32 = high32.to(low.dtype).to(tl.float32)
    turn = s * 2 * HALF + d
    low_turned = low32 * tl.load(cos_SD + turn)[None, :] - high32 * tl.load(sin_SD + turn)[None, :]
    high_turned = high32 * tl.load(cos_SD + HALF + turn)[None, :] + low32 * tl.load(sin_SD + HALF + turn)[None, :]
    low_turned = low_turned.to(low.dtype)
    high_turned = high_turned.to(low.dtype)

    to = ((b * heads + h) * inputs + s)[:, None] * (2 * HALF) + d[None, :]
    is_q = (h < heads)[:, None]
    tl.store(q + to, low_turned, mask=is_q)
    tl.store(q + to + HALF, high_turned, mask=is_q)
    slot = tl.load(slots_S + s).to(tl.int64)
    to = ((b * kv_heads + h - heads) * length + slot)[:, None] * (2 * HALF) + d[None, :]
    is_k = ((h >= heads) & (h < heads + kv_heads))[:, None]
    tl.store(k_cache + to, low_turned.to(k_cache.dtype.element_ty), mask=is_k)
    tl.store(k_cache + to + HALF, high_turned.to(k_cache.dtype.element_ty), mask=is_k)
    to -= tl.cast(kv_heads, tl.int64) * length * (2 * HALF)
    is_v = ((h >= heads + kv_heads) & (h < all_heads))[:, None]
    tl.store(v_cache + to, low.to(v_cache.dtype.element_ty), mask=is_v)
    tl.store(v_cache + to + HALF, high.to(v_cache.dtype.element_ty), mask=is_v)
