"""Attention of one decode step by split-KV (flash decoding) in Triton: few, scattered queries against a long cache with
grouped keys.

The S queries of the G = H / K heads that share a key head are the S * G rows of one problem (row s * G + g), so that a
tile of rows reads each key and value once for all of them. A step has few such problems (B * K) and many keys, so the
keys are split, one thread block each: it runs an online softmax over its split, and a second kernel reduces the splits
by their log-sum-exp.

What varies from step to step is read on the device. Keys come in KV tiles, in two loops: first the blocks that all
queries see wholly (`Visibility.whole`), where no mask is needed, then the others up to the last written one. Each
thread block has its part of both, so that all have the same work however little of the cache is filled. Slots that are
not written are read and masked: what they hold must be finite, as a new cache's zeros are and what earlier steps left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagonal.engine.kernels import tuning
from diagonal.engine.kernels.triton.pdl import launch_dependents, options, wait
from diagonal.engine.kernels.visibility import BLOCK, EVERYBODY, PADDING, Visibility

HEAD_DIMS = (16, 32, 64, 128)
WHOLE = (torch.int32, torch.int64)


@dataclass(frozen=True, slots=True)
class Tiling:
    """How one call is tiled."""

    rows: int  # of a tile
    keys: int  # of a KV tile: a block of the cache, or a part of it
    splits: int  # of the KV tiles


def tiling(q_BHSD: Tensor, k_BKLD: Tensor, multiprocessors: int) -> Tiling:
    """Tile sizes from the shapes alone, so that the grid is the same in every step of a width.

    Measured on an H200 (docs/log) for steps of Cosmos, MC-AR and WHAM.
    """
    tuned = tuning.of(q_BHSD.device).split_kv
    batch, heads, queries, _ = q_BHSD.shape
    kv_heads, length = k_BKLD.shape[1:3]
    packed = queries * (heads // kv_heads)
    rows = min(tuned.rows, max(16, triton.next_power_of_2(packed)))
    exact = k_BKLD.dtype == torch.float32
    problems, blocks = triton.cdiv(packed, rows) * batch * kv_heads, triton.cdiv(length, BLOCK)
    splits = multiprocessors // problems
    if tuned.blocks_per_sm * splits * tuned.least_blocks <= blocks:
        splits = tuned.blocks_per_sm * multiprocessors // problems
    keys = tuned.exact_keys if exact else tuned.keys
    return Tiling(rows, keys, splits=max(1, min(splits, tuned.splits, blocks)))


def attend(q_BHSD: Tensor, k_NKLD: Tensor, v_NKLD: Tensor, seen: Visibility, multiprocessors: int) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over what each query sees, (B, H, S, D); zeros for a query that sees nothing.

    Query head h reads key head h // (H // K). The cache is contiguous and of the queries' dtype; the queries may be a
    view. The result is a view of (B, S, H, D), ready for the output projection.
    """
    check(q_BHSD, k_NKLD, v_NKLD, seen)
    batch, heads, queries, width = q_BHSD.shape
    found = tiling(q_BHSD, k_NKLD, multiprocessors)
    out_BSHD = q_BHSD.new_empty(batch, queries, heads, width)
    if found.splits == 1:
        _attend(q_BHSD, k_NKLD, v_NKLD, seen, found, (out_BSHD, None))
        return out_BSHD.transpose(1, 2)
    values = out_BSHD.new_empty(found.splits, *out_BSHD.shape, dtype=torch.float32)
    lse = values.new_empty(values.shape[:-1])
    _attend(q_BHSD, k_NKLD, v_NKLD, seen, found, (values, lse))
    return reduce(values, lse, None, out_BSHD, multiprocessors).transpose(1, 2)


def reduce(values: Tensor, lse: Tensor, scales: Tensor | None, out_BSHD: Tensor, multiprocessors: int) -> Tensor:
    """The splits (splits, B, S, H, D), weighted by the softmax of their log-sum-exps, and multiplied with their scales
    if they have any."""
    splits, rows = len(lse), lse[0].numel()
    some = _reduced_rows(rows, splits, multiprocessors)
    _reduce_kernel[(triton.cdiv(rows, some),)](
        *(values, lse, scales, out_BSHD, rows),
        D=out_BSHD.shape[-1],
        SPLITS=splits,
        ROWS=some,
        **options(out_BSHD.device),
    )
    return out_BSHD


def _attend(
    q_BHSD: Tensor, k_NKLD: Tensor, v_NKLD: Tensor, seen: Visibility, found: Tiling, into: tuple[Tensor, Tensor | None]
) -> None:
    """Values, and of several splits the log-sum-exps."""
    batch, heads, queries, width = q_BHSD.shape
    kv_heads, length = k_NKLD.shape[1:3]
    group = heads // kv_heads
    grid = (triton.cdiv(queries * group, found.rows), batch * kv_heads, found.splits)
    tuned = tuning.of(q_BHSD.device).split_kv
    _attend_kernel[grid](
        *(q_BHSD, k_NKLD, v_NKLD, seen.slots_S, seen.needed_L, seen.whole, seen.extent, seen.rows_B, *into),
        *(queries, length, *q_BHSD.stride()[:3], *seen.strides, math.log2(math.e) / math.sqrt(width)),
        K=kv_heads,
        G=group,
        D=width,
        ROWS=found.rows,
        KEYS=found.keys,
        BLOCK=BLOCK,
        EVERYBODY=EVERYBODY,
        PADDING=PADDING,
        STAGES=tuned.stages,
        FEW=tuned.few_tiles,
        num_warps=tuned.warps,
        **options(q_BHSD.device),
    )


def _reduced_rows(rows: int, splits: int, multiprocessors: int) -> int:
    """Rows of a thread block of the reduction: few enough to leave work for all multiprocessors, and to hold them of
    all splits."""
    tuned = tuning.HOPPER.split_kv
    busy = triton.next_power_of_2(triton.cdiv(rows, multiprocessors))
    return int(min(tuned.reduce_rows, busy, 1 << (tuned.reduce_entries // splits).bit_length() - 1))


def check(q_BHSD: Tensor, k_NKLD: Tensor, v_NKLD: Tensor, seen: Visibility) -> None:
    """Refuse what the kernel would read wrongly: it sees addresses, not shapes."""
    batch, heads, _, width = q_BHSD.shape
    rows, kv_heads, length = k_NKLD.shape[:3]
    fits = k_NKLD.shape[3] == width and (rows == batch or seen.rows_B is not None)
    if k_NKLD.shape != v_NKLD.shape or not fits or heads % kv_heads:
        shapes = [tuple(tensor.shape) for tensor in (q_BHSD, k_NKLD, v_NKLD)]
        raise ValueError(
            f"q, k, v of {shapes} given; they must be (B, H, S, D) and twice (B, K, L, D), H a multiple of K"
        )
    if width not in HEAD_DIMS:
        raise ValueError(f"heads of width {width} given; the kernel takes {HEAD_DIMS}: use attend_reference")
    if length % BLOCK:
        raise ValueError(f"a cache of {length} slots given; the kernel takes whole blocks of {BLOCK}")
    if not q_BHSD.dtype == k_NKLD.dtype == v_NKLD.dtype:
        raise ValueError(f"q, k, v of {q_BHSD.dtype}, {k_NKLD.dtype}, {v_NKLD.dtype} given; convert q to the cache's")
    if q_BHSD.stride(3) != 1 or not (k_NKLD.is_contiguous() and v_NKLD.is_contiguous()):
        raise ValueError("a strided cache or head given; make k, v and the last dimension of q contiguous")
    _check_rule(seen, batch, q_BHSD.shape[2], length)


def _check_rule(seen: Visibility, batch: int, queries: int, length: int) -> None:
    """That its numbers are there for all samples, or for each."""
    numbers = {"slots_S": (seen.slots_S, queries), "needed_L": (seen.needed_L, length)}
    numbers |= {"whole": (seen.whole, 1), "extent": (seen.extent, 1)}
    for name, (one, size) in numbers.items():
        if one.shape not in ((size,), (batch, size)):
            raise ValueError(
                f"{name} of {tuple(one.shape)} given for {batch} samples of {queries} queries and {length} keys; "
                f"it must be {(size,)} or {(batch, size)}"
            )
    wrong = [name for name, (one, _) in numbers.items() if one.dtype not in WHOLE or not one.is_contiguous()]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} given otherwise; they must be contiguous, of int32 or int64")
    rows = seen.rows_B
    if rows is not None and (rows.shape != (batch,) or rows.dtype != torch.int64 or not rows.is_contiguous()):
        raise ValueError(f"rows_B of {tuple(rows.shape)}, {rows.dtype} given; {batch} of int64 are needed")


@triton.jit
def _online_softmax(score, v_at, row_max, row_sum, acc, scale):  # type: ignore[no-untyped-def]
    """A KV tile of the online softmax: the running maximum, the sum of weights, and the weighted values."""
    new_max = tl.maximum(row_max, tl.max(score, 1) * scale)
    weight = tl.exp2(score * scale - new_max[:, None])  # one instruction for product and difference
    decay = tl.exp2(row_max - new_max)
    v_LD = tl.load(v_at)
    row_sum = row_sum * decay + tl.sum(weight, 1)
    acc = tl.dot(weight.to(v_LD.dtype), v_LD, acc * decay[:, None], input_precision="ieee")
    return new_max, row_sum, acc


@triton.jit  # type: ignore[untyped-decorator]
def _attend_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    slots,
    needed,
    whole,
    extent,
    rows,  # of the cache, None if they are the samples
    out,  # (splits, B, S, H, D)
    lse,  # (splits, B, S, H), None for a single split
    S,
    L,
    q_batch,
    q_head,
    q_query,
    slots_batch,
    needed_batch,
    whole_batch,
    extent_batch,
    scale,  # log2(e) / sqrt(D): the softmax is in powers of two
    K: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
    EVERYBODY: tl.constexpr,
    PADDING: tl.constexpr,
    STAGES: tl.constexpr,
    FEW: tl.constexpr,
    PDL: tl.constexpr,
):
    """One tile of rows, one key head and one split of the keys: the softmax's values and its log-sum-exp."""
    if PDL:
        wait()
    head, split = tl.program_id(1).to(tl.int64), tl.program_id(2)
    batch, kv_head = head // K, head % K
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    query = row // G
    real = query < S
    head_of_row = kv_head * G + row % G
    column = tl.arange(0, D)
    q_at = q + batch * q_batch + head_of_row * q_head + query.to(tl.int64) * q_query
    q_RD = tl.load(q_at[:, None] + column, mask=real[:, None], other=0.0)
    slot = tl.load(slots + batch * slots_batch + query, mask=real, other=PADDING).to(tl.int32)

    cache_head = head
    if rows is not None:
        cache_head = tl.load(rows + batch) * K + kv_head
    k += cache_head * L * D
    v += cache_head * L * D
    needed += batch * needed_batch
    row_max = tl.full([ROWS], -1.0e30, tl.float32)  # finite: with nothing seen so far, weights are 0 and not NaN
    row_sum = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    splits = tl.num_programs(2)
    tiles = tl.load(extent + batch * extent_batch).to(tl.int32) * (BLOCK // KEYS)
    unmasked = tl.load(whole + batch * whole_batch).to(tl.int32) * (BLOCK // KEYS)
    unmasked = tl.where(tiles < FEW * splits, 0, unmasked)  # a second loop costs more than masking a few tiles
    for number in tl.range(unmasked * split // splits, unmasked * (split + 1) // splits, num_stages=STAGES):
        at = (number * KEYS + tl.arange(0, KEYS))[:, None] * D + column
        score = tl.dot(q_RD, tl.trans(tl.load(k + at)), input_precision="ieee")
        row_max, row_sum, acc = _online_softmax(score, v + at, row_max, row_sum, acc, scale)
    rest = tiles - unmasked
    for number in tl.range(rest * split // splits, rest * (split + 1) // splits, num_stages=STAGES):
        key = (unmasked + number) * KEYS + tl.arange(0, KEYS)
        least = tl.load(needed + key)
        at = key[:, None] * D + column
        score = tl.dot(q_RD, tl.trans(tl.load(k + at)), input_precision="ieee")
        score = tl.where(least[None, :] <= slot[:, None], score, float("-inf"))
        row_max, row_sum, acc = _online_softmax(score, v + at, row_max, row_sum, acc, scale)

    seen = (row_sum > 0) & (slot >= EVERYBODY)  # a row of padding sees nothing
    row_sum = tl.where(seen, row_sum, 1.0)
    batches = tl.num_programs(1) // K
    entry = ((split * batches + batch) * S + query) * (K * G) + head_of_row
    acc = tl.where(seen[:, None], acc / row_sum[:, None], 0.0).to(out.dtype.element_ty)
    tl.store(out + entry[:, None] * D + column, acc, mask=real[:, None])
    if lse is not None:
        tl.store(lse + entry, tl.where(seen, row_max + tl.log2(row_sum), float("-inf")), mask=real)


@triton.jit  # type: ignore[untyped-decorator]
def _reduce_kernel(  # type: ignore[no-untyped-def]
    values,  # (SPLITS, N, D)
    lse,  # (SPLITS, N)
    scales,  # the same: what the values of a split are to be multiplied with, None for 1
    out,  # (N, D)
    N,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Some rows: the splits' values, weighted by the softmax of their log-sum-exps, -inf where a split saw nothing."""
    if PDL:
        launch_dependents()
        wait()
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, D)
    real = row < N
    row_max = tl.full([ROWS], -1.0e30, tl.float32)  # finite: rows that saw nothing get weights of 0
    for split in tl.static_range(SPLITS):
        row_max = tl.maximum(row_max, tl.load(lse + split * N + row, mask=real, other=float("-inf")))
    row_sum = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    for split in tl.static_range(SPLITS):  # no load waits for another
        weight = tl.exp2(tl.load(lse + split * N + row, mask=real, other=float("-inf")) - row_max)
        row_sum += weight
        seen = weight > 0  # what nobody saw may be anything
        if scales is not None:
            weight *= tl.load(scales + split * N + row, mask=real, other=0.0)
        at = (tl.cast(split, tl.int64) * N + row)[:, None] * D + column
        value = tl.load(values + at, mask=real[:, None], other=0.0).to(tl.float32)
        acc += tl.where(seen[:, None], weight[:, None] * value, 0.0)
    acc /= tl.where(row_sum > 0, row_sum, 1.0)[:, None]
    tl.store(out + row.to(tl.int64)[:, None] * D + column, acc.to(out.dtype.element_ty), mask=real[:, None])
