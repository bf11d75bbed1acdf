"""What a decode step does beside GEMMs and attention: read its row of the plan's table, gather rows of an embedding,
and norm and rotate heads and write them to the cache."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagonal.engine.heads import Heads, Rope, frequencies
from diagonal.engine.kernels import tuning
from diagonal.engine.kernels.triton.pdl import launch_dependents, options, wait
from diagonal.engine.kernels.visibility import NOWHERE, sample_stride


def next_step(
    rows_NR: Tensor, cursor: Tensor, fed_L: Tensor, tokens_BL: Tensor, inputs: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The row at the cursor, which moves on, the tokens that it begins with, and `Visibility.needed_L` at its step,
    once for all layers."""
    row_R, needed_L = torch.empty_like(rows_NR[0]), torch.empty(len(fed_L), dtype=torch.int32, device=fed_L.device)
    read_BS = tokens_BL.new_empty(len(tokens_BL), inputs)
    width, size, columns = len(row_R), len(fed_L), tuning.of(fed_L.device).pointwise.columns
    _next_step[(triton.cdiv(size, columns),)](
        *(rows_NR, cursor, fed_L, tokens_BL, row_R, read_BS, needed_L),
        *(len(tokens_BL), tokens_BL.stride(0), inputs, width, size, NOWHERE),
        *(triton.next_power_of_2(width), columns),
        **options(fed_L.device),
    )
    return row_R, read_BS, needed_L


def gather_rows(tables_TLC: Tensor, ids_N: Tensor) -> Tensor:
    """The rows with these ids of each table, (T, N, C). An id that no row has gives NaN."""
    tables_TLC, ids_N = tables_TLC.contiguous(), ids_N.contiguous()
    (count, length, width), ids = tables_TLC.shape, len(ids_N)
    out = tables_TLC.new_empty(count, ids, width)
    columns = tuning.of(out.device).pointwise.columns
    grid = (count * ids, triton.cdiv(width, columns))
    _gather_rows[grid](tables_TLC, ids_N, out, ids, length, width, columns, **options(out.device))
    return out


def rope_1d(positions: Tensor, head_dim: int, theta: float) -> Rope:
    """cos and sin of position * theta^(-2i/D), with whole turns dropped in float64."""
    positions, device = positions.contiguous(), positions.device
    cos, sin = torch.empty(2, *positions.shape, head_dim, dtype=torch.float32, device=device)
    half, count = head_dim // 2, positions.numel()
    table, wide = _frequencies(head_dim, theta, device), triton.next_power_of_2(half)
    rows = max(1, tuning.of(device).pointwise.columns // wide)
    _rope_1d[(triton.cdiv(count, rows),)](positions, table, cos, sin, count, half, rows, wide, **options(device))
    return cos, sin


@functools.cache
def _frequencies(head_dim: int, theta: float, device: torch.device) -> Tensor:
    """They are read by captured graphs, so they stay where they are."""
    return frequencies(head_dim, theta, device)


def write_heads(
    heads: Heads, k_NKLD: Tensor, v_NKLD: Tensor, slots_S: Tensor, rows_B: Tensor | None, launch_next: bool
) -> Tensor:
    """Norm and rotate queries and keys, write keys and values to their slots, and return the queries (B, H, S, D). The
    attention after it is launched early (`launch_next`) if it can wait itself.

    Slots and rows are read on the GPU and trusted: one outside the cache would write outside of it.
    """
    qkv, width, kv_heads = heads.qkv().contiguous(), heads.head_dim, heads.kv_heads
    batch, inputs, channels = qkv.shape
    count = heads.heads
    _check(qkv, heads, (k_NKLD, v_NKLD), slots_S, rows_B)
    q_BHSD = qkv.new_empty(batch, count, inputs, width)
    cos, sin = (None, None) if heads.rope is None else heads.rope
    norm = (None, None, 0.0) if heads.norm is None else (heads.norm.q_D, heads.norm.k_D, heads.norm.eps)
    block = tuning.of(qkv.device).pointwise.heads
    grid = (inputs, batch, triton.cdiv(channels // width, block))
    of_rope, of_slots = (0 if cos is None or cos.ndim == 2 else inputs * width), sample_stride(slots_S)
    _write_heads[grid](
        qkv, cos, sin, slots_S, rows_B, *norm, q_BHSD, k_NKLD, v_NKLD,
        of_rope, of_slots, inputs, k_NKLD.shape[2], count, kv_heads, width // 2, block,
        launch_next, num_warps=2, **options(qkv.device),
    )  # fmt: skip
    return q_BHSD


def _check(qkv: Tensor, heads: Heads, caches: tuple[Tensor, Tensor], slots_S: Tensor, rows_B: Tensor | None) -> None:
    """Refuse what the kernel would read or write wrongly: it sees addresses, not shapes."""
    (batch, inputs, _), width = qkv.shape, heads.head_dim
    if width % 2 or width != triton.next_power_of_2(width):
        raise ValueError(f"heads are {width} wide; this kernel takes powers of two: use kernels.reference")
    for cache in caches:
        wanted = (batch if rows_B is None else len(caches[0]), heads.kv_heads, cache.shape[2], width)
        if cache.shape != wanted or not cache.is_contiguous():
            raise ValueError(f"a cache of shape {tuple(cache.shape)} given; contiguous {wanted} is needed")
    rope = heads.rope or ()
    shape = (*(batch for one in rope[:1] if one.ndim > 2), inputs, width)
    for name, part in zip(("cos", "sin"), rope, strict=False):
        if part.shape != shape or not part.is_contiguous():
            raise ValueError(f"{name}: shape {tuple(part.shape)} given; contiguous {shape} is needed")
    whole = slots_S.dtype in (torch.int32, torch.int64) and slots_S.is_contiguous()
    if slots_S.shape not in ((inputs,), (batch, inputs)) or not whole:
        given = f"slots: {tuple(slots_S.shape)} of {slots_S.dtype}"
        raise ValueError(f"{given} given; {inputs} whole numbers are needed, of all samples or of each of {batch}")
    if rows_B is not None and (rows_B.shape != (batch,) or rows_B.dtype != torch.int64 or not rows_B.is_contiguous()):
        raise ValueError(f"rows: {tuple(rows_B.shape)} of {rows_B.dtype} given; {batch} of int64 in order are needed")


TURN: tl.constexpr = tl.constexpr(2 * math.pi)
TURNS: tl.constexpr = tl.constexpr(0.5 / math.pi)  # in a radian


@triton.jit
def _rope_1d(positions, frequencies, cos, sin, count, half, ROWS: tl.constexpr, HALF: tl.constexpr, PDL: tl.constexpr):
    """Some positions: their angles, once for each half of the head."""
    if PDL:
        wait()
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, HALF)
    there = (row < count)[:, None] & (column < half)[None, :]
    position = tl.load(positions + row, mask=row < count, other=0).to(tl.float64)
    frequency = tl.load(frequencies + column, mask=column < half, other=0.0).to(tl.float64)
    angle = position[:, None] * frequency[None, :]
    rest = (angle - tl.floor(angle * TURNS) * TURN).to(tl.float32)
    at = row[:, None] * (2 * half) + column[None, :]
    tl.store(cos + at, tl.cos(rest), mask=there)
    tl.store(cos + at + half, tl.cos(rest), mask=there)
    tl.store(sin + at, tl.sin(rest), mask=there)
    tl.store(sin + at + half, tl.sin(rest), mask=there)


@triton.jit
def _next_step(
    rows, cursor, fed, tokens, row, read, needed, videos, stride, inputs, width, size,
    NOWHERE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Some slots, and in the first thread block the row and its tokens. The last thread block to read the
    cursor moves it on."""
    if PDL:
        wait()
    step = tl.load(cursor)
    at = rows + step * width
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    written = tl.load(fed + slot, mask=slot < size, other=0) <= tl.load(at + width - 1)
    tl.store(needed + slot, tl.where(written, slot, NOWHERE), mask=slot < size)
    if tl.program_id(0) == 0:
        column = tl.arange(0, WIDTH)
        entries = tl.load(at + column, mask=column < width, other=0)
        tl.store(row + column, entries, mask=column < width)
        for video in range(videos):
            token = tl.load(tokens + video * stride + entries, mask=column < inputs)
            tl.store(read + video * inputs + column, token, mask=column < inputs)
    tl.debug_barrier()
    if tl.atomic_add(cursor + 1, 1) == tl.num_programs(0) - 1:
        tl.store(cursor, step + 1)
        tl.store(cursor + 1, 0)


@triton.jit
def _gather_rows(tables, ids, out, N, L, width, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Some columns of one row. Kernels after it may begin once the one before it has ended, not sooner: attention of
    the first layer reads entries of the step's row (`next_step`) before it waits itself."""
    if PDL:
        wait()
        launch_dependents()
    number = tl.program_id(0).to(tl.int64)
    row = tl.load(ids + number % N)
    row = tl.where(row < 0, row + L, row)  # as torch counts
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = (column < width) & (row >= 0) & (row < L)
    value = tl.load(tables + (number // N * L + row) * width + column, mask=there, other=float("nan"))
    tl.store(out + number * width + column, value, mask=column < width)


@triton.jit
def _write_heads(
    qkv, cos_SD, sin_SD, slots_S, rows_B, q_norm_D, k_norm_D, eps, q, k_cache, v_cache,
    rope_batch, slots_batch, inputs, length, heads, kv_heads, HALF: tl.constexpr, HEADS: tl.constexpr,
    LAUNCH_NEXT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Some heads of one input. Queries, keys and values go through the same lines; masks say where each is stored."""
    if PDL:
        if LAUNCH_NEXT:  # attention that has one thread block on each multiprocessor, and reads old keys meanwhile
            launch_dependents()
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
    low_rotated, high_rotated = low, high
    if q_norm_D is not None:
        low32, high32 = low.to(tl.float32), high.to(tl.float32)
        mean = (tl.sum(low32 * low32, 1) + tl.sum(high32 * high32, 1)) / (2 * HALF)
        scale = tl.rsqrt(mean + eps)[:, None]
        gains = tl.where((h < heads)[:, None], q_norm_D + d[None, :], k_norm_D + d[None, :])
        # Rounded as the reference rounds: after the scale, and after the gain.
        low_rotated = ((low32 * scale).to(low.dtype).to(tl.float32) * tl.load(gains).to(tl.float32)).to(low.dtype)
        high_rotated = ((high32 * scale).to(low.dtype).to(tl.float32) * tl.load(gains + HALF).to(tl.float32)).to(
            low.dtype
        )
    if cos_SD is not None:
        angle = b * rope_batch + s * 2 * HALF + d
        low32, high32 = low_rotated.to(tl.float32), high_rotated.to(tl.float32)
        low_rotated = low32 * tl.load(cos_SD + angle)[None, :] - high32 * tl.load(sin_SD + angle)[None, :]
        high_cos, high_sin = tl.load(cos_SD + HALF + angle), tl.load(sin_SD + HALF + angle)
        high_rotated = high32 * high_cos[None, :] + low32 * high_sin[None, :]
    low_rotated = low_rotated.to(low.dtype)
    high_rotated = high_rotated.to(low.dtype)

    to = ((b * heads + h) * inputs + s)[:, None] * (2 * HALF) + d[None, :]
    is_q = (h < heads)[:, None]
    tl.store(q + to, low_rotated, mask=is_q)
    tl.store(q + to + HALF, high_rotated, mask=is_q)
    slot = tl.load(slots_S + b * slots_batch + s).to(tl.int64)
    cache_row = b
    if rows_B is not None:
        cache_row = tl.load(rows_B + b)
    to = ((cache_row * kv_heads + h - heads) * length + slot)[:, None] * (2 * HALF) + d[None, :]
    is_k = ((h >= heads) & (h < heads + kv_heads))[:, None]
    tl.store(k_cache + to, low_rotated.to(k_cache.dtype.element_ty), mask=is_k)
    tl.store(k_cache + to + HALF, high_rotated.to(k_cache.dtype.element_ty), mask=is_k)
    to -= tl.cast(kv_heads, tl.int64) * length * (2 * HALF)
    is_v = ((h >= heads + kv_heads) & (h < all_heads))[:, None]
    tl.store(v_cache + to, low.to(v_cache.dtype.element_ty), mask=is_v)
    tl.store(v_cache + to + HALF, high.to(v_cache.dtype.element_ty), mask=is_v)
