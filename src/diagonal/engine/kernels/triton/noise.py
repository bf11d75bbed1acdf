"""The noise of sampling, a number by (seed, position, id) alone: twin of `engine/noise.py`, which says what for."""
# Triton's functions carry no types.
# mypy: allow-untyped-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def key(seed, position):
    """The low and the high half of a key."""
    z = seed.to(tl.uint64) * 0x9E3779B97F4A7C15 + position.to(tl.uint64) * 0xD1342543DE82EF95 + 0x2545F4914F6CDD1D
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z = z ^ (z >> 31)
    return z.to(tl.uint32), (z >> 32).to(tl.uint32)


@triton.jit
def _mix32(h):
    h = (h ^ (h >> 16)) * 0x85EBCA6B
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    return h ^ (h >> 16)


@triton.jit
def exponential(low, high, ids):
    """E of ids under a key: exponential numbers."""
    h = _mix32(_mix32((ids.to(tl.uint32) * 0x9E3779B1) ^ low) ^ high)
    v = tl.minimum((h.to(tl.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)
    return tl.where(v < 2.0**-8, v * (1 + v * (0.5 + v * (1.0 / 3))), -tl.log(1 - v))
