"""What stands between the large products of a diffusion transformer, one pass over the tokens each.

A call has thousands of tokens, so these are as long as memory takes: each number is read once and written once.
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
    out, normed = _add(x_BFNC, delta, gate, (gain, shift, eps))
    assert normed is not None
    return out, normed


def add_gated(x_BFNC: Tensor, delta: Tensor, gate: Tensor) -> Tensor:
    """x + gate * delta, rounded once."""
    return _add(x_BFNC, delta, gate, None)[0]


def _add(
    x_BFNC: Tensor, delta: Tensor | None, gate: Tensor | None, norm: tuple[Tensor, Tensor, float] | None
) -> tuple[Tensor, Tensor | None]:
    x = x_BFNC.contiguous()
    _, frames, tokens, width = x.shape
    delta = None if delta is None else delta.reshape(x.shape).contiguous()
    out = x if delta is None else torch.empty_like(x)
    normed = None if norm is None else torch.empty_like(x)
    gain, shift, eps = (None, None, 0.0) if norm is None else norm
    _add_norm[(x.numel() // width,)](
        *(x, delta, gate, gain, shift, out, normed, frames * tokens, tokens, width, eps),
        *(*_steps(gate), *_steps(gain), *_steps(shift)),
        triton.next_power_of_2(width),
        num_warps=4 if width <= 2048 else 8,
    )
    return out, normed


def _steps(part: Tensor | None) -> tuple[int, int]:
    """How far the next sample and the next frame lie apart in (B or 1, F or 1, 1, C), or in (C,), one for all."""
    if part is None or part.ndim == 1:
        return 0, 0
    if part.ndim != 4 or part.stride(3) != 1:
        raise ValueError(f"a gate or gain of shape {tuple(part.shape)} given; (B or 1, F or 1, 1, C) is needed")
    return part.stride(0) if part.shape[0] > 1 else 0, part.stride(1) if part.shape[1] > 1 else 0


def turn(heads: LatentHeads, k_out_BSHD: Tensor, v_out_BSHD: Tensor) -> Tensor:
    """Queries (B, S, H, D), normed and rotated; keys, also those, and values are written to the outputs."""
    qkv = heads.qkv_BSC.contiguous()
    batch, inputs, channels = qkv.shape
    width = channels // 3
    shape = (batch, inputs, heads.heads, width // heads.heads)
    q = qkv.new_empty(shape)
    for part in (k_out_BSHD, v_out_BSHD):
        if part.shape != shape or not part[0].is_contiguous():
            raise ValueError(f"an output of shape {tuple(part.shape)} given; {shape}, contiguous, is needed")
    cos, sin = heads.rope
    half = width // heads.heads // 2
    if cos.numel() != inputs * half or not (cos.is_contiguous() and sin.is_contiguous()):
        raise ValueError(f"a rotation of shape {tuple(cos.shape)} given; ({inputs}, 1, {half}) is needed")
    _turn[(inputs, batch)](
        *(qkv, heads.q_norm_C, heads.k_norm_C, cos, sin, q, k_out_BSHD, v_out_BSHD),
        *(inputs, width, half, heads.eps, k_out_BSHD.stride(0), v_out_BSHD.stride(0)),
        triton.next_power_of_2(width // 2),
        num_warps=4,
    )
    return q


def mix(parts_PHSD: Tensor, sums_PHS: Tensor) -> Tensor:
    """The mixtures of parts of the keys as that of all, (1, H, S, D), D a power of two: weighted by the softmax
    of their log-sum-exps."""
    count, heads, queries, width = parts_PHSD.shape
    out_SHD = parts_PHSD.new_empty(queries, heads, width)
    _mix[(queries,)](
        *(parts_PHSD, sums_PHS.contiguous(), out_SHD, *parts_PHSD.stride()[:3], queries, heads),
        *(width, count, triton.next_power_of_2(heads)),
        num_warps=4,
    )
    return out_SHD.transpose(0, 1)[None]


@triton.jit
def _mix(
    parts, sums, out, p_step, h_step, s_step, queries, heads,
    WIDTH: tl.constexpr, COUNT: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """One query, all heads, part after part: `top` and `total` are of the softmax over those seen so far."""
    s, head, column = tl.program_id(0).to(tl.int64), tl.arange(0, HEADS), tl.arange(0, WIDTH)
    inside = head < heads
    given = parts + s * s_step + head[:, None] * h_step + column[None, :]
    top, total = tl.full([HEADS], float("-inf"), tl.float32), tl.zeros([HEADS], tl.float32)
    mixed = tl.zeros([HEADS, WIDTH], tl.float32)
    for part in tl.static_range(COUNT):
        log = tl.load(sums + (part * heads + head) * queries + s, mask=inside, other=0.0)
        value = tl.load(given + part * tl.cast(p_step, tl.int64), mask=inside[:, None], other=0.0)
        new_top = tl.maximum(top, log)
        weight, decay = tl.exp(log - new_top), tl.exp(top - new_top)
        mixed = mixed * decay[:, None] + value.to(tl.float32) * weight[:, None]
        total, top = total * decay + weight, new_top
    to = out + (s * heads + head[:, None]) * WIDTH + column[None, :]
    tl.store(to, (mixed / total[:, None]).to(out.dtype.element_ty), mask=inside[:, None])


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
    if normed is not None:
        value = tl.where(inside, value - tl.sum(value, 0) / width, 0.0)
        value *= tl.rsqrt(tl.sum(value * value, 0) / width + eps)
        value *= tl.load(gain + sample * gain_b + frame * gain_f + column, mask=inside, other=0.0).to(tl.float32)
        value += tl.load(shift + sample * shift_b + frame * shift_f + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(normed + at, value.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _turn(
    qkv, q_norm, k_norm, cos, sin, q, k_out, v_out, inputs, width, half, eps, k_batch, v_batch,
    PAIRS: tl.constexpr,
):  # fmt: skip
    """One token: pairs (x[2i], x[2i + 1]) of its queries and keys are turned, its values are copied. Numbers come and
    go side by side, and become pairs in registers."""
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
        # Rounded as the plain norm rounds: after the scale, and after the weight.
        x32 = (x32 * tl.rsqrt(tl.sum(x32 * x32, 0) / width + eps)).to(x.dtype).to(tl.float32)
        x32 *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        even, odd = tl.split(tl.reshape(x32.to(x.dtype).to(tl.float32), (PAIRS, 2)))
        turned = tl.reshape(tl.join(even * c - odd * n, even * n + odd * c), (2 * PAIRS,))
        to = q + (b * inputs + s) * width if part == 0 else k_out + b * k_batch + s * width
        tl.store(to + column, turned.to(to.dtype.element_ty), mask=inside)
    to = v_out + b * v_batch + s * width
    tl.store(to + column, tl.load(given + 2 * width, mask=inside, other=0.0).to(to.dtype.element_ty), mask=inside)
