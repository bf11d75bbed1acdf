"""Products of a few rows with a large bfloat16 weight, and what stands before and after them: one pass over the weight.

Each program owns some columns of the result and walks down the depth; `tiles` says how many of each. Where the depth
is split over programs, they write float32 parts, and a second kernel adds them in a fixed order: no atomics, so the
same inputs give the same bits.

The norm is factored out of the product: y = (x * g) W^T * r with r = 1 / rms(x), which is known only after the walk.
So x * g is rounded to bfloat16 where `block.norm_linear` rounds first x * r and then its product with g; and sums stay
in float32 up to the one rounding of the result, where it rounds after every step. Both differ from exact arithmetic by
a few 2^-8 of the sizes of the summands, these kernels by less.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagonal.engine.kernels.tiles import Product, Tiles, choose

MERGED = 256  # columns of a program of the merge


def norm_linear(x_MK: Tensor, norm_weight_K: Tensor, eps: float, weight_NK: Tensor) -> Tensor:
    """rms_norm(x) W^T, in the dtype of x."""
    out_MN = x_MK.new_empty(len(x_MK), len(weight_NK))
    return _run(x_MK, weight_NK, out_MN, norm=(norm_weight_K, eps))


def norm_gate_up(x_MK: Tensor, norm_weight_K: Tensor, eps: float, weight_2F_K: Tensor) -> Tensor:
    """silu(gate) * up of rms_norm(x), in the dtype of x: gate is the first half of the weight's rows, up the second."""
    if len(weight_2F_K) % 2:
        raise ValueError(f"the weight has {len(weight_2F_K)} rows; gate and up need an even number, half for each")
    out_MF = x_MK.new_empty(len(x_MK), len(weight_2F_K) // 2)
    return _run(x_MK, weight_2F_K, out_MF, norm=(norm_weight_K, eps))


def linear_add(x_MK: Tensor, weight_NK: Tensor, residual_MN: Tensor) -> Tensor:
    """x W^T + residual, in the dtype of the residual."""
    if residual_MN.shape != (len(x_MK), len(weight_NK)):
        raise ValueError(
            f"the residual has shape {tuple(residual_MN.shape)}; the product has {(len(x_MK), len(weight_NK))}"
        )
    return _run(x_MK, weight_NK, torch.empty_like(residual_MN), residual=residual_MN)


def _run(
    x_MK: Tensor,
    weight: Tensor,
    out_MN: Tensor,
    norm: tuple[Tensor, float] | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Fill `out_MN`, whose width says whether the weight is one matrix or gate and up."""
    norm_K, eps = (None, 0.0) if norm is None else norm
    _check(x_MK, weight, norm_K, residual)
    rows, cols = out_MN.shape
    parts, depth = len(weight) // cols, weight.shape[1]
    tiles = _tiles(Product(rows, cols, depth, parts), x_MK.device)
    to, squares = out_MN, None
    if tiles.splits > 1:
        to = x_MK.new_empty(tiles.splits, parts, rows, cols, dtype=torch.float32)
        squares = x_MK.new_empty(tiles.splits, rows, dtype=torch.float32)
    grid = (triton.cdiv(cols, tiles.cols), tiles.splits, triton.cdiv(rows, tiles.rows))
    sizes = (rows, cols, depth, eps)
    shape = (parts, tiles.splits, tiles.rows, tiles.cols, tiles.depth)
    widen = not x_MK.is_cuda  # Triton's interpreter cannot multiply bfloat16 numbers; widened they are the same
    run = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    _product[grid](x_MK, norm_K, weight, residual, to, squares, *sizes, *shape, widen, **run)
    if squares is not None:
        _merge[triton.cdiv(cols, MERGED), rows](
            to, squares, residual, out_MN, *sizes, norm is not None, parts, tiles.splits, MERGED
        )
    return out_MN


@lru_cache(maxsize=1024)
def _tiles(product: Product, device: torch.device) -> Tiles:
    """Chosen once for each shape; without a GPU (Triton's interpreter), as for an H200."""
    known = device.type == "cuda"
    return choose(product, torch.cuda.get_device_properties(device).multi_processor_count if known else 132)


def _check(x_MK: Tensor, weight: Tensor, norm_K: Tensor | None, residual: Tensor | None) -> None:
    """Refuse what the kernels would read wrongly."""
    if weight.dtype != torch.bfloat16:
        raise ValueError(f"the weight is {weight.dtype}; these kernels take bfloat16: cast it, or use kernels.block")
    if x_MK.ndim != 2 or weight.ndim != 2 or x_MK.shape[1] != weight.shape[1]:
        raise ValueError(f"x {tuple(x_MK.shape)} and weight {tuple(weight.shape)} need two dimensions, the last equal")
    if norm_K is not None and norm_K.shape != x_MK.shape[1:]:
        raise ValueError(f"the norm's weight has shape {tuple(norm_K.shape)}; x needs {tuple(x_MK.shape[1:])}")
    given = {"x": x_MK, "weight": weight, "norm weight": norm_K, "residual": residual}
    for name, tensor in given.items():
        if tensor is None:
            continue
        if not tensor.is_contiguous():
            raise ValueError(f"{name} is a view with strides {tensor.stride()}; call .contiguous() on it")
        if tensor.device != weight.device:
            raise ValueError(f"{name} is on {tensor.device}, the weight on {weight.device}; move one of them")


@triton.jit
def _product(
    x_MK, norm_K, weight, residual_MN, out, squares, rows, cols, depth, eps,
    PARTS: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """One tile of the result, or of its part number `split` (float32, unscaled, with the sums of x^2 beside it)."""
    split = tl.program_id(1)
    span = tl.cdiv(tl.cdiv(depth, DEPTH), SPLITS) * DEPTH
    start = split * span
    m = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(0) * COLS + tl.arange(0, COLS)
    k = tl.arange(0, DEPTH)
    x_at = x_MK + m.to(tl.int64)[:, None] * depth + start + k[None, :]
    w_at = weight + n.to(tl.int64)[None, :] * depth + start + k[:, None]
    total = tl.zeros((ROWS, COLS), tl.float32)
    up = tl.zeros((ROWS, COLS), tl.float32)
    square = tl.zeros((ROWS, DEPTH), tl.float32)  # summed over the depth once, at the end
    for at in range(0, span, DEPTH):
        inside = start + at + k < depth
        w_inside = (n < cols)[None, :] & inside[:, None]
        x = tl.load(x_at + at, mask=(m < rows)[:, None] & inside[None, :], other=0.0)
        # Weights are read once a step: they must not push what is read again out of the L2 cache.
        w = tl.load(w_at + at, mask=w_inside, other=0.0, eviction_policy="evict_first")
        if norm_K is not None:
            square += x.to(tl.float32) * x.to(tl.float32)
            gain = tl.load(norm_K + start + at + k, mask=inside, other=0.0)
            if WIDEN:
                x = x.to(tl.float32)
            x *= gain[None, :]  # not widened first on a GPU: a product of bfloat16 numbers is rounded once either way
        x = x.to(tl.bfloat16)
        if WIDEN:
            x = x.to(tl.float32)
            w = w.to(tl.float32)
        total = tl.dot(x, w, total)
        if PARTS == 2:
            up_at = w_at + at + tl.cast(cols, tl.int64) * depth
            w = tl.load(up_at, mask=w_inside, other=0.0, eviction_policy="evict_first")
            if WIDEN:
                w = w.to(tl.float32)
            up = tl.dot(x, w, up)

    valid = (m < rows)[:, None] & (n < cols)[None, :]
    to = m.to(tl.int64)[:, None] * cols + n[None, :]
    if SPLITS > 1:
        size = tl.cast(rows, tl.int64) * cols
        tl.store(out + split * PARTS * size + to, total, mask=valid)
        if PARTS == 2:
            tl.store(out + (split * PARTS + 1) * size + to, up, mask=valid)
        if norm_K is not None:  # noqa: SIM102  this one is decided when the kernel is compiled
            if tl.program_id(0) == 0:  # all columns have the same sums
                tl.store(squares + split * rows + m, tl.sum(square, 1), mask=m < rows)
    else:
        if norm_K is not None:
            scale = tl.rsqrt(tl.sum(square, 1) / depth + eps)[:, None]
            total *= scale
            up *= scale
        if PARTS == 2:
            total *= tl.sigmoid(total) * up
        if residual_MN is not None:
            total += tl.load(residual_MN + to, mask=valid).to(tl.float32)
        tl.store(out + to, total.to(out.dtype.element_ty), mask=valid)


@triton.jit
def _merge(
    partial, squares, residual_MN, out_MN, rows, cols, depth, eps,
    NORM: tl.constexpr, PARTS: tl.constexpr, SPLITS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """One row of some columns: the parts in order, then what `_product` does at its end."""
    m = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * COLS + tl.arange(0, COLS)
    to = m * cols + n
    size = tl.cast(rows, tl.int64) * cols
    total = tl.zeros((COLS,), tl.float32)
    up = tl.zeros((COLS,), tl.float32)
    square = 0.0
    for split in tl.static_range(SPLITS):
        total += tl.load(partial + split * PARTS * size + to, mask=n < cols, other=0.0)
        if PARTS == 2:
            up += tl.load(partial + (split * PARTS + 1) * size + to, mask=n < cols, other=0.0)
        if NORM:
            square += tl.load(squares + split * rows + m)
    if NORM:
        scale = tl.rsqrt(square / depth + eps)
        total *= scale
        up *= scale
    if PARTS == 2:
        total *= tl.sigmoid(total) * up
    if residual_MN is not None:
        total += tl.load(residual_MN + to, mask=n < cols).to(tl.float32)
    tl.store(out_MN + to, total.to(out_MN.dtype.element_ty), mask=n < cols)
