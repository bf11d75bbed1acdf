"""Attention of many queries to a text, without its padding.

A text of n rows is filled up with zeros to the L that its model takes, and every one of them is attended to. Zero rows
all have the same key k' and the same value v', so together they are one key whose weight counts L - n times:

    softmax over s_1 ... s_n, s' + log(L - n)    with s = q k / sqrt(D)

A prompt has a hundred rows, not 512: what is left to read is the queries, once. How many rows are real is read on the
device, so that a captured graph serves every prompt. Up to some 250 rows this is faster than cuDNN is over 512; a text
of 500 takes half as long again (docs/log).
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagonal.engine.kernels import tuning
from diagonal.engine.kernels.triton.split_kv import HEAD_DIMS, WHOLE


def attend_text(q_BHSD: Tensor, k_BHLD: Tensor, v_BHLD: Tensor, rows: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over all L rows, (B, H, S, D), where those from `rows` (B or 1,) on are all alike: the
    first of them is read, the others are not.

    All may be views, as long as a head's numbers lie side by side, and keys and values may be one text's, expanded. The
    result is a view of (B, S, H, D), ready for the output projection.
    """
    _check(q_BHSD, k_BHLD, v_BHLD, rows)
    batch, heads, queries, width = q_BHSD.shape
    out_BSHD = q_BHSD.new_empty(batch, queries, heads, width)
    tuned = tuning.of(q_BHSD.device).text_attention
    keys = tuned.exact_keys if q_BHSD.dtype == torch.float32 else tuned.keys
    # The heads of the same queries run side by side: theirs are the same pages of memory.
    _attend_text[(heads, triton.cdiv(queries, tuned.queries), batch)](
        *(q_BHSD, k_BHLD, v_BHLD, rows, out_BSHD, queries, k_BHLD.shape[2]),
        *(*q_BHSD.stride()[:3], *k_BHLD.stride()[:3], *v_BHLD.stride()[:3], rows.stride(0) if len(rows) > 1 else 0),
        *(math.log2(math.e) / math.sqrt(width), width, tuned.queries, keys),
        num_warps=tuned.warps,
        num_stages=tuned.stages,
    )
    return out_BSHD.transpose(1, 2)


def _check(q_BHSD: Tensor, k_BHLD: Tensor, v_BHLD: Tensor, rows: Tensor) -> None:
    """Refuse what the kernel would read wrongly: it sees addresses, not shapes."""
    batch, heads, _, width = q_BHSD.shape
    if k_BHLD.shape != v_BHLD.shape or k_BHLD.shape != (batch, heads, k_BHLD.shape[2], width):
        shapes = [tuple(tensor.shape) for tensor in (q_BHSD, k_BHLD, v_BHLD)]
        raise ValueError(f"q, k, v of {shapes} given; they must be (B, H, S, D) and twice (B, H, L, D)")
    if width not in HEAD_DIMS:
        raise ValueError(f"heads of width {width} given; the kernel takes {HEAD_DIMS}")
    if not q_BHSD.dtype == k_BHLD.dtype == v_BHLD.dtype:
        raise ValueError(f"q, k, v of {q_BHSD.dtype}, {k_BHLD.dtype}, {v_BHLD.dtype} given; they must be of one")
    if not q_BHSD.stride(3) == k_BHLD.stride(3) == v_BHLD.stride(3) == 1:
        raise ValueError("a strided head given; make the last dimension of q, k and v contiguous")
    if rows.dtype not in WHOLE or rows.shape not in ((1,), (batch,)):
        raise ValueError(f"rows of {rows.dtype} and shape {tuple(rows.shape)} given; one whole number for each text")


@triton.jit
def _attend_text(
    q, k, v, rows, out, S, L, q_b, q_h, q_s, k_b, k_h, k_l, v_b, v_h, v_l, rows_b,
    scale,  # log2(e) / sqrt(D): the softmax is in powers of two
    D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Some queries of one head, KV tile after KV tile, by an online softmax."""
    head, batch = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * QUERIES
    row, column, place = tl.arange(0, QUERIES), tl.arange(0, D), tl.arange(0, KEYS)
    inside = first + row < S
    q += batch * q_b + head * q_h + first * q_s
    q_SD = tl.load(q + row[:, None] * q_s + column[None, :], mask=inside[:, None], other=0.0)
    k += batch * k_b + head * k_h
    v += batch * v_b + head * v_h

    real = tl.load(rows + batch * rows_b).to(tl.int32)
    keys = tl.minimum(real + 1, L)  # with one of the padding, if there is any
    padding = tl.log2(tl.maximum(L - real, 1).to(tl.float32))
    row_max = tl.full([QUERIES], float("-inf"), tl.float32)
    row_sum = tl.zeros([QUERIES], tl.float32)
    acc = tl.zeros([QUERIES, D], tl.float32)
    for start in range(0, keys, KEYS):  # every KV tile has a key to see, so the maximum is finite from the first on
        key = start + place
        seen = key < keys
        k_LD = tl.load(k + key[:, None] * k_l + column[None, :], mask=seen[:, None], other=0.0)
        more = tl.where(key < real, 0.0, tl.where(seen, padding, float("-inf")))
        score = tl.dot(q_SD, tl.trans(k_LD), input_precision="ieee") * scale + more[None, :]
        new_max = tl.maximum(row_max, tl.max(score, 1))
        weight = tl.exp2(score - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        v_LD = tl.load(v + key[:, None] * v_l + column[None, :], mask=seen[:, None], other=0.0)
        row_sum = row_sum * rescale + tl.sum(weight, 1)
        acc = tl.dot(weight.to(v_LD.dtype), v_LD, acc * rescale[:, None], input_precision="ieee")
        row_max = new_max

    heads = tl.num_programs(0)
    out += ((batch * S + first) * heads + head) * D
    acc = (acc / row_sum[:, None]).to(out.dtype.element_ty)
    tl.store(out + row[:, None] * (heads * D) + column[None, :], acc, mask=inside[:, None])
