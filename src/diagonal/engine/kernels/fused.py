"""The small operations between the matrix products of a block, one kernel each: what torch does in up to ten.

A step at batch 1 has a handful of rows, so each of these is as long as a launch: what counts is how many there are.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagonal.engine.heads import Heads
from diagonal.engine.kernels import hopper_attention, int8, narrow, plain
from diagonal.engine.kernels.early import call_next, early, wait
from diagonal.engine.kernels.frames import frame_norm as frame_norm
from diagonal.engine.kernels.frames import group_norm_silu as group_norm_silu
from diagonal.engine.kernels.latents import add_gated as add_gated
from diagonal.engine.kernels.latents import add_norm as add_norm
from diagonal.engine.kernels.visibility import NOWHERE

HEADS = 8  # of a program of `remember`: enough programs for every multiprocessor, yet not one for each 128 bytes
COLUMNS = 1024  # of a program of the activations
TILE = 4096  # numbers of a program that works on pictures


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension; rounded as the twin rounds, after the scale and after the weight."""
    x, width = x.contiguous(), x.shape[-1]
    out = torch.empty_like(x, dtype=torch.result_type(x, weight))
    block, rows = triton.next_power_of_2(width), x.numel() // width
    _rms_norm[(rows,)](x, weight, out, width, eps, block, num_warps=_warps(width), **early(x.device))
    return out


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / std * weight + bias over the last dimension, in float32, rounded once."""
    x = x.contiguous()
    out, width = torch.empty_like(x), x.shape[-1]
    block = triton.next_power_of_2(width)
    rows = x.numel() // width
    _layer_norm[(rows,)](x, weight, bias, out, width, eps, block, num_warps=_warps(width), **early(x.device))
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, in float32, rounded once."""
    gate_up = gate_up.contiguous()
    width = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], width)
    _silu_mul[(out.numel() // width, triton.cdiv(width, COLUMNS))](gate_up, out, width, COLUMNS, **early(out.device))
    return out


def gelu(x: Tensor) -> Tensor:
    """The tanh form of GELU."""
    x = x.contiguous()
    out = torch.empty_like(x)
    _gelu[(triton.cdiv(x.numel(), COLUMNS),)](x, out, x.numel(), COLUMNS, **early(x.device))
    return out


def norm_silu(x: Tensor, weight: Tensor, eps: float, plus: Tensor | None = None) -> Tensor:
    """silu of the RMS norm over the last dimension of x + plus, in float32, rounded once."""
    x, width = x.contiguous(), x.shape[-1]
    out, rows = torch.empty_like(x), x.numel() // x.shape[-1]
    block = triton.next_power_of_2(width)
    several = max(1, TILE // block)
    _norm_silu[(triton.cdiv(rows, several),)](x, weight, plus, out, rows, width, eps, several, block)
    return out


def add_bias(x: Tensor, bias: Tensor, other: Tensor) -> Tensor:
    """x + bias + other, with one bias for each place of the last dimension, rounded once."""
    x, other = x.contiguous(), other.contiguous()
    out = torch.empty_like(x)
    _add_bias[(triton.cdiv(x.numel(), TILE),)](x, bias, other, out, x.numel(), x.shape[-1], TILE)
    return out


def int8_linear(
    x: Tensor, weight_NK: Tensor, scale_N: Tensor, bias_N: Tensor | None, residual: Tensor | None
) -> Tensor:
    """x (W * scale)^T + bias + residual. Wide steps, prompts and float32 are left to the twin."""
    x_MK = x.flatten(0, -2).contiguous()
    alike = all(part is None or part.dtype == x.dtype for part in (bias_N, residual))  # not so under autocast
    if len(x_MK) > int8.MOST_ROWS or x.dtype not in int8.DTYPES or not alike:
        return plain.int8_linear(x, weight_NK, scale_N, bias_N, residual)
    added_MN = None if residual is None else residual.flatten(0, -2).contiguous()
    return int8.linear(x_MK, weight_NK, scale_N, bias_N, added_MN).view(*x.shape[:-1], -1)


def fp8_rows(x_MK: Tensor, multiple: int = 1) -> tuple[Tensor, Tensor]:
    """Each row over a scale of its own, rounded to fp8, and the scales (M, 1); then rows of zeros, to a multiple."""
    x_MK = x_MK.contiguous()
    rows, width = x_MK.shape
    padded = triton.cdiv(rows, multiple) * multiple
    out = x_MK.new_empty(padded, width, dtype=torch.float8_e4m3fn)
    scale = x_MK.new_empty(padded, 1, dtype=torch.float32)
    limits, block = (plain.FP8_MOST, plain.TINY), triton.next_power_of_2(width)
    _fp8_rows[(padded,)](x_MK, out, scale, rows, width, *limits, block, num_warps=_warps(width))
    return out, scale


def fp8_linear(x: Tensor, weight_NK: Tensor, scale_N: Tensor, bias_N: Tensor | None, residual: Tensor | None) -> Tensor:
    """x W^T + bias + residual of rows in fp8, on the tensor cores; as the twin on GPUs that have none for it."""
    if torch.cuda.get_device_capability(x.device) < (8, 9) or x.dtype != torch.bfloat16:
        return plain.fp8_linear(x, weight_NK, scale_N, bias_N, residual)
    x_MK = x.flatten(0, -2)
    rows_PK, scale_P1 = fp8_rows(x_MK, plain.FP8_SIDE)  # P: M and the rows of zeros
    product_PN = torch._scaled_mm(
        rows_PK, weight_NK.t(), scale_P1, scale_N[None], bias=bias_N, out_dtype=x.dtype, use_fast_accum=True
    )
    out: Tensor = product_PN[: len(x_MK)].unflatten(0, x.shape[:-1])
    return out if residual is None else residual + out


def next_step(
    rows_NR: Tensor, cursor: Tensor, fed_L: Tensor, tokens_BL: Tensor, inputs: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The row at the cursor, which moves on, the tokens that it begins with, and `Visibility.needed_L` at its step,
    once for all layers."""
    row_R, needed_L = torch.empty_like(rows_NR[0]), torch.empty(len(fed_L), dtype=torch.int32, device=fed_L.device)
    read_BS = tokens_BL.new_empty(len(tokens_BL), inputs)
    width, size = len(row_R), len(fed_L)
    _next_step[(triton.cdiv(size, COLUMNS),)](
        *(rows_NR, cursor, fed_L, tokens_BL, row_R, read_BS, needed_L),
        *(len(tokens_BL), tokens_BL.stride(0), inputs, width, size, NOWHERE),
        *(triton.next_power_of_2(width), COLUMNS),
        **early(fed_L.device),
    )
    return row_R, read_BS, needed_L


def take_rows(tables_TLC: Tensor, ids_N: Tensor) -> Tensor:
    """The rows with these ids of each table, (T, N, C). An id that no row has gives NaN."""
    tables_TLC, ids_N = tables_TLC.contiguous(), ids_N.contiguous()
    (count, length, width), ids = tables_TLC.shape, len(ids_N)
    out = tables_TLC.new_empty(count, ids, width)
    grid = (count * ids, triton.cdiv(width, COLUMNS))
    _take_rows[grid](tables_TLC, ids_N, out, ids, length, width, COLUMNS, **early(out.device))
    return out


def prompt(q_BHSD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor) -> Tensor:
    """Attention of queries whose slots are the first ones of a cache, each to its own slot and those before it."""
    if hopper_attention.fitting_prompt(q_BHSD, k_BKLD, v_BKLD):
        return hopper_attention.prompt(q_BHSD, k_BKLD, v_BKLD)
    return plain.prompt(q_BHSD, k_BKLD, v_BKLD)


def remember(heads: Heads, k_cache_BKLD: Tensor, v_cache_BKLD: Tensor, slots_S: Tensor) -> Tensor:
    """Norm and rotate queries and keys, write keys and values to their slots, and return the queries (B, H, S, D).

    Slots are read on the GPU and trusted: one outside the cache would write outside of it.
    """
    cut = narrow.fitting_heads(heads, k_cache_BKLD, v_cache_BKLD, slots_S)
    if cut is not None:
        return narrow.remember(heads, k_cache_BKLD, v_cache_BKLD, slots_S, cut)
    qkv, width, kv_heads = heads.qkv().contiguous(), heads.head_dim, heads.kv_heads
    batch, inputs, channels = qkv.shape
    count = heads.heads
    _check(qkv, heads, (k_cache_BKLD, v_cache_BKLD), slots_S)
    q_BHSD = qkv.new_empty(batch, count, inputs, width)
    cos, sin = (None, None) if heads.rope is None else heads.rope
    norm = (None, None, 0.0) if heads.norm is None else (heads.norm.q_D, heads.norm.k_D, heads.norm.eps)
    grid = (inputs, batch, triton.cdiv(channels // width, HEADS))
    _remember[grid](
        qkv, cos, sin, slots_S, *norm, q_BHSD, k_cache_BKLD, v_cache_BKLD,
        inputs, k_cache_BKLD.shape[2], count, kv_heads, width // 2, HEADS,
        hopper_attention.serves(width, k_cache_BKLD), num_warps=2, **early(qkv.device),
    )  # fmt: skip
    return q_BHSD


def _warps(width: int) -> int:
    return 4 if width <= 2048 else 8


def _check(qkv: Tensor, heads: Heads, caches: tuple[Tensor, Tensor], slots_S: Tensor) -> None:
    """Refuse what the kernel would read or write wrongly: it sees addresses, not shapes."""
    (batch, inputs, _), width = qkv.shape, heads.head_dim
    if width % 2 or width != triton.next_power_of_2(width):
        raise ValueError(f"heads are {width} wide; this kernel takes powers of two: use kernels.plain")
    for cache in caches:
        wanted = (batch, heads.kv_heads, cache.shape[2], width)
        if cache.shape != wanted or not cache.is_contiguous():
            raise ValueError(f"a cache of shape {tuple(cache.shape)} given; contiguous {wanted} is needed")
    for name, part in zip(("cos", "sin"), heads.rope or (), strict=False):
        if part.shape != (inputs, width) or not part.is_contiguous():
            raise ValueError(f"{name}: shape {tuple(part.shape)} given; contiguous {(inputs, width)} is needed")
    if slots_S.shape != (inputs,) or slots_S.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"slots: {tuple(slots_S.shape)} of {slots_S.dtype} given; {inputs} whole numbers are needed")


@triton.jit
def _fp8_rows(x, out, scale, rows, width, MOST: tl.constexpr, TINY: tl.constexpr, BLOCK: tl.constexpr):
    """One row; beyond the last, one of zeros."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    held = tl.where(row < rows, width, 0)
    value = tl.load(x + row * width + column, mask=column < held, other=0.0).to(tl.float32)
    most = tl.maximum(tl.max(tl.abs(value), 0), TINY) / MOST
    value = tl.minimum(tl.maximum(value / most, -MOST), MOST)
    tl.store(out + row * width + column, value.to(out.dtype.element_ty), mask=inside)
    tl.store(scale + row, most)


@triton.jit
def _norm_silu(x, weight, plus, out, rows, width, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Some rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    at = row[:, None] * width + column[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if plus is not None:
        value += tl.load(plus + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    scale = tl.rsqrt(tl.sum(value * value, 1) / width + eps)[:, None]
    value *= scale * tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    tl.store(out + at, (value * tl.sigmoid(value)).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _add_bias(x, bias, other, out, size, width, BLOCK: tl.constexpr):
    """Some numbers."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + tl.load(bias + at % width).to(tl.float32)
    total += tl.load(other + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _next_step(
    rows, cursor, fed, tokens, row, read, needed, videos, stride, inputs, width, size,
    NOWHERE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Some slots, and for the first program the row and its tokens. The last of all programs to read the cursor moves
    it on."""
    if EARLY:
        wait()
    number = tl.load(cursor)
    at = rows + number * width
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    written = tl.load(fed + slot, mask=slot < size, other=0) <= tl.load(at + width - 1)
    tl.store(needed + slot, tl.where(written, slot, NOWHERE), mask=slot < size)
    if tl.program_id(0) == 0:
        column = tl.arange(0, WIDTH)
        numbers = tl.load(at + column, mask=column < width, other=0)
        tl.store(row + column, numbers, mask=column < width)
        for video in range(videos):
            token = tl.load(tokens + video * stride + numbers, mask=column < inputs)
            tl.store(read + video * inputs + column, token, mask=column < inputs)
    tl.debug_barrier()
    if tl.atomic_add(cursor + 1, 1) == tl.num_programs(0) - 1:
        tl.store(cursor, number + 1)
        tl.store(cursor + 1, 0)


@triton.jit
def _take_rows(tables, ids, out, N, L, width, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Some columns of one row. Kernels after it may begin once the one before it has ended, not sooner: attention of
    the first layer reads numbers of the step's row (`next_step`) before it waits itself."""
    if EARLY:
        wait()
        call_next()
    number = tl.program_id(0).to(tl.int64)
    row = tl.load(ids + number % N)
    row = tl.where(row < 0, row + L, row)  # as torch counts
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = (column < width) & (row >= 0) & (row < L)
    value = tl.load(tables + (number // N * L + row) * width + column, mask=there, other=float("nan"))
    tl.store(out + number * width + column, value, mask=column < width)


@triton.jit
def _rms_norm(x, weight, out, width, eps, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """One row."""
    if EARLY:
        call_next()
        wait()
    at = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    inside = column < width
    row = tl.load(x + at + column, mask=inside, other=0.0)
    row32 = row.to(tl.float32)
    scale = tl.rsqrt(tl.sum(row32 * row32, 0) / width + eps)
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    normed = (row32 * scale).to(row.dtype).to(tl.float32) * gain
    tl.store(out + at + column, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _layer_norm(x, weight, bias, out, width, eps, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """One row."""
    if EARLY:
        call_next()
        wait()
    at = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    inside = column < width
    # Differences from the row's first number have the same variance, and little is lost by taking it off their squares:
    # both sums are made at once.
    row = tl.load(x + at + column, mask=inside, other=0.0).to(tl.float32)
    apart = tl.where(inside, row - tl.load(x + at).to(tl.float32), 0.0)
    mean, squares = tl.sum(apart, 0) / width, tl.sum(apart * apart, 0) / width
    normed = (apart - mean) * tl.rsqrt(tl.maximum(squares - mean * mean, 0.0) + eps)
    if weight is not None:
        normed *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        normed += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at + column, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _silu_mul(gate_up, out, width, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Some columns of one row."""
    if EARLY:
        wait()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + 2 * row * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (2 * row + 1) * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gelu(x, out, size, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Some numbers: x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), which is 0.5 x (1 + tanh(...))."""
    if EARLY:
        wait()
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    one = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32)
    inner = 1.5957691216057308 * (one + 0.044715 * one * one * one)
    tl.store(out + at, (one * tl.sigmoid(inner)).to(out.dtype.element_ty), mask=at < size)


@triton.jit
def _remember(
    qkv, cos_SD, sin_SD, slots_S, q_norm_D, k_norm_D, eps, q, k_cache, v_cache,
    inputs, length, heads, kv_heads, HALF: tl.constexpr, HEADS: tl.constexpr, CALL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Some heads of one input. Queries, keys and values go through the same lines; masks say where each is stored."""
    if EARLY:
        if CALL:  # attention that has one program for each multiprocessor, and reads old keys meanwhile
            call_next()
        wait()
    s = tl.program_id(0)
    b = tl.program_id(1).to(tl.int64)
    h = tl.program_id(2) * HEADS + tl.arange(0, HEADS)
    d = tl.arange(0, HALF)
    all_heads = heads + 2 * kv_heads
    exists = (h < all_heads)[:, None]
    at = ((b * inputs + s) * all_heads + h)[:, None] * (2 * HALF) + d[None, :]
    low = tl.load(qkv + at, mask=exists, other=0.0)
    high = tl.load(qkv + at + HALF, mask=exists, other=0.0)
    low_turned, high_turned = low, high
    if q_norm_D is not None:
        low32, high32 = low.to(tl.float32), high.to(tl.float32)
        mean = (tl.sum(low32 * low32, 1) + tl.sum(high32 * high32, 1)) / (2 * HALF)
        scale = tl.rsqrt(mean + eps)[:, None]
        gains = tl.where((h < heads)[:, None], q_norm_D + d[None, :], k_norm_D + d[None, :])
        # Rounded as the plain norm rounds: after the scale, and after the gain.
        low_turned = ((low32 * scale).to(low.dtype).to(tl.float32) * tl.load(gains).to(tl.float32)).to(low.dtype)
        high_turned = ((high32 * scale).to(low.dtype).to(tl.float32) * tl.load(gains + HALF).to(tl.float32)).to(
            low.dtype
        )
    if cos_SD is not None:
        turn = s * 2 * HALF + d
        low32, high32 = low_turned.to(tl.float32), high_turned.to(tl.float32)
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
