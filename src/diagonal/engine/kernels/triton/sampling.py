"""Tokens from logits in one kernel: no sort, no synchronisation with the host, no size that depends on the data.

`draw` is `engine.sampler.sample` for a GPU. One thread block draws one row's token. All it needs of a row are sums
over the ids above a threshold, so it reads the row again and again, from cache:

    1. the greatest logit, the sum of all exp((x - origin) / temperature), and their mean and deviation
    2. top-k: the logit that crosses k - 1 when the ids above it are counted, by guesses that close in; then 1 again
    3. top-p: the same with sums of exponentials instead of counts
    4. the id with the greatest weight / E, where E is an exponential number of its own (`noise`)

The search is over the float32 numbers in their order (`_key`), or those of them that are bfloat16, so that thresholds
are exact. Normal logits take 3 to 5 readings in bfloat16, which has few values, and 5 to 9 in float32; none can take
more than GUESSES and 32. A token of top-p takes two more.

The cost of reading n ids once, for the sums above two thresholds: 11 or 12 operations each, of which a multiprocessor
of Hopper starts 128 per clock: n / 11 clocks, at 64,000 ids 5,800 clocks or 3.1 us. Behind them hide 5 comparisons and
choices, 64 per clock, an exponential, 16 per clock, and 2 or 4 bytes from the first-level cache, 128 per clock. From
main memory a row comes once. Rows run side by side, one per multiprocessor.
"""
# Triton's functions carry no types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagonal.engine.kernels import tuning
from diagonal.engine.kernels.targets import Targets
from diagonal.engine.kernels.triton import noise
from diagonal.engine.kernels.triton.pdl import options, wait
from diagonal.planning.sampling import Sampling


def draw(tokens_NL: Tensor, logits_RV: Tensor, targets: Targets, sampling: Sampling) -> None:
    """One id from each row, written to its place; the rule is that of `engine.sampler.sample`."""
    rows, ids = logits_RV.shape
    greedy = sampling.temperature == 0
    block, warps = _tile(ids, tuning.of(logits_RV.device).sampling.block)
    _sample[(rows,)](
        logits_RV,
        *targets.tensors,
        tokens_NL,
        targets.inputs,
        *(logits_RV.stride(0), *targets.strides, tokens_NL.stride(0)),
        1.0 if greedy else sampling.temperature,
        sampling.top_k or ids,
        1.0 if sampling.top_p is None else sampling.top_p,
        GREEDY=greedy,
        TOP_K=sampling.top_k is not None and sampling.top_k < ids,
        TOP_P=sampling.top_p is not None and sampling.top_p < 1,
        KEEP_CROSSING=sampling.keep_crossing,
        STEP=2**16 if logits_RV.dtype == torch.bfloat16 else 1,
        BLOCK=block,
        num_warps=warps,
        **options(logits_RV.device),
    )


def _tile(ids: int, most: int) -> tuple[int, int]:
    """Ids per block, and warps: 16 ids per thread, which are two 16-byte loads of bfloat16, but at least 4 warps."""
    block = min(max(triton.next_power_of_2(ids), 16), most)
    return block, min(max(block // 512, 4), 16)


LOG2_E = tl.constexpr(math.log2(math.e))
NOWHERE = tl.constexpr(2**31 - 1)  # above every id
FAR = tl.constexpr(16)  # powers of 2 by which a weight may exceed 1: more would cost digits
GUESSES = tl.constexpr(16)
FEW = tl.constexpr(16)  # ids, among which the search goes from one to the next
# By trial on normal, Laplace, Zipf and mixed logits; half or twice as much takes no fewer readings.
BEGIN = tl.constexpr(0.15)  # deviations to either side of the first guess
NOISE = tl.constexpr(0.3)  # of n ids in the interval: the crossing is this / sqrt(n) intervals off the straight line
BEND = tl.constexpr(0.1)  # since the line is none: and off by this many intervals, per deviation in the interval
AWAY = tl.constexpr(0.15)  # of an interval: so far from its ends is a guess among few ids


@triton.jit
def _key(x):
    """An integer for a float32 number, in the same order; one for both zeros. Multiples of 2^16 for bfloat16."""
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
def _load_next(row, start, low, high, BLOCK: tl.constexpr):
    """Logits of the block after this one; after the last the first again, unused, but sooner read than masked ones."""
    after = tl.where(start + BLOCK < high, start + BLOCK, low // BLOCK * BLOCK)
    return _load(row, after, low, high, BLOCK)[1]


@triton.jit
def _weight(x, origin, scale):
    """exp((x - origin) / temperature), or 1 without a scale."""
    return 1.0 if scale is None else tl.exp2((x - origin) * scale)


@triton.jit
def _fours(x):
    """Four neighbours to a row. A thread has them all, so it reduces them by itself and keeps fewer registers."""
    return tl.reshape(x, [x.shape[0] // 4, 4])


@triton.jit
def _survey(row, low, high, floor, origin, scale, BLOCK: tl.constexpr):
    """The least valid logit above the floor, the greatest, the weight, and the mean and deviation of x - origin."""
    least = tl.full([BLOCK // 4], float("inf"), tl.float32)
    greatest = tl.full([BLOCK // 4], -float("inf"), tl.float32)
    masses = tl.zeros([BLOCK], tl.float32)
    firsts, seconds = tl.zeros([BLOCK // 4], tl.float32), tl.zeros([BLOCK // 4], tl.float32)
    begin = low // BLOCK * BLOCK
    _, x = _load(row, begin, low, high, BLOCK)
    for start in range(begin, high, BLOCK):
        ahead = _load_next(row, start, low, high, BLOCK)
        above = x > floor
        weights, distances = tl.where(above, _weight(x, origin, scale), 0.0), tl.where(above, x - origin, 0.0)
        least = tl.minimum(least, tl.min(_fours(tl.where(above, x, float("inf"))), axis=1))
        greatest = tl.maximum(greatest, tl.max(_fours(x), axis=1))
        masses += weights
        firsts += tl.sum(_fours(weights * distances), axis=1)
        seconds += tl.sum(_fours(weights * distances * distances), axis=1)
        x = ahead
    whole = tl.sum(masses, axis=0)
    mean = tl.sum(firsts, axis=0) / whole
    deviation = tl.sqrt(tl.maximum(tl.sum(seconds, axis=0) / whole - mean * mean, 0.0))
    return tl.min(least, axis=0), tl.max(greatest, axis=0), whole, mean, deviation


@triton.jit
def _masses(row, low, high, lower, upper, origin, scale, BLOCK: tl.constexpr):
    """The weight of all valid logits above each of two numbers."""
    lowers, uppers = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    begin = low // BLOCK * BLOCK
    _, x = _load(row, begin, low, high, BLOCK)
    for start in range(begin, high, BLOCK):
        ahead = _load_next(row, start, low, high, BLOCK)
        weights = tl.where(x > lower, _weight(x, origin, scale), 0.0)
        lowers += weights
        uppers += tl.where(x > upper, weights, 0.0)
        x = ahead
    return tl.sum(lowers, axis=0), tl.sum(uppers, axis=0)


@triton.jit
def _split(row, low, high, floor, origin, scale, BLOCK: tl.constexpr):
    """The weight of all valid logits above the floor, the least of them, and the greatest of the others."""
    masses = tl.zeros([BLOCK], tl.float32)
    over = tl.full([BLOCK], float("inf"), tl.float32)
    under = tl.full([BLOCK], -float("inf"), tl.float32)
    begin = low // BLOCK * BLOCK
    _, x = _load(row, begin, low, high, BLOCK)
    for start in range(begin, high, BLOCK):
        ahead = _load_next(row, start, low, high, BLOCK)
        masses += tl.where(x > floor, _weight(x, origin, scale), 0.0)
        over = tl.minimum(over, tl.where(x > floor, x, float("inf")))
        under = tl.maximum(under, tl.where(x > floor, -float("inf"), x))
        x = ahead
    return tl.sum(masses, axis=0), tl.min(over, axis=0), tl.max(under, axis=0)


@triton.jit
def _quantile(part):
    """The number of deviations below which this part of a normal distribution lies: Tukey's approximation."""
    return (tl.exp2(0.135 * tl.log2(part)) - tl.exp2(0.135 * tl.log2(1 - part))) / 0.1975


@triton.jit
def _crossing(
    row, low, high, first, top, origin, scale, limit, whole, mean, deviation, STEP: tl.constexpr, BLOCK: tl.constexpr
):
    """The key of the logit whose weight, added to that of all greater ones, first exceeds the limit.

    It lies in (left, right], whose ends are multiples of STEP as all logits are: what is above `right` weighs the limit
    at most, `light`, what is above `left` more, `heavy`. Each reading tries two numbers to either side of a guess,
    nearly always of the crossing too: at first where a normal distribution would have it, then where a straight line
    between the two bounds meets the limit. If it is missed, the next two are further apart. Among few ids one number is
    tried, after GUESSES readings the middle, and a bound moves to the next logit there is: so there is an end. If all
    together weigh no more than the limit, it is the key after `first`.
    """
    left, heavy, light = first + 0, whole + 0, whole * 0
    right = tl.where(whole <= limit, first + STEP, _key(top))
    guess, reach = origin + mean - deviation * _quantile(limit / whole), BEGIN * deviation
    ids, slack, readings = float("inf"), 1.0, 0
    while right - STEP > left:  # a floor that is no number has the greatest key there is: no STEP may be added to it
        if (ids > FEW) & (readings < GUESSES):
            lower = tl.minimum(tl.maximum(_key(guess - reach) & -STEP, left + STEP), right - STEP)
            upper = tl.minimum(tl.maximum(_key(guess + reach) & -STEP, lower + STEP), right - STEP)
            mass, rest = _masses(row, low, high, _number(lower), _number(upper), origin, scale, BLOCK)
            slack = 1.0 if (mass > limit) & (rest <= limit) else slack * 2
            if mass <= limit:
                right, light = lower, mass
            elif rest <= limit:
                left, heavy, right, light = lower, mass, upper, rest
            else:
                left, heavy = upper, rest
        else:
            middle = (left >> 1) + (right >> 1) + (left & right & 1)  # the sum of two keys may be no int32
            middle = tl.where(readings < GUESSES, _key(guess), middle) & -STEP
            middle = tl.minimum(tl.maximum(middle, left + STEP), right - STEP)
            mass, over, under = _split(row, low, high, _number(middle), origin, scale, BLOCK)
            if mass <= limit:
                right, light = tl.maximum(_key(under), left + STEP), mass
            else:
                left, heavy = _key(over) - STEP, mass
        lowest = _number(left)
        width, part = _number(right) - lowest, (heavy - limit) / (heavy - light)
        ids = (heavy - light) / _weight(lowest + width * part, origin, scale)
        part = tl.where(ids > FEW, part, tl.minimum(tl.maximum(part, AWAY), 1 - AWAY))
        guess = lowest + width * part
        reach = tl.minimum(slack * width * (NOISE / tl.sqrt(ids) + BEND * width / deviation), width / 3)
        readings += 1
    return right


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
def _winner(row, low, high, floor, origin, scale, seed, position, BLOCK: tl.constexpr):
    """The valid id above the floor with the greatest weight / E, of equals the first; -1 if no id has any weight."""
    key_low, key_high = noise.key(seed, position)
    best, winners = tl.zeros([BLOCK], tl.float32), tl.full([BLOCK], NOWHERE, tl.int32)
    for start in range(low // BLOCK * BLOCK, high, BLOCK):
        ids, x = _load(row, start, low, high, BLOCK)
        above = x > floor
        if tl.max(above.to(tl.int32), axis=0) > 0:
            weights = tl.where(above, _weight(x, origin, scale), 0.0)
            scores = weights / noise.exponential(key_low, key_high, ids)
            better = scores > best
            best, winners = tl.where(better, scores, best), tl.where(better, ids, winners)
    token = tl.min(tl.where(best == tl.max(best, axis=0), winners, NOWHERE), axis=0)
    return tl.where(token == NOWHERE, -1, token)


@triton.jit
def _sample(
    logits,
    slots,
    positions,
    seeds,
    lows,
    highs,
    rows,  # None: as samples are numbered
    tokens,
    inputs,  # of a sample
    stride,
    slot_stride,
    position_stride,
    token_stride,
    temperature,
    top_k,
    top_p,
    GREEDY: tl.constexpr,
    TOP_K: tl.constexpr,
    TOP_P: tl.constexpr,
    KEEP_CROSSING: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """The token of one row."""
    if PDL:
        wait()
    index = tl.program_id(0).to(tl.int64)
    row, batch, place = logits + index * stride, index // inputs, index % inputs
    slot = tl.load(slots + batch * slot_stride + place)
    low, high = tl.load(lows + slot).to(tl.int32), tl.load(highs + slot).to(tl.int32)
    floor, scale = -float("inf"), LOG2_E / temperature
    origin = tl.max(_load(row, low // BLOCK * BLOCK, low, high, BLOCK)[1], axis=0)  # for want of the top
    if GREEDY:
        _, top, _, _, _ = _survey(row, low, high, floor, origin, None, BLOCK)
        token = _first_at(row, low, high, top, BLOCK)
    else:
        if TOP_K:
            bottom, top, count, mean, deviation = _survey(row, low, high, floor, origin, None, BLOCK)
            # The k greatest, and those equal to the last of them: with weights of 1, what crosses k - 1, and all above.
            first = _key(bottom) - STEP
            crossing = _crossing(
                row, low, high, first, top, origin, None, top_k - 1.0, count, mean, deviation, STEP, BLOCK
            )
            floor, origin = _number(crossing - STEP), top
            _, _, whole, mean, deviation = _survey(row, low, high, floor, origin, scale, BLOCK)
        else:
            _, top, whole, mean, deviation = _survey(row, low, high, floor, origin, scale, BLOCK)
            if (top - origin) * scale > FAR:
                origin = top
                _, _, whole, mean, deviation = _survey(row, low, high, floor, origin, scale, BLOCK)
        if TOP_P:
            # Below this number n ids cannot weigh 1 - top_p of the whole, since each weighs less than
            # exp((number - origin) / temperature). Less one temperature and one step: more than all rounding here.
            near = origin + (tl.log2((1 - top_p) * whole / (high - low)) - LOG2_E) / scale
            first = tl.maximum((_key(near) & -STEP) - STEP, _key(floor))
            crossing = _crossing(
                row, low, high, first, top, origin, scale, top_p * whole, whole, mean, deviation, STEP, BLOCK
            )
            # What crosses is kept, or is not; the greatest are in any case.
            kept = KEEP_CROSSING | (crossing == _key(top))
            floor = _number(tl.where(kept, crossing - STEP, crossing))
        seed, position = tl.load(seeds + batch), tl.load(positions + batch * position_stride + place)
        token = _winner(row, low, high, floor, origin, scale, seed, position, BLOCK)
    target = batch if rows is None else tl.load(rows + batch)
    tl.store(tokens + target * token_stride + slot, token.to(tl.int64))
