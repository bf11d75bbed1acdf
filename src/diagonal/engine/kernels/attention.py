"""Attention of one decoding step in Triton: few, scattered queries against a long cache with grouped keys.

The S queries of the G = H / K heads that share a key head are the S * G rows of one problem (row s * G + g), so that a
tile of rows reads each key and value once for all of them. A step has few such problems (B * K) and many keys, so the
keys are cut into parts, one program each (flash-decoding): a program runs an online softmax over its part, and a second
kernel mixes the parts by their log-sum-exp.

What varies from step to step is read on the device. Keys come block by block, in two loops: first the blocks that all
queries see wholly (`Visibility.whole`), where no single slot is looked at, then the others up to the last written one.
Each program has its share of both, so that all have the same work however little of the cache is filled. Slots that are
not written are read and given no weight: what they hold must be finite, as a new cache's zeros are and what earlier
steps left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagonal.engine.kernels import hopper_attention
from diagonal.engine.kernels.early import call_next, early, wait
from diagonal.engine.kernels.visibility import BLOCK, Visibility

HEAD_DIMS = (16, 32, 64, 128)
WHOLE = (torch.int32, torch.int64)
MAX_ROWS = 64  # in one tile
MAX_PARTS = 64  # that the merging kernel's loop is unrolled for
PROGRAMS = 2  # on a multiprocessor at a time: one computes while the other waits
LEAST = 4  # blocks of the cache for each of them, or else there is one program
MERGED = 8  # rows of a merging program, at most
HELD = 128  # rows times parts of it: they are loaded at once


@dataclass(frozen=True, slots=True)
class Tiles:
    """How one call is cut up."""

    rows: int  # of a tile
    keys: int  # of a round: a block, or a part of it
    parts: int  # that the rounds are shared among


def tiles(q_BHSD: Tensor, k_BKLD: Tensor, processors: int) -> Tiles:
    """Tile sizes from the shapes alone, so that the grid is the same in every step of a width.

    Measured on an H200 (docs/log) for steps of Cosmos, MC-AR and WHAM. Wider tiles read keys less often, and are
    slower all the same: their warps wait for each other. fp32 products take no tensor core and many registers, so their
    rounds are smaller.
    """
    batch, heads, queries, _ = q_BHSD.shape
    kv_heads, length = k_BKLD.shape[1:3]
    packed = queries * (heads // kv_heads)
    rows = min(MAX_ROWS, max(16, triton.next_power_of_2(packed)))
    exact = k_BKLD.dtype == torch.float32
    problems, blocks = triton.cdiv(packed, rows) * batch * kv_heads, triton.cdiv(length, BLOCK)
    parts = processors // problems
    if PROGRAMS * parts * LEAST <= blocks:
        parts = PROGRAMS * processors // problems
    return Tiles(rows, keys=16 if exact else BLOCK, parts=max(1, min(parts, MAX_PARTS, blocks)))


def attend(q_BHSD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor, seen: Visibility, processors: int | None = None) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over what each query sees, (B, H, S, D); zeros for a query that sees nothing.

    Query head h reads key head h // (H // K). The cache is contiguous and of the queries' dtype; the queries may be a
    view. The result is a view of (B, S, H, D), ready for the output projection. `processors` is the GPU's number of
    streaming multiprocessors, asked of torch where it is not given.
    """
    _check(q_BHSD, k_BKLD, v_BKLD, seen)
    if processors is None:
        processors = torch.cuda.get_device_properties(q_BHSD.device).multi_processor_count
    batch, heads, queries, width = q_BHSD.shape
    cut, wide = tiles(q_BHSD, k_BKLD, processors), hopper_attention.fitting(q_BHSD, k_BKLD, v_BKLD, seen)
    shared = hopper_attention.shared_by(q_BHSD, k_BKLD, processors, MAX_PARTS) if wide else None
    count = cut.parts if shared is None else shared.more
    out_BSHD = q_BHSD.new_empty(batch, queries, heads, width)
    parts, lse, sizes = out_BSHD, None, None
    if count > 1:
        parts = out_BSHD.new_empty(count, *out_BSHD.shape, dtype=torch.float16 if wide else torch.float32)
        lse = parts.new_empty(parts.shape[:-1], dtype=torch.float32)
        sizes = torch.empty_like(lse) if wide else None
    if shared is not None:
        hopper_attention.run((q_BHSD, k_BKLD, v_BKLD), seen, (parts, lse, sizes), shared)
    else:
        _attend(q_BHSD, k_BKLD, v_BKLD, seen, cut, (parts, lse))
    if lse is not None:
        mixtures = lse[0].numel()
        some = _merged_rows(mixtures, count, processors)
        _merge_kernel[(triton.cdiv(mixtures, some),)](
            parts, lse, sizes, out_BSHD, mixtures, D=width, PARTS=count, ROWS=some, **early(q_BHSD.device)
        )
    return out_BSHD.transpose(1, 2)


def _attend(
    q_BHSD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor, seen: Visibility, cut: Tiles, into: tuple[Tensor, Tensor | None]
) -> None:
    """The kernel for any heads, on any GPU: mixtures of values, and of several parts the log-sum-exps."""
    batch, heads, queries, width = q_BHSD.shape
    kv_heads, length = k_BKLD.shape[1:3]
    group = heads // kv_heads
    grid = (triton.cdiv(queries * group, cut.rows), batch * kv_heads, cut.parts)
    _attend_kernel[grid](
        *(q_BHSD, k_BKLD, v_BKLD, seen.slots_S, seen.needed_L, seen.whole, seen.extent, *into),
        *(queries, length, *q_BHSD.stride()[:3], math.log2(math.e) / math.sqrt(width)),
        K=kv_heads,
        G=group,
        D=width,
        ROWS=cut.rows,
        KEYS=cut.keys,
        BLOCK=BLOCK,
        num_warps=4,
        **early(q_BHSD.device),
    )


def _merged_rows(count: int, parts: int, processors: int) -> int:
    """Rows of a merging program: few enough to leave work for all processors, and to hold them of all parts."""
    busy = triton.next_power_of_2(triton.cdiv(count, processors))
    return int(min(MERGED, busy, 1 << (HELD // parts).bit_length() - 1))


def _check(q_BHSD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor, seen: Visibility) -> None:
    """Refuse what the kernel would read wrongly: it sees addresses, not shapes."""
    batch, heads, queries, width = q_BHSD.shape
    kv_heads, length = k_BKLD.shape[1:3]
    if k_BKLD.shape != v_BKLD.shape or (k_BKLD.shape[0], k_BKLD.shape[3]) != (batch, width) or heads % kv_heads:
        shapes = [tuple(tensor.shape) for tensor in (q_BHSD, k_BKLD, v_BKLD)]
        raise ValueError(
            f"q, k, v of {shapes} given; they must be (B, H, S, D) and twice (B, K, L, D), H a multiple of K"
        )
    if width not in HEAD_DIMS:
        raise ValueError(f"heads of width {width} given; the kernel takes {HEAD_DIMS}: use attend_reference")
    if length % BLOCK:
        raise ValueError(f"a cache of {length} slots given; the kernel takes whole blocks of {BLOCK}")
    if not q_BHSD.dtype == k_BKLD.dtype == v_BKLD.dtype:
        raise ValueError(f"q, k, v of {q_BHSD.dtype}, {k_BKLD.dtype}, {v_BKLD.dtype} given; convert q to the cache's")
    if q_BHSD.stride(3) != 1 or not (k_BKLD.is_contiguous() and v_BKLD.is_contiguous()):
        raise ValueError("a strided cache or head given; make k, v and the last dimension of q contiguous")
    if len(seen.slots_S) != queries or len(seen.needed_L) != length:
        given = f"{len(seen.slots_S)} slots and {len(seen.needed_L)} needed ones"
        raise ValueError(f"{given} given for {queries} queries and {length} keys; there must be one of each")
    numbers = {name: getattr(seen, name) for name in ("slots_S", "needed_L", "whole", "extent")}
    wrong = [name for name, one in numbers.items() if one.dtype not in WHOLE or not one.is_contiguous()]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} given otherwise; they must be contiguous, of int32 or int64")


STAGES = tl.constexpr(3)  # rounds that are loaded or waited for at a time
FEW = tl.constexpr(6)  # rounds of a program


@triton.jit
def _mix(score, v_at, top, total, mixed, scale):  # type: ignore[no-untyped-def]
    """A round of the online softmax: the greatest score so far, the sum of weights, and the mixture of values."""
    new_top = tl.maximum(top, tl.max(score, 1) * scale)
    weight = tl.exp2(score * scale - new_top[:, None])  # one instruction for product and difference
    decay = tl.exp2(top - new_top)
    v_LD = tl.load(v_at)
    total = total * decay + tl.sum(weight, 1)
    mixed = tl.dot(weight.to(v_LD.dtype), v_LD, mixed * decay[:, None], input_precision="ieee")
    return new_top, total, mixed


@triton.jit  # type: ignore[untyped-decorator]
def _attend_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    slots,
    needed,
    whole,
    extent,
    out,  # (parts, B, S, H, D)
    lse,  # (parts, B, S, H), None for a single part
    S,
    L,
    q_batch,
    q_head,
    q_query,
    scale,  # log2(e) / sqrt(D): the softmax is in powers of two
    K: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One tile of rows, one key head and one part of the keys: a softmax's mixture of values and its log-sum-exp."""
    if EARLY:
        wait()
    head, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    batch, kv_head = head // K, head % K
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    query = row // G
    real = query < S
    head_of_row = kv_head * G + row % G
    column = tl.arange(0, D)
    q_at = q + batch * q_batch + head_of_row * q_head + query.to(tl.int64) * q_query
    q_RD = tl.load(q_at[:, None] + column, mask=real[:, None], other=0.0)
    slot = tl.load(slots + query, mask=real, other=-1).to(tl.int32)

    k += head * L * D
    v += head * L * D
    top = tl.full([ROWS], -1.0e30, tl.float32)  # finite: with nothing seen so far, weights are 0 and not NaN
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, D], tl.float32)
    parts = tl.num_programs(2)
    rounds = tl.load(extent).to(tl.int32) * (BLOCK // KEYS)
    plain = tl.load(whole).to(tl.int32) * (BLOCK // KEYS)
    plain = tl.where(rounds < FEW * parts, 0, plain)  # to begin two loops takes longer than a few looks
    for number in tl.range(plain * part // parts, plain * (part + 1) // parts, num_stages=STAGES):
        at = (number * KEYS + tl.arange(0, KEYS))[:, None] * D + column
        score = tl.dot(q_RD, tl.trans(tl.load(k + at)), input_precision="ieee")
        top, total, mixed = _mix(score, v + at, top, total, mixed, scale)
    rest = rounds - plain
    for number in tl.range(rest * part // parts, rest * (part + 1) // parts, num_stages=STAGES):
        key = (plain + number) * KEYS + tl.arange(0, KEYS)
        least = tl.load(needed + key)
        at = key[:, None] * D + column
        score = tl.dot(q_RD, tl.trans(tl.load(k + at)), input_precision="ieee")
        score = tl.where(least[None, :] <= slot[:, None], score, float("-inf"))
        top, total, mixed = _mix(score, v + at, top, total, mixed, scale)

    seen = (total > 0) & (slot >= 0)  # a row of padding sees nothing
    total = tl.where(seen, total, 1.0)
    batches = tl.num_programs(1) // K
    entry = ((part * batches + batch) * S + query) * (K * G) + head_of_row
    mixed = tl.where(seen[:, None], mixed / total[:, None], 0.0).to(out.dtype.element_ty)
    tl.store(out + entry[:, None] * D + column, mixed, mask=real[:, None])
    if lse is not None:
        tl.store(lse + entry, tl.where(seen, top + tl.log2(total), float("-inf")), mask=real)


@triton.jit  # type: ignore[untyped-decorator]
def _merge_kernel(  # type: ignore[no-untyped-def]
    parts,  # (PARTS, N, D)
    lse,  # (PARTS, N)
    sizes,  # the same: what the mixtures of a part are to be multiplied with, None for 1
    out,  # (N, D)
    N,
    D: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Some rows: the parts' mixtures, weighted by the softmax of their log-sum-exps, -inf where a part saw nothing."""
    if EARLY:
        call_next()
        wait()
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, D)
    real = row < N
    top = tl.full([ROWS], -1.0e30, tl.float32)  # finite: rows that saw nothing get weights of 0
    for part in tl.static_range(PARTS):
        top = tl.maximum(top, tl.load(lse + part * N + row, mask=real, other=float("-inf")))
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, D], tl.float32)
    for part in tl.static_range(PARTS):  # no load waits for another
        weight = tl.exp2(tl.load(lse + part * N + row, mask=real, other=float("-inf")) - top)
        total += weight
        seen = weight > 0  # what nobody saw may be anything
        if sizes is not None:
            weight *= tl.load(sizes + part * N + row, mask=real, other=0.0)
        at = (tl.cast(part, tl.int64) * N + row)[:, None] * D + column
        mixture = tl.load(parts + at, mask=real[:, None], other=0.0).to(tl.float32)
        mixed += tl.where(seen[:, None], weight[:, None] * mixture, 0.0)
    mixed /= tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + row.to(tl.int64)[:, None] * D + column, mixed.to(out.dtype.element_ty), mask=real[:, None])
