"""Norms over whole frames of a tokenizer.

A frame has millions of elements, and there are few frames: torch's group norm, which gives each group to one thread
block, leaves most of a GPU idle. Here a frame is split, the splits are summed side by side, and the pass that
normalises reduces them.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagonal.engine.kernels import tuning


def frame_norm(x_BTHWC: Tensor, weight: Tensor, bias: Tensor, eps: float, silu: bool) -> Tensor:
    """(x - mean) / std * weight + bias, mean and std over all of a frame; with SiLU behind it; in float32, rounded
    once."""
    x = x_BTHWC.contiguous()
    frames, size = x.shape[0] * x.shape[1], x[0, 0].numel()
    tuned = tuning.of(x.device).pointwise
    tile, each = tuned.tile, triton.cdiv(triton.cdiv(size, tuned.tile), tuned.frame_splits)  # tiles of a split
    splits = triton.cdiv(size, each * tile)
    sums = torch.empty(2, frames, splits, dtype=torch.float32, device=x.device)
    _sums[(splits, frames)](x, sums[0], sums[1], size, each, tile)
    out = torch.empty_like(x)
    _normed[(triton.cdiv(size, tile), frames)](
        *(x, weight, bias, sums[0], sums[1], out, size, x.shape[-1], splits, eps),
        *(silu, triton.next_power_of_2(splits), tile),
    )
    return out


def group_norm_silu(x_NCHW: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """silu of (x - mean) / std * weight + bias, mean and std over a group of channels of a frame; in float32, rounded
    once. Frames lie channels last, and so does the result."""
    if not x_NCHW.is_contiguous(memory_format=torch.channels_last):
        raise ValueError(f"frames with strides {x_NCHW.stride()} given; this kernel takes them channels last")
    tuned = tuning.of(x_NCHW.device).pointwise
    frames, channels, height, width = x_NCHW.shape
    pixels, block = height * width, triton.next_power_of_2(channels)
    rows = max(1, tuned.tile // block)  # pixels at a time
    each = triton.cdiv(triton.cdiv(pixels, rows), tuned.frame_splits)
    splits = triton.cdiv(pixels, each * rows)
    sums = torch.empty(2, frames, splits, channels, dtype=torch.float32, device=x_NCHW.device)
    _channel_sums[(splits, frames)](x_NCHW, sums[0], sums[1], pixels, channels, each, rows, block)
    stats = torch.empty(2, frames, groups, dtype=torch.float32, device=x_NCHW.device)
    own = channels // groups
    _group_stats[(groups, frames)](
        *(x_NCHW, sums[0], sums[1], stats[0], stats[1], pixels, channels, own, splits, eps),
        *(triton.next_power_of_2(own), triton.next_power_of_2(splits)),
    )
    out = torch.empty_like(x_NCHW)
    size = pixels * channels
    _group_normed[(triton.cdiv(size, tuned.tile), frames)](
        *(x_NCHW, weight, bias, stats[0], stats[1], out, size, channels, own, groups, tuned.tile)
    )
    return out


@triton.jit
def _channel_sums(x, firsts, seconds, pixels, channels, each, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of each channel of a split of a frame, and of its squares, both of the distance to its first pixel's."""
    split, frame = tl.program_id(0), tl.program_id(1)
    x += frame.to(tl.int64) * pixels * channels
    channel = tl.arange(0, BLOCK)[None, :]
    there = channel < channels
    origin = tl.load(x + channel, mask=there, other=0.0).to(tl.float32)
    first, second = tl.zeros([ROWS, BLOCK], tl.float32), tl.zeros([ROWS, BLOCK], tl.float32)
    for tile in range(split * each, (split + 1) * each):
        pixel = tile * ROWS + tl.arange(0, ROWS)[:, None]
        inside = there & (pixel < pixels)
        far = tl.load(x + pixel * channels + channel, mask=inside, other=0.0).to(tl.float32) - origin
        far = tl.where(inside, far, 0.0)
        first += far
        second += far * far
    to = (frame * tl.num_programs(0) + split) * channels + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < channels
    tl.store(firsts + to, tl.sum(first, 0), mask=inside)
    tl.store(seconds + to, tl.sum(second, 0), mask=inside)


@triton.jit
def _group_stats(
    x, firsts, seconds, means, scales, pixels, channels, own, splits, eps,
    OWN: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Mean, and one over the deviation, of a group of a frame, from the sums of its channels."""
    group, frame = tl.program_id(0), tl.program_id(1)
    channel, split = group * own + tl.arange(0, OWN), tl.arange(0, SPLITS)[:, None]
    there = tl.arange(0, OWN) < own
    at = (frame * splits + split) * channels + channel[None, :]
    inside = (split < splits) & there[None, :]
    first = tl.sum(tl.load(firsts + at, mask=inside, other=0.0), 0)
    second = tl.sum(tl.load(seconds + at, mask=inside, other=0.0), 0)
    origin = tl.load(x + frame.to(tl.int64) * pixels * channels + channel, mask=there, other=0.0).to(tl.float32)
    count = own * pixels
    base = tl.sum(origin, 0) / own
    mean = tl.sum(tl.where(there, (origin - base) * pixels + first, 0.0), 0) / count + base
    away = tl.where(there, origin - mean, 0.0)
    variance = tl.sum(second + 2 * away * first + pixels * away * away, 0) / count
    tl.store(means + frame * tl.num_programs(0) + group, mean)
    tl.store(scales + frame * tl.num_programs(0) + group, tl.rsqrt(variance + eps))


@triton.jit
def _group_normed(
    x, weight, bias, means, scales, out, size, channels, own, groups, TILE: tl.constexpr,
):  # fmt: skip
    """Some elements of a frame."""
    frame = tl.program_id(1)
    x += frame.to(tl.int64) * size
    out += frame.to(tl.int64) * size
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside, channel = at < size, at % channels
    group = frame * groups + channel // own
    mean = tl.load(means + group, mask=inside, other=0.0)
    value = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - mean) * tl.load(scales + group)
    value = value * tl.load(weight + channel).to(tl.float32) + tl.load(bias + channel).to(tl.float32)
    tl.store(out + at, (value * tl.sigmoid(value)).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _sums(x, firsts, seconds, size, each, TILE: tl.constexpr):
    """Sums of a split of a frame, and of its squares. Both are of the distance to the frame's first element: where all
    numbers are large and alike, little is lost to rounding."""
    split, frame = tl.program_id(0), tl.program_id(1)
    x += frame.to(tl.int64) * size
    origin = tl.load(x).to(tl.float32)
    first, second = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32)
    for tile in range(split * each, (split + 1) * each):
        at = tile * TILE + tl.arange(0, TILE)
        far = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32) - origin
        far = tl.where(at < size, far, 0.0)
        first += far
        second += far * far
    to = frame * tl.num_programs(0) + split
    tl.store(firsts + to, tl.sum(first, 0))
    tl.store(seconds + to, tl.sum(second, 0))


@triton.jit
def _normed(
    x, weight, bias, firsts, seconds, out, size, width, splits, eps,
    SILU: tl.constexpr, SPLITS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Some elements of a frame."""
    frame, split = tl.program_id(1), tl.arange(0, SPLITS)
    x += frame.to(tl.int64) * size
    out += frame.to(tl.int64) * size
    inside = split < splits
    mean = tl.sum(tl.load(firsts + frame * splits + split, mask=inside, other=0.0), 0) / size
    square = tl.sum(tl.load(seconds + frame * splits + split, mask=inside, other=0.0), 0) / size
    scale = tl.rsqrt(square - mean * mean + eps)
    mean += tl.load(x).to(tl.float32)
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = at < size
    value = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - mean) * scale
    value = value * tl.load(weight + at % width).to(tl.float32) + tl.load(bias + at % width).to(tl.float32)
    if SILU:
        value *= tl.sigmoid(value)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)
