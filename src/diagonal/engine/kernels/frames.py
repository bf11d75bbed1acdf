"""Norms over whole frames of a tokenizer.

A frame has millions of numbers, and there are a few frames: torch's group norm, which gives each group to one block of
threads, leaves most of a GPU idle. Here parts of a frame are summed side by side, and the pass that normalises adds the
parts up.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096  # numbers at a time
PARTS = 128  # of a frame, at most


def frame_norm(x_BTHWC: Tensor, weight: Tensor, bias: Tensor, eps: float, silu: bool) -> Tensor:
    """(x - mean) / std * weight + bias, mean and std over all of a frame; with SiLU behind it; in float32, rounded
    once."""
    x = x_BTHWC.contiguous()
    frames, size = x.shape[0] * x.shape[1], x[0, 0].numel()
    share = triton.cdiv(triton.cdiv(size, TILE), PARTS)  # tiles of a part
    parts = triton.cdiv(size, share * TILE)
    sums = torch.empty(2, frames, parts, dtype=torch.float32, device=x.device)
    _sums[(parts, frames)](x, sums[0], sums[1], size, share, TILE)
    out = torch.empty_like(x)
    _normed[(triton.cdiv(size, TILE), frames)](
        *(x, weight, bias, sums[0], sums[1], out, size, x.shape[-1], parts, eps),
        *(silu, triton.next_power_of_2(parts), TILE),
    )
    return out


@triton.jit
def _sums(x, firsts, seconds, size, share, TILE: tl.constexpr):
    """Sums of a part of a frame, and of its squares. Both are of the distance to the frame's first number: where all
    numbers are large and alike, little is lost to rounding."""
    part, frame = tl.program_id(0), tl.program_id(1)
    x += frame.to(tl.int64) * size
    origin = tl.load(x).to(tl.float32)
    first, second = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32)
    for tile in range(part * share, (part + 1) * share):
        at = tile * TILE + tl.arange(0, TILE)
        far = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32) - origin
        far = tl.where(at < size, far, 0.0)
        first += far
        second += far * far
    to = frame * tl.num_programs(0) + part
    tl.store(firsts + to, tl.sum(first, 0))
    tl.store(seconds + to, tl.sum(second, 0))


@triton.jit
def _normed(
    x, weight, bias, firsts, seconds, out, size, width, parts, eps,
    SILU: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Some numbers of a frame."""
    frame, part = tl.program_id(1), tl.arange(0, PARTS)
    x += frame.to(tl.int64) * size
    out += frame.to(tl.int64) * size
    inside = part < parts
    mean = tl.sum(tl.load(firsts + frame * parts + part, mask=inside, other=0.0), 0) / size
    square = tl.sum(tl.load(seconds + frame * parts + part, mask=inside, other=0.0), 0) / size
    scale = tl.rsqrt(square - mean * mean + eps)
    mean += tl.load(x).to(tl.float32)
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = at < size
    value = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - mean) * scale
    value = value * tl.load(weight + at % width).to(tl.float32) + tl.load(bias + at % width).to(tl.float32)
    if SILU:
        value *= tl.sigmoid(value)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)
