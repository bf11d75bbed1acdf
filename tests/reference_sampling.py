"""The rule of sampling, word for word and in float64: what `sample` and its kernel are tested against."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from diagonal import Sampling
from diagonal.engine.kernels.select import Draw

TINY = 1e-5  # of the whole: float32 may err by so much
NEAR = 1e-4  # by which float32 may err in logit / temperature - log E
SAMPLINGS = [
    Sampling(temperature=0),
    Sampling(),
    Sampling(temperature=1e-4),
    Sampling(temperature=1e4, top_p=0.5),
    Sampling(top_k=1),
    Sampling(temperature=2, top_k=7),
    Sampling(top_k=10_000, top_p=1.0),
    Sampling(top_p=0.8),
    Sampling(top_p=0.8, keep_crossing=False),
    Sampling(top_p=1e-6),
    Sampling(top_p=1e-6, keep_crossing=False),
    Sampling(temperature=1e-4, top_p=0.9, keep_crossing=False),
    Sampling(temperature=0.7, top_k=20, top_p=0.9),
    Sampling(temperature=0.7, top_k=20, top_p=0.9, keep_crossing=False),
]


class Rows(NamedTuple):
    """What tokens are drawn from."""

    logits: Tensor
    low: Tensor  # valid ids [low, high)
    high: Tensor
    seeds: Tensor
    positions: Tensor


def rows(kind: str, count: int, size: int, seed: int) -> Rows:
    """Random rows of a kind; NaN stands wherever no one may look."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, size, generator=generator)
    low = torch.randint(size // 3, (count,), generator=generator)
    high = torch.randint(size // 2, size + 1, (count,), generator=generator)
    low[0], high[0] = 0, size
    if kind == "bfloat16":
        logits = logits.bfloat16()
    elif kind == "ties":
        logits = logits.round()  # among them both zeros
    elif kind == "infinite":
        logits[torch.rand(count, size, generator=generator) < 0.5] = -torch.inf
        logits[:, size // 3] = 1.0
    elif kind == "single":
        high = low + 1
    elif kind == "equal":
        logits[:] = -2.5
    elif kind == "two":
        logits = torch.where(logits > 1, 1.5, -0.25).bfloat16()
    elif kind == "wide":  # both signs, from subnormal numbers to 1e30
        logits *= 10.0 ** torch.randint(-43, 31, (count, size), generator=generator)
    elif kind == "tiny":  # subnormal alone
        logits *= 1e-40
    elif kind == "rising":  # the greatest are far above all before them
        logits += torch.linspace(-90, 10, size)
    elif kind == "peaked":  # what crosses is next to the top, and far above the rest
        logits[:, size // 3 : size // 3 + 3] += 20
    seeds, positions = torch.randint(2**62, (2, count), generator=generator)
    seeds[0], seeds[1:3], positions[1:3] = 2**63 - 1, 0, torch.arange(2)
    ids = torch.arange(size)
    logits[(ids < low[:, None]) | (ids >= high[:, None])] = torch.nan
    padded = torch.full((count, size + 5), torch.nan, dtype=logits.dtype)
    padded[:, :size] = logits
    return Rows(padded[:, :size], low, high, seeds, positions)


def on(device: str, given: Rows) -> Rows:
    return Rows(*(one.to(device) for one in given))


KINDS = [
    "float32",
    "bfloat16",
    "ties",
    "infinite",
    "single",
    "equal",
    "two",
    "wide",
    "tiny",
    "rising",
    "peaked",
]


def probabilities(logits_V: Tensor, sampling: Sampling) -> Tensor:
    """What is drawn from, in float64: top-k, then top-p over the softmax of the rest; equal logits share their fate."""
    x = logits_V.double()
    more = x[None, :] > x[:, None]  # more[i, j]: j is likelier than i
    if sampling.top_k is not None:
        x = x.masked_fill(more.sum(-1) >= sampling.top_k, -torch.inf)
    probs = ((x - x.max()) / sampling.temperature).softmax(-1)
    if sampling.top_p is not None and sampling.top_p < 1:
        likelier = more.double() @ probs
        same = (x[None, :] == x[:, None]).double() @ probs
        keep = likelier <= sampling.top_p if sampling.keep_crossing else likelier + same <= sampling.top_p
        probs = torch.where(keep | (x == x.max()), probs, 0.0)
    return probs / probs.sum()


def mix32(h: int) -> int:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ h >> shift) * factor % 2**32
    return h ^ h >> 16


def key(seed: int, position: int) -> int:
    z = (seed * 0x9E3779B97F4A7C15 + position * 0xD1342543DE82EF95 + 0x2545F4914F6CDD1D) % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ z >> shift) * factor % 2**64
    return z ^ z >> 31


def hashed(seed: int, position: int, index: int) -> int:
    """The 32 bits of an id, by integers that never overflow."""
    high, low = divmod(key(seed, position), 2**32)
    return mix32(mix32(index * 0x9E3779B1 % 2**32 ^ low) ^ high)


def log_exponentials(seed: int, position: int, low: int, high: int) -> Tensor:
    """log E of the ids [low, high), in float64 but for v."""
    bits = np.array([hashed(seed, position, index) for index in range(low, high)], dtype=np.uint32)
    v = np.minimum((bits.astype(np.float32) + np.float32(0.5)) / np.float32(2**32), np.float32(1 - 2**-24))
    return torch.from_numpy(np.log(-np.log1p(-v.astype(np.float64))))


def possible(given: Rows, row: int, sampling: Sampling) -> list[int]:
    """The id that the rule draws from a row, and after it those that it draws if numbers are a trifle off."""
    low, high, seed, position = (int(one[row]) for one in given[1:])
    logits_V = given.logits[row, low:high]
    x = logits_V.double()
    if sampling.temperature == 0:
        return [low + int(x.argmax())]
    ids = []
    scores = (x - x.max()) / sampling.temperature - log_exponentials(seed, position, low, high)
    for off in (0, -TINY, TINY):
        changed = sampling if sampling.top_p is None else replace(sampling, top_p=min(sampling.top_p * (1 + off), 1.0))
        left = scores.where(probabilities(logits_V, changed) > 0, -torch.inf)
        ids += [int(left.argmax()), *(left > left.max() - NEAR).nonzero().flatten().tolist()]
    return [low + index for index in ids]


def agree(given: Rows, drawn: Tensor, sampling: Sampling) -> None:
    """What was drawn is what the rule draws."""
    assert drawn.dtype == torch.long and drawn.shape == (len(given[0]),)
    for row, found in enumerate(drawn.tolist()):
        ids = possible(given, row, sampling)
        assert found in ids, f"row {row} under {sampling}: id {found} drawn, the rule says {ids[0]}"


def check(draw: Draw, kind: str, sampling: Sampling, size: int, device: str = "cpu") -> None:
    """Draw from random rows and compare with the rule."""
    given = rows(kind, 6, size, seed=SAMPLINGS.index(sampling))
    agree(given, draw(*on(device, given), sampling).cpu(), sampling)


def p_value(drawn: Tensor, probs: Tensor) -> float:
    """How likely counts are at least so far from their expectation, by the chi-square distribution."""
    expected = probs.double() * len(drawn)
    counts = drawn.bincount(minlength=len(probs)).double()
    assert not counts[expected == 0].any()
    likely = expected > 0
    distance = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    return float(torch.special.gammaincc((likely.sum() - 1) / 2, distance / 2))
