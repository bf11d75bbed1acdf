"""The noise of sampling: a number by (seed, position, id) alone, computed where it is needed and stored nowhere.

    z    = seed * 0x9E3779B97F4A7C15 + position * 0xD1342543DE82EF95 + 0x2545F4914F6CDD1D        modulo 2^64
    key  = mix64(z)                     splitmix64's: ^= >> 30, *=, ^= >> 27, *=, ^= >> 31
    hash = mix32(mix32(id * 0x9E3779B1 ^ low half of key) ^ high half of key)                    modulo 2^32
    v    = (hash + 0.5) / 2^32          in float32, at most 1 - 2^-24
    E    = -log(1 - v)                  an exponential number; below 2^-8 by its series, so that small ones are precise

The id with the greatest weight / E is a draw by these weights: its logarithm is logit / temperature - log E, which is
Gumbel-max. So a token depends on neither the order nor the number of the steps that decode it. Twins of this file are
`kernels/triton/noise.py` and `kernels/cuda/noise.cuh`: the hash is the same bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 2**32 - 1
_SERIES = 2.0**-8  # below, v + v^2 / 2 + v^3 / 3 is -log(1 - v) to the last digit
_BELOW_ONE = 1 - 2.0**-24


def keys(seeds: Tensor, positions: Tensor) -> Tensor:
    """What the noise of a position of a sample depends on, 64 bits as int64: products there are modulo 2^64."""
    z = seeds * _signed(0x9E3779B97F4A7C15) + positions * _signed(0xD1342543DE82EF95) + 0x2545F4914F6CDD1D
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shifted(z, 31)


def hashes(keys: Tensor, ids: Tensor) -> Tensor:
    """32 bits for each id under a key, as int64."""
    h = (ids * 0x9E3779B1 & _WORD) ^ (keys & _WORD)
    return _mix32(_mix32(h).bitwise_xor_(_shifted(keys, 32)))


def exponential(keys: Tensor, ids: Tensor) -> Tensor:
    """E of ids under keys, in float32."""
    v = hashes(keys, ids).float().add_(0.5).mul_(2.0**-32).clamp_(max=_BELOW_ONE)
    series = (v / 3).add_(0.5).mul_(v).add_(1).mul_(v)
    return torch.where(v < _SERIES, series, (1 - v).log_().neg_())


def _mix32(h: Tensor) -> Tensor:
    """The end of MurmurHash3, in place."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h.bitwise_xor_(h >> shift).mul_(factor).bitwise_and_(_WORD)
    return h.bitwise_xor_(h >> 16)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """z >> bits of a number without a sign."""
    return torch.bitwise_and(z >> bits, 2 ** (64 - bits) - 1)


def _signed(constant: int) -> int:
    """The int64 of the same 64 bits."""
    return constant - 2**64 if constant >= 2**63 else constant
