"""Weight-only int8 GEMM of a few tokens: half the bytes of bfloat16 to read.

    y = (x W^T) * scale + bias + residual

Sums are in float32 and rounded once. Each thread block owns some columns of the result and walks down the depth;
weights are converted to x's dtype in registers, which is exact. A thread block has eight warps. Where its columns are
too few for them (a tensor core takes 8 at least), several split the depth, and their sums are reduced at the end:
inside the thread block, in a fixed order, so there is no second kernel, and the same inputs give the same bits.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagonal.engine.kernels import tuning

DTYPES = (torch.bfloat16, torch.float16)


def linear(
    x_MK: Tensor,
    weight_NK: Tensor,
    scale_N: Tensor,
    bias_N: Tensor | None = None,
    residual_MN: Tensor | None = None,
) -> Tensor:
    """(x W^T) * scale + bias + residual, in the dtype of x; W is int8, `scale` has one float32 number for each row."""
    _check(x_MK, weight_NK, scale_N, bias_N, residual_MN)
    (rows, depth), cols = x_MK.shape, len(weight_NK)
    out_MN = x_MK.new_empty(rows, cols)
    width, splits, stages = tiles(cols)
    tuned = tuning.of(x_MK.device).int8
    even = depth % (tuned.depth * splits) == 0
    widen = not x_MK.is_cuda  # Triton's interpreter cannot multiply bfloat16 numbers; widened they are the same
    _linear[(triton.cdiv(cols, width),)](
        x_MK, weight_NK, scale_N, bias_N, residual_MN, out_MN, rows, cols, depth,
        tuned.rows, width, tuned.depth, splits, even, widen, num_warps=tuned.warps, num_stages=stages,
    )  # fmt: skip
    return out_MN


def tiles(cols: int) -> tuple[int, int, int]:
    """Columns of a thread block, splits of the depth inside it, and stages of the loop.

    As narrow as lets all thread blocks run at once, three on a multiprocessor: then each has work. 8 KB of weights in a
    stage, or 16 where thread blocks are widest, and four stages keep 24 KB of them in flight for each; where there are
    few thread blocks, five keep 32 KB. 26 KB on each multiprocessor are needed.
    """
    tuned = tuning.HOPPER.int8
    width = next((w for w in (16, 32, 64) if cols <= 3 * tuned.multiprocessors * w), 128)
    stages = 5 if cols <= 2 * tuned.multiprocessors * width else 4
    return width, max(1, tuned.warps // (width // 8)), stages


def _check(x_MK: Tensor, weight_NK: Tensor, scale_N: Tensor, bias_N: Tensor | None, residual_MN: Tensor | None) -> None:
    """Refuse what the kernel would read wrongly: it sees addresses, not shapes."""
    if x_MK.ndim != 2 or weight_NK.ndim != 2 or x_MK.shape[1] != weight_NK.shape[1]:
        shapes = f"x {tuple(x_MK.shape)} and weight {tuple(weight_NK.shape)}"
        raise ValueError(f"{shapes} given; both need two dimensions, the last of them equal")
    most = tuning.of(x_MK.device).int8.rows
    if not 1 <= len(x_MK) <= most or x_MK.dtype not in DTYPES:
        raise ValueError(
            f"x has {len(x_MK)} rows of {x_MK.dtype}; this kernel takes 1 to {most} of bfloat16 or float16: use "
            "kernels.reference"
        )
    if weight_NK.dtype != torch.int8 or scale_N.dtype != torch.float32:
        raise ValueError(f"weight {weight_NK.dtype} and scale {scale_N.dtype} given; int8 and float32 are needed")
    (rows, _), cols = x_MK.shape, len(weight_NK)
    for name, given, wanted in (
        ("x", x_MK, x_MK.shape),
        ("weight", weight_NK, weight_NK.shape),
        ("scale", scale_N, (cols,)),
        ("bias", bias_N, (cols,)),
        ("residual", residual_MN, (rows, cols)),
    ):
        if given is None:
            continue
        if given.shape != wanted or not given.is_contiguous():
            raise ValueError(f"{name}: shape {tuple(given.shape)} given; contiguous {tuple(wanted)} is needed")
        if given.device != weight_NK.device:
            raise ValueError(f"{name} is on {given.device}, the weight on {weight_NK.device}; move one of them")


@triton.jit
def _linear(
    x_MK, weight_NK, scale_N, bias_N, residual_MN, out_MN, rows, cols, depth,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, SPLITS: tl.constexpr,
    EVEN: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """All rows of some columns. Rows and columns beyond the last are read as the last, and not stored."""
    m = tl.arange(0, ROWS)
    n = tl.program_id(0) * COLS + tl.arange(0, COLS)
    x_row = x_MK + tl.minimum(m, rows - 1) * depth
    w_row = weight_NK + tl.minimum(n, cols - 1).to(tl.int64) * depth
    if SPLITS == 1:
        k = tl.arange(0, DEPTH)
        x_at = x_row[:, None] + k[None, :]
        w_at = w_row[None, :] + k[:, None]
        x_depth, w_depth = k[None, :], k[:, None]
        total = tl.zeros((ROWS, COLS), tl.float32)
    else:
        k = tl.arange(0, SPLITS)[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]
        x_at = x_row[None, :, None] + k[:, None, :]
        w_at = w_row[None, None, :] + k[:, :, None]
        x_depth, w_depth = k[:, None, :], k[:, :, None]
        total = tl.zeros((SPLITS, ROWS, COLS), tl.float32)
    for at in range(0, depth, SPLITS * DEPTH):
        # Weights are read once a step: they must not push what is read again out of the L2 cache.
        if EVEN:
            w = tl.load(w_at + at, eviction_policy="evict_first")
            x = tl.load(x_at + at)
        else:
            w = tl.load(w_at + at, mask=at + w_depth < depth, other=0, eviction_policy="evict_first")
            x = tl.load(x_at + at, mask=at + x_depth < depth, other=0.0)
        if WIDEN:
            x = x.to(tl.float32)
        total = tl.dot(x, w.to(x.dtype), total)

    if SPLITS > 1:
        total = tl.sum(total, 0)
    total *= tl.load(scale_N + n, mask=n < cols, other=0.0)[None, :]
    if bias_N is not None:
        total += tl.load(bias_N + n, mask=n < cols, other=0.0).to(tl.float32)[None, :]
    valid = (m < rows)[:, None] & (n < cols)[None, :]
    to = m.to(tl.int64)[:, None] * cols + n[None, :]
    if residual_MN is not None:
        total += tl.load(residual_MN + to, mask=valid, other=0.0).to(tl.float32)
    tl.store(out_MN + to, total.to(out_MN.dtype.element_ty), mask=valid)
