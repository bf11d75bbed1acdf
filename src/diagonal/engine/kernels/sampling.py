"""Tokens from logits in one kernel: no sort, no question to the host, no size that depends on the data.

`sample` here is `engine.sampler.sample` for a GPU. One program draws one row's token. All it needs of a row are sums
over the ids above a threshold, so it reads the row again and again, from cache:

    1. top, the greatest valid logit, and bottom, the least finite one
    2. top-k: the logit that crosses k - 1 when the ids above it are counted, by guesses that close in on it
    3. top-p: the same with sums of exp((x - top) / temperature) instead of counts
    4. the sum over the ids above the threshold, and the first id at which the running sum exceeds uniform * sum

The search is over the float32 numbers in their order (`_key`), so that thresholds are exact. Normal logits take 7 to 10
readings in bfloat16, which has few values near the top, and at 64,000 ids 8 to 13 in float32; none can take more than
GUESSES and 32.

The cost of reading n ids once: an exponential each, of which a multiprocessor of Hopper does 16 per clock, and about
ten other operations, 128 per clock: n / 13 clocks, at 64,000 ids 5,000 clocks or 2.8 us. The 2n or 4n bytes, from the
first-level cache at 128 bytes per clock, take a fifth or two fifths of that. From main memory a row comes once. Rows
run side by side, one per multiprocessor.
"""
# Triton's functions carry no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagonal.engine.protocols import Sampling


def sample(logits_RV: Tensor, low_R: Tensor, high_R: Tensor, uniform_R: Tensor, sampling: Sampling) -> Tensor:
    """One id (R,) from each row; the rule is that of `engine.sampler.sample`."""
    rows, ids = logits_RV.shape
    if logits_RV.stride(1) != 1:
        raise ValueError(f"logits with strides {logits_RV.stride()} given; a row's ids must lie side by side")
    drawn_R = torch.empty(rows, dtype=torch.long, device=logits_RV.device)
    greedy = sampling.temperature == 0
    block, warps = _tile(ids)
    _sample[(rows,)](
        logits_RV,
        low_R,
        high_R,
        uniform_R,
        drawn_R,
        logits_RV.stride(0),
        1.0 if greedy else sampling.temperature,
        sampling.top_k or ids,
        1.0 if sampling.top_p is None else sampling.top_p,
        GREEDY=greedy,
        TOP_K=sampling.top_k is not None and sampling.top_k < ids,
        TOP_P=sampling.top_p is not None and sampling.top_p < 1,
        KEEP_CROSSING=sampling.keep_crossing,
        BLOCK=block,
        num_warps=warps,
    )
    return drawn_R


def _tile(ids: int) -> tuple[int, int]:
    """Ids per block, and warps: 16 ids per thread, which are two 16-byte loads of bfloat16, but at least 4 warps."""
    block = min(triton.next_power_of_2(ids), 8192)
    return block, min(max(block // 512, 4), 16)


LOG2_E = tl.constexpr(math.log2(math.e))
NOWHERE = tl.constexpr(2**31 - 1)  # above every id
GUESSES = tl.constexpr(16)


@triton.jit
def _key(x):
    """An integer for a float32 number, in the same order; one for both zeros."""
    size = tl.abs(x).to(tl.int32, bitcast=True)
    return tl.where(x < 0, -size, size)


@triton.jit
def _number(key):
    """The float32 number of a key: the inverse of `_key`."""
    size = tl.abs(key).to(tl.float32, bitcast=True)
    return tl.where(key < 0, -size, size)


@triton.jit
def _load(row, start, low, high, BLOCK: tl.constexpr):
    """Ids and logits of one block; -inf where an id is not valid."""
    ids = start + tl.arange(0, BLOCK)
    if (start >= low) & (start + BLOCK <= high):  # without a mask, loads are 16 bytes wide
        x = tl.load(row + ids)
    else:
        x = tl.load(row + ids, mask=(ids >= low) & (ids < high), other=-float("inf"))
    return ids, x.to(tl.float32)


@triton.jit
def _weights(x, floor, top, scale):
    """exp((x - top) / temperature) of what is above the floor, 0 elsewhere."""
    return tl.where(x > floor, tl.exp2((x - top) * scale), 0.0)


@triton.jit
def _bounds(row, low, high, BLOCK: tl.constexpr):
    """The least finite and the greatest valid logit."""
    least = tl.full([BLOCK], float("inf"), tl.float32)
    greatest = tl.full([BLOCK], -float("inf"), tl.float32)
    for start in range(low // BLOCK * BLOCK, high, BLOCK):
        _, x = _load(row, start, low, high, BLOCK)
        least = tl.minimum(least, tl.where(x > -float("inf"), x, float("inf")))
        greatest = tl.maximum(greatest, x)
    return tl.min(least, axis=0), tl.max(greatest, axis=0)


@triton.jit
def _mass(row, low, high, floor, top, scale, BLOCK: tl.constexpr):
    """The weight of all valid logits above the floor."""
    masses, begin = tl.zeros([BLOCK], tl.float32), low // BLOCK * BLOCK
    _, x = _load(row, begin, low, high, BLOCK)
    for start in range(begin, high, BLOCK):
        _, ahead = _load(row, start + BLOCK, low, high, BLOCK)  # on its way while this block is summed
        masses += _weights(x, floor, top, scale)
        x = ahead
    return tl.sum(masses, axis=0)


@triton.jit
def _split(row, low, high, floor, top, scale, BLOCK: tl.constexpr):
    """The weight of all valid logits above the floor, the least of them, and the greatest of the others."""
    masses = tl.zeros([BLOCK], tl.float32)
    over = tl.full([BLOCK], float("inf"), tl.float32)
    under = tl.full([BLOCK], -float("inf"), tl.float32)
    begin = low // BLOCK * BLOCK
    _, x = _load(row, begin, low, high, BLOCK)
    for start in range(begin, high, BLOCK):
        _, ahead = _load(row, start + BLOCK, low, high, BLOCK)
        masses += _weights(x, floor, top, scale)
        over = tl.minimum(over, tl.where(x > floor, x, float("inf")))
        under = tl.maximum(under, tl.where(x > floor, -float("inf"), x))
        x = ahead
    return tl.sum(masses, axis=0), tl.min(over, axis=0), tl.max(under, axis=0)


@triton.jit
def _crossing(row, low, high, left, top, scale, limit, whole, BLOCK: tl.constexpr):
    """The key of the logit whose weight, added to that of all greater ones, first exceeds the limit.

    It lies in (left, right]: what is above `right` weighs the limit at most, what is above `left` weighs more: `whole`
    at first. Each reading tries the number at which a straight line between the two would meet the limit, and then
    moves a bound to the next logit there is, so equal logits cost no more. A bound that stays twice counts half (the
    Illinois rule), and after GUESSES readings the middle is tried, so that there is an end. If all together weigh no
    more than the limit, it is the key after the first `left`.
    """
    right = _key(top)
    more, less = whole - limit, limit  # what is above `left` weighs more than the limit, and above `right` less than it
    stayed, readings = 0, 0
    while right - 1 > left:  # a floor that is no number has the greatest key there is: no 1 may be added to it
        middle = (left >> 1) + (right >> 1) + (left & right & 1)  # the sum of two keys may be no int32
        if readings < GUESSES:
            lowest = _number(left)
            guess = _key(lowest + (_number(right) - lowest) * (more / (more + less)))
            middle = tl.minimum(tl.maximum(guess, left + 1), right - 1)
        mass, over, under = _split(row, low, high, _number(middle), top, scale, BLOCK)
        if mass <= limit:
            right, less = tl.maximum(_key(under), left + 1), limit - mass
            more = more * 0.5 if stayed == 1 else more
            stayed = 1
        else:
            left, more = _key(over) - 1, mass - limit
            less = less * 0.5 if stayed == 2 else less
            stayed = 2
        readings += 1
    return right


@triton.jit
def _top_k_floor(row, low, high, floor, top, k, BLOCK: tl.constexpr):
    """The k greatest logits, and those equal to the last of them, are above this number: with weights of 1, the logit
    that crosses k - 1, and all greater ones."""
    return _number(_crossing(row, low, high, _key(floor), top, 0.0, k - 1.0, high - low + 0.0, BLOCK) - 1)


@triton.jit
def _top_p_floor(row, low, high, floor, top, scale, top_p, KEEP_CROSSING: tl.constexpr, BLOCK: tl.constexpr):
    """The nucleus of the logits above `floor` is above this number.

    The search starts at a number below which n ids cannot weigh 1 - top_p of the whole, since each weighs less than
    exp((number - top) / temperature).
    """
    whole = _mass(row, low, high, floor, top, scale, BLOCK)
    spare = tl.log2((1 - top_p) * whole / (high - low)) / scale
    # Less one temperature and one float32 step, which is more than all rounding here.
    near = _key(top + spare - LOG2_E / scale) - 1
    crossing = _crossing(row, low, high, tl.maximum(near, _key(floor)), top, scale, top_p * whole, whole, BLOCK)
    # What crosses is kept, or is not; the greatest are in any case.
    return _number(crossing - 1 if KEEP_CROSSING else tl.minimum(crossing, _key(top) - 1))


@triton.jit
def _first_at(row, low, high, value, BLOCK: tl.constexpr):
    """The first valid id with this logit; -1 if there is none, or if it is -inf."""
    first = tl.full([BLOCK], NOWHERE, tl.int32)
    for start in range(low // BLOCK * BLOCK, high, BLOCK):
        ids, x = _load(row, start, low, high, BLOCK)
        first = tl.minimum(first, tl.where((x == value) & (x > -float("inf")), ids, NOWHERE))
    found = tl.min(first, axis=0)
    return tl.where(found == NOWHERE, -1, found)


@triton.jit
def _walk(row, low, high, floor, top, scale, uniform, BLOCK: tl.constexpr):
    """The first id above the floor at which the running weight exceeds `uniform` of the whole.

    The last id with any weight, where rounding leaves the running weight below; -1 if no id has any.
    """
    target = uniform * _mass(row, low, high, floor, top, scale, BLOCK)
    first, last, before = NOWHERE, -1, 0.0
    start = low // BLOCK * BLOCK
    while (start < high) & (first == NOWHERE):
        ids, x = _load(row, start, low, high, BLOCK)
        weights = _weights(x, floor, top, scale)
        past = (before + tl.cumsum(weights, axis=0) > target) & (weights > 0)
        first = tl.min(tl.where(past, ids, NOWHERE), axis=0)
        last = tl.maximum(last, tl.max(tl.where(weights > 0, ids, -1), axis=0))
        before += tl.sum(weights, axis=0)
        start += BLOCK
    return tl.where(first == NOWHERE, last, first)


@triton.jit
def _sample(
    logits,
    lows,
    highs,
    uniforms,
    drawn,
    stride,
    temperature,
    top_k,
    top_p,
    GREEDY: tl.constexpr,
    TOP_K: tl.constexpr,
    TOP_P: tl.constexpr,
    KEEP_CROSSING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The token of one row."""
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * stride
    low, high = tl.load(lows + index).to(tl.int32), tl.load(highs + index).to(tl.int32)
    bottom, top = _bounds(row, low, high, BLOCK)
    if GREEDY:
        token = _first_at(row, low, high, top, BLOCK)
    else:
        scale = LOG2_E / temperature
        floor = _number(_key(bottom) - 1)
        if TOP_K:
            floor = _top_k_floor(row, low, high, floor, top, top_k, BLOCK)
        if TOP_P:
            floor = _top_p_floor(row, low, high, floor, top, scale, top_p, KEEP_CROSSING, BLOCK)
        token = _walk(row, low, high, floor, top, scale, tl.load(uniforms + index), BLOCK)
    tl.store(drawn + index, token.to(tl.int64))
