"""What stands between the large GEMMs of a diffusion transformer, one pass over the tokens each.

A call has thousands of tokens, so these are bound by memory: each element is read once and written once.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagonal.engine.heads import LatentHeads


def add_norm(
    x_BFNC: Tensor, delta: Tensor | None, gate: Tensor | None, gain: Tensor, shift: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """x + gate * delta, and its LayerNorm * gain + shift; in float32, each rounded once."""
    x = x_BFNC.contiguous()
    _, frames, tokens, width = x.shape
    delta = None if delta is None else delta.reshape(x.shape).contiguous()
    out = x if delta is None else torch.empty_like(x)
    normed = torch.empty_like(x)
    _add_norm[(x.numel() // width,)](
        *(x, delta, gate, gain, shift, out, normed, frames * tokens, tokens, width, eps),
        *(*_strides(gate), *_strides(gain), *_strides(shift)),
        triton.next_power_of_2(width),
        num_warps=4 if width <= 2048 else 8,
    )
    return out, normed


def _strides(one: Tensor | None) -> tuple[int, int]:
    """How far the next sample and the next frame lie apart in (B or 1, F or 1, 1, C), or in (C,), one for all."""
    if one is None or one.ndim == 1:
        return 0, 0
    if one.ndim != 4 or one.stride(3) != 1:
        raise ValueError(f"a gate or gain of shape {tuple(one.shape)} given; (B or 1, F or 1, 1, C) is needed")
    return one.stride(0) if one.shape[0] > 1 else 0, one.stride(1) if one.shape[1] > 1 else 0


def rope(heads: LatentHeads, k_out_BSHD: Tensor, v_out_BSHD: Tensor) -> Tensor:
    """Queries (B, S, H, D), normed and rotated; keys, also those, and values are written to the outputs."""
    qkv = heads.qkv_BSC.contiguous()
    batch, inputs, channels = qkv.shape
    width = channels // 3
    shape = (batch, inputs, heads.heads, width // heads.heads)
    q = qkv.new_empty(shape)
    for one in (k_out_BSHD, v_out_BSHD):
        if one.shape != shape or not one[0].is_contiguous():
            raise ValueError(f"an output of shape {tuple(one.shape)} given; {shape}, contiguous, is needed")
    cos, sin = heads.rope
    half = width // heads.heads // 2
    if cos.numel() != inputs * half or not (cos.is_contiguous() and sin.is_contiguous()):
        raise ValueError(f"a rotation of shape {tuple(cos.shape)} given; ({inputs}, 1, {half}) is needed")
    _rope[(inputs, batch)](
        *(qkv, heads.q_norm_C, heads.k_norm_C, cos, sin, q, k_out_BSHD, v_out_BSHD),
        *(inputs, width, half, heads.eps, k_out_BSHD.stride(0), v_out_BSHD.stride(0)),
        triton.next_power_of_2(width // 2),
        num_warps=4,
    )
    return q


def reduce(values_NHSD: Tensor, lse_NHS: Tensor) -> Tensor:
    """Attention to all keys, (1, H, S, D), D a power of two, from attention to N splits of them: weighted by the
    softmax of their log-sum-exps."""
    count, heads, queries, width = values_NHSD.shape
    out_SHD = values_NHSD.new_empty(queries, heads, width)
    _reduce[(queries,)](
        *(values_NHSD, lse_NHS.contiguous(), out_SHD, *values_NHSD.stride()[:3], queries, heads),
        *(width, count, triton.next_power_of_2(heads)),
        num_warps=4,
    )
    return out_SHD.transpose(0, 1)[None]


@triton.jit
def _reduce(
    values, lse, out, n_stride, h_stride, s_stride, queries, heads,
    WIDTH: tl.constexpr, COUNT: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """One query, all heads, split after split, by an online softmax over their own_lse-sum-exps."""
    s, head, column = tl.program_id(0).to(tl.int64), tl.arange(0, HEADS), tl.arange(0, WIDTH)
    inside = head < heads
    given = values + s * s_stride + head[:, None] * h_stride + column[None, :]
    row_max, row_sum = tl.full([HEADS], float("-inf"), tl.float32), tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, WIDTH], tl.float32)
    for split in tl.static_range(COUNT):
        own_lse = tl.load(lse + (split * heads + head) * queries + s, mask=inside, other=0.0)
        value = tl.load(given + split * tl.cast(n_stride, tl.int64), mask=inside[:, None], other=0.0)
        new_max = tl.maximum(row_max, own_lse)
        weight, rescale = tl.exp(own_lse - new_max), tl.exp(row_max - new_max)
        acc = acc * rescale[:, None] + value.to(tl.float32) * weight[:, None]
        row_sum, row_max = row_sum * rescale + weight, new_max
    to = out + (s * heads + head[:, None]) * WIDTH + column[None, :]
    tl.store(to, (acc / row_sum[:, None]).to(out.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _add_norm(
    x, delta, gate, gain, shift, out, normed, video, tokens, width, eps,
    gate_b, gate_f, gain_b, gain_f, shift_b, shift_f, BLOCK: tl.constexpr,
):  # fmt: skip
    """One token."""
    row = tl.program_id(0).to(tl.int64)
    sample, frame = row // video, row % video // tokens
    column = tl.arange(0, BLOCK)
    inside = column < width
    at = row * width + column
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if delta is not None:
        more = tl.load(delta + at, mask=inside, other=0.0).to(tl.float32)
        if gate is not None:
            more *= tl.load(gate + sample * gate_b + frame * gate_f + column, mask=inside, other=0.0).to(tl.float32)
        value += more
        tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)
    value = tl.where(inside, value - tl.sum(value, 0) / width, 0.0)
    value *= tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    value *= tl.load(gain + sample * gain_b + frame * gain_f + column, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(shift + sample * shift_b + frame * shift_f + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + at, value.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _rope(
    qkv, q_norm, k_norm, cos, sin, q, k_out, v_out, inputs, width, half, eps, k_batch, v_batch,
    PAIRS: tl.constexpr,
):  # fmt: skip
    """One token: pairs (x[2i], x[2i + 1]) of its queries and keys are rotated, its values are copied. Elements come
    and go side by side, and become pairs in registers."""
    s, b = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    pair, column = tl.arange(0, PAIRS), tl.arange(0, 2 * PAIRS)
    inside = column < width
    given = qkv + (b * inputs + s) * 3 * width + column
    c = tl.load(cos + s * half + pair % half)
    n = tl.load(sin + s * half + pair % half)
    for part in tl.static_range(2):
        x = tl.load(given + part * width, mask=inside, other=0.0)
        weight = q_norm if part == 0 else k_norm
        x32 = x.to(tl.float32)
        # Rounded as the reference rounds: after the scale, and after the weight.
        x32 = (x32 * tl.rsqrt(tl.sum(x32 * x32, 0) / width + eps)).to(x.dtype).to(tl.float32)
        x32 *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        even, odd = tl.split(tl.reshape(x32.to(x.dtype).to(tl.float32), (PAIRS, 2)))
        rotated = tl.reshape(tl.join(even * c - odd * n, even * n + odd * c), (2 * PAIRS,))
        to = q + (b * inputs + s) * width if part == 0 else k_out + b * k_batch + s * width
        tl.store(to + column, rotated.to(to.dtype.element_ty), mask=inside)
    to = v_out + b * v_batch + s * width
    tl.store(to + column, tl.load(given + 2 * width, mask=inside, other=0.0).to(to.dtype.element_ty), mask=inside)
