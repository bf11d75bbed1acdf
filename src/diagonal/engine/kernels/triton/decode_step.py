"""What a decode step does beside GEMMs and attention: read its row of the plan's table, gather rows of an embedding,
and norm and rotate heads and write them to the cache."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagonal.engine.heads import Heads
from diagonal.engine.kernels import tuning
from diagonal.engine.kernels.triton.pdl import launch_dependents, options, wait
from diagonal.engine.kernels.visibility import NOWHERE


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


def write_heads(heads: Heads, k_cache_BKLD: Tensor, v_cache_BKLD: Tensor, slots_S: Tensor, launch_next: bool) -> Tensor:
    """Norm and rotate queries and keys, write keys and values to their slots, and return the queries (B, H, S, D). The
    attention after it is launched early (`launch_next`) if it can wait itself.

    Slots are read on the GPU and trusted: one outside the cache would write outside of it.
    """
    qkv, width, kv_heads = heads.qkv().contiguous(), heads.head_dim, heads.kv_heads
    batch, inputs, channels = qkv.shape
    count = heads.heads
    _check(qkv, heads, (k_cache_BKLD, v_cache_BKLD), slots_S)
    q_BHSD = qkv.new_empty(batch, count, inputs, width)
    cos, sin = (None, None) if heads.rope is None else heads.rope
    norm = (None, None, 0.0) if heads.norm is None else (heads.norm.q_D, heads.norm.k_D, heads.norm.eps)
    block = tuning.of(qkv.device).pointwise.heads
    grid = (inputs, batch, triton.cdiv(channels // width, block))
    _write_heads[grid](
        qkv, cos, sin, slots_S, *norm, q_BHSD, k_cache_BKLD, v_cache_BKLD,
        inputs, k_cache_BKLD.shape[2], count, kv_heads, width // 2, block,
        launch_next, num_warps=2, **options(qkv.device),
    )  # fmt: skip
    return q_BHSD


def _check(qkv: Tensor, heads: Heads, caches: tuple[Tensor, Tensor], slots_S: Tensor) -> None:
    """Refuse what the kernel would read or write wrongly: it sees addresses, not shapes."""
    (batch, inputs, _), width = qkv.shape, heads.head_dim
    if width % 2 or width != triton.next_power_of_2(width):
        raise ValueError(f"heads are {width} wide; this kernel takes powers of two: use kernels.reference")
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
    qkv, cos_SD, sin_SD, slots_S, q_norm_D, k_norm_D, eps, q, k_cache, v_cache,
    inputs, length, heads, kv_heads, HALF: tl.constexpr, HEADS: tl.constexpr, LAUNCH_NEXT: tl.constexpr,
    PDL: tl.constexpr,
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
        angle = s * 2 * HALF + d
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
    slot = tl.load(slots_S + s).to(tl.int64)
    to = ((b * kv_heads + h - heads) * length + slot)[:, None] * (2 * HALF) + d[None, :]
    is_k = ((h >= heads) & (h < heads + kv_heads))[:, None]
    tl.store(k_cache + to, low_rotated.to(k_cache.dtype.element_ty), mask=is_k)
    tl.store(k_cache + to + HALF, high_rotated.to(k_cache.dtype.element_ty), mask=is_k)
    to -= tl.cast(kv_heads, tl.int64) * length * (2 * HALF)
    is_v = ((h >= heads + kv_heads) & (h < all_heads))[:, None]
    tl.store(v_cache + to, low.to(v_cache.dtype.element_ty), mask=is_v)
    tl.store(v_cache + to + HALF, high.to(v_cache.dtype.element_ty), mask=is_v)
