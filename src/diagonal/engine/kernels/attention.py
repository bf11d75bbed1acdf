"""Attention of one decoding step in Triton: few, scattered queries against a long cache with grouped keys.

The S queries of the G = H / K heads that share a key head are the S * G rows of one problem (row s * G + g), so that a
tile of rows reads each key and value once for all of them. A step has few such problems (B * K) and many keys, so the
keys are cut into parts, one program each (flash-decoding): a program runs an online softmax over its part, and a second
kernel mixes the parts by their log-sum-exp.

What varies from step to step is read on the device. The parts share the blocks of slots that hold anything written
(`Visibility.blocks`), so all programs have the same work however little of the cache is filled, and holes that are
blocks wide cost nothing. Within a block, slots that are not written are read and given no weight: what they hold must
be finite, as a new cache's zeros are and what earlier steps left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagonal.engine.kernels.visibility import BLOCK, Visibility

HEAD_DIMS = (16, 32, 64, 128)
WHOLE = (torch.int32, torch.int64)
MAX_ROWS = 64  # in one tile
MAX_PARTS = 64  # one merging program holds a row of all parts at once: 64 * 128 floats


@dataclass(frozen=True, slots=True)
class Tiles:
    """How one call is cut up."""

    rows: int  # of a tile
    keys: int  # of a round: a block, or a part of it
    parts: int  # that the rounds are shared among
    stages: int  # rounds that are loaded or waited for at a time


def tiles(q_BHSD: Tensor, k_BKLD: Tensor, processors: int) -> Tiles:
    """Tile sizes from the shapes alone, so that the grid is the same in every step of a width.

    Measured on an H200 (docs/log.md): tiles of 64 rows, rounds of 64 keys, five stages and one program per processor
    were the fastest or within 3 % of it, from 1 to 80 queries of Cosmos, MC-AR and WHAM. fp32 products take no tensor
    core and many registers, so their rounds are smaller.
    """
    batch, heads, queries, _ = q_BHSD.shape
    kv_heads, length = k_BKLD.shape[1:3]
    packed = queries * (heads // kv_heads)
    rows = min(MAX_ROWS, max(16, triton.next_power_of_2(packed)))
    exact = k_BKLD.dtype == torch.float32
    parts = processors // (triton.cdiv(packed, rows) * batch * kv_heads)
    parts = max(1, min(parts, MAX_PARTS, triton.cdiv(length, BLOCK)))
    return Tiles(rows, keys=16 if exact else BLOCK, parts=parts, stages=3 if exact else 5)


def attend(q_BHSD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor, seen: Visibility, processors: int | None = None) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over what each query sees, (B, H, S, D); zeros for a query that sees nothing.

    Query head h reads key head h // (H // K). The cache is contiguous and of the queries' dtype; the queries may be a
    view. The result is a view of (B, S, H, D), ready for the output projection. `processors` is the GPU's number of
    streaming multiprocessors, asked of torch where it is not given.
    """
    _check(q_BHSD, k_BKLD, v_BKLD, seen)
    if processors is None:
        processors = torch.cuda.get_device_properties(q_BHSD.device).multi_processor_count
    cut = tiles(q_BHSD, k_BKLD, processors)
    batch, heads, queries, width = q_BHSD.shape
    kv_heads, length = k_BKLD.shape[1:3]
    group = heads // kv_heads
    out_BSHD = q_BHSD.new_empty(batch, queries, heads, width)
    parts, lse = out_BSHD, None
    if cut.parts > 1:
        parts = out_BSHD.new_empty(cut.parts, *out_BSHD.shape, dtype=torch.float32)
        lse = parts.new_empty(parts.shape[:-1])
    grid = (triton.cdiv(queries * group, cut.rows), batch * kv_heads, cut.parts)
    _attend_kernel[grid](
        *(q_BHSD, k_BKLD, v_BKLD, seen.slots_S, seen.fed_L, seen.step, seen.blocks, seen.count, parts, lse),
        *(queries, length, *q_BHSD.stride()[:3], math.log2(math.e) / math.sqrt(width)),
        K=kv_heads,
        G=group,
        D=width,
        ROWS=cut.rows,
        KEYS=cut.keys,
        BLOCK=BLOCK,
        num_warps=4,
        num_stages=cut.stages,
    )
    if lse is not None:
        count = batch * queries * heads
        padded = triton.next_power_of_2(cut.parts)
        _merge_kernel[(count,)](parts, lse, out_BSHD, count, D=width, PARTS=cut.parts, PADDED=padded)
    return out_BSHD.transpose(1, 2)


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
    if len(seen.slots_S) != queries or len(seen.fed_L) != length:
        given = f"{len(seen.slots_S)} slots and {len(seen.fed_L)} fed steps"
        raise ValueError(f"{given} given for {queries} queries and {length} keys; there must be one of each")
    names = ("slots_S", "fed_L", "step", "blocks", "count")
    numbers = dict(zip(names, (seen.slots_S, seen.fed_L, seen.step, seen.blocks, seen.count), strict=True))
    wrong = [name for name, one in numbers.items() if one.dtype not in WHOLE or not one.is_contiguous()]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} given otherwise; they must be contiguous, of int32 or int64")


@triton.jit  # type: ignore[untyped-decorator]
def _attend_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    slots,
    fed,
    step,
    blocks,
    count,
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
):
    """One tile of rows, one key head and one part of the keys: a softmax's mixture of values and its log-sum-exp."""
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
    now = tl.load(step).to(tl.int32)

    # The parts share the rounds evenly.
    rounds, parts = tl.load(count).to(tl.int32) * (BLOCK // KEYS), tl.num_programs(2)
    k += head * L * D
    v += head * L * D
    top = tl.full([ROWS], -1.0e30, tl.float32)  # finite: with nothing seen so far, weights are 0 and not NaN
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, D], tl.float32)
    for number in range(rounds * part // parts, rounds * (part + 1) // parts):
        block = tl.load(blocks + number // (BLOCK // KEYS)).to(tl.int32)
        start = block * BLOCK + number % (BLOCK // KEYS) * KEYS
        key = start + tl.arange(0, KEYS)
        written = tl.load(fed + key) <= now
        at = key[:, None] * D + column
        k_LD = tl.load(k + at)
        score = tl.dot(q_RD, tl.trans(k_LD), input_precision="ieee") * scale
        score = tl.where(written[None, :] & (key[None, :] <= slot[:, None]), score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - new_top[:, None])
        decay = tl.exp2(top - new_top)
        v_LD = tl.load(v + at)
        total = total * decay + tl.sum(weight, 1)
        mixed = tl.dot(weight.to(v.dtype.element_ty), v_LD, mixed * decay[:, None], input_precision="ieee")
        top = new_top

    seen = total > 0
    total = tl.where(seen, total, 1.0)
    batches = tl.num_programs(1) // K
    entry = ((part * batches + batch) * S + query) * (K * G) + head_of_row
    mixed = (mixed / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + entry[:, None] * D + column, mixed, mask=real[:, None])
    if lse is not None:
        tl.store(lse + entry, tl.where(seen, top + tl.log2(total), float("-inf")), mask=real)


@triton.jit  # type: ignore[untyped-decorator]
def _merge_kernel(  # type: ignore[no-untyped-def]
    parts,  # (PARTS, N, D)
    lse,  # (PARTS, N)
    out,  # (N, D)
    N,
    D: tl.constexpr,
    PARTS: tl.constexpr,
    PADDED: tl.constexpr,
):
    """One row: the parts' mixtures, weighted by the softmax of their log-sum-exps. A part that saw nothing has -inf."""
    row = tl.program_id(0)
    part = tl.arange(0, PADDED)
    column = tl.arange(0, D)
    entry = part.to(tl.int64) * N + row
    log_weight = tl.load(lse + entry, mask=part < PARTS, other=float("-inf"))
    mixed = tl.load(parts + entry[:, None] * D + column, mask=part[:, None] < PARTS, other=0.0)
    top = tl.max(log_weight, 0)
    weight = tl.exp2(log_weight - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(weight, 0)
    row_D = tl.sum(mixed * weight[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + row.to(tl.int64) * D + column, row_D.to(out.dtype.element_ty))
