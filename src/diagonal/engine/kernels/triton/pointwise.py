"""Norms and activations between the GEMMs of a block, one kernel each: what torch does in up to ten.

A step at batch 1 has a handful of rows, so each of these is as long as a launch: what counts is how many there are.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagonal.engine.kernels import reference, tuning
from diagonal.engine.kernels.triton.pdl import launch_dependents, options, wait


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension; rounded after the scale and after the weight."""
    x, width = x.contiguous(), x.shape[-1]
    out = torch.empty_like(x, dtype=torch.result_type(x, weight))
    block, rows = triton.next_power_of_2(width), x.numel() // width
    _rms_norm[(rows,)](x, weight, out, width, eps, block, num_warps=_warps(width), **options(x.device))
    return out


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / std * weight + bias over the last dimension, in float32, rounded once."""
    x = x.contiguous()
    out, width = torch.empty_like(x), x.shape[-1]
    block = triton.next_power_of_2(width)
    rows = x.numel() // width
    _layer_norm[(rows,)](x, weight, bias, out, width, eps, block, num_warps=_warps(width), **options(x.device))
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, in float32, rounded once."""
    gate_up = gate_up.contiguous()
    width = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], width)
    columns = tuning.of(out.device).pointwise.columns
    _silu_mul[(out.numel() // width, triton.cdiv(width, columns))](gate_up, out, width, columns, **options(out.device))
    return out


def gelu(x: Tensor) -> Tensor:
    """The tanh form of GELU."""
    x = x.contiguous()
    out, columns = torch.empty_like(x), tuning.of(x.device).pointwise.columns
    _gelu[(triton.cdiv(x.numel(), columns),)](x, out, x.numel(), columns, **options(x.device))
    return out


def norm_silu(x: Tensor, weight: Tensor, eps: float, plus: Tensor | None = None) -> Tensor:
    """silu of the RMS norm over the last dimension of x + plus, in float32, rounded once."""
    x, width = x.contiguous(), x.shape[-1]
    out, rows = torch.empty_like(x), x.numel() // x.shape[-1]
    block = triton.next_power_of_2(width)
    several = max(1, tuning.of(x.device).pointwise.tile // block)
    _norm_silu[(triton.cdiv(rows, several),)](x, weight, plus, out, rows, width, eps, several, block)
    return out


def add_bias(x: Tensor, bias: Tensor, other: Tensor) -> Tensor:
    """x + bias + other, with one bias for each place of the last dimension, rounded once."""
    x, other = x.contiguous(), other.contiguous()
    out, tile = torch.empty_like(x), tuning.of(x.device).pointwise.tile
    _add_bias[(triton.cdiv(x.numel(), tile),)](x, bias, other, out, x.numel(), x.shape[-1], tile)
    return out


def fp8_rows(x_MK: Tensor, multiple: int = 1) -> tuple[Tensor, Tensor]:
    """Each row over a scale of its own, rounded to fp8, and the scales (M, 1); then rows of zeros, to a multiple."""
    x_MK = x_MK.contiguous()
    rows, width = x_MK.shape
    padded = triton.cdiv(rows, multiple) * multiple
    out = x_MK.new_empty(padded, width, dtype=torch.float8_e4m3fn)
    scale = x_MK.new_empty(padded, 1, dtype=torch.float32)
    limits, block = (reference.FP8_MOST, reference.TINY), triton.next_power_of_2(width)
    _fp8_rows[(padded,)](x_MK, out, scale, rows, width, *limits, block, num_warps=_warps(width))
    return out, scale


def _warps(width: int) -> int:
    return 4 if width <= 2048 else 8


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
    """Some elements."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + tl.load(bias + at % width).to(tl.float32)
    total += tl.load(other + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _rms_norm(x, weight, out, width, eps, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """One row."""
    if PDL:
        launch_dependents()
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
def _layer_norm(x, weight, bias, out, width, eps, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """One row."""
    if PDL:
        launch_dependents()
        wait()
    at = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    inside = column < width
    # Differences from the row's first element have the same variance, and are small: little is lost
    # in the difference of their squares, so both sums are taken at once.
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
def _silu_mul(gate_up, out, width, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Some columns of one row."""
    if PDL:
        wait()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + 2 * row * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (2 * row + 1) * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gelu(x, out, size, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Some elements: x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), which is 0.5 x (1 + tanh(...))."""
    if PDL:
        wait()
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    one = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32)
    inner = 1.5957691216057308 * (one + 0.044715 * one * one * one)
    tl.store(out + at, (one * tl.sigmoid(inner)).to(out.dtype.element_ty), mask=at < size)
