"""Means with their intervals: bootstrap over clips."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

AT_ONCE = 2**14  # numbers that a bootstrap looks up at a time


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def wilson(hits: int, count: int) -> Interval:
    """The share of hits with Wilson's 95 % interval: (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)."""
    share, z2 = hits / count, 1.959963984540054**2
    middle, whole = share + z2 / (2 * count), 1 + z2 / count
    half = (z2 * (share * (1 - share) / count + z2 / (4 * count**2))) ** 0.5
    return Interval(share, (middle - half) / whole, (middle + half) / whole)


def bootstrap(values: FloatArray, draws: int = 2000, seed: int = 0) -> Interval:
    """Resample clips, and seeds within them: `values` is (clips, seeds); entries may be missing (nan)."""
    rng = np.random.default_rng(seed)
    clips, seeds = values.shape
    means = np.empty(draws)
    each = max(1, AT_ONCE // values.size)  # draws: a call of numpy costs more than adding a hundred numbers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where all are missing, so is the mean
        for first in range(0, draws, each):
            some = min(each, draws - first)
            rows = rng.integers(clips, size=(some, clips, 1))
            columns = rng.integers(seeds, size=(some, clips, seeds))
            means[first : first + some] = np.nanmean(values[rows, columns], axis=(1, 2))
        return Interval(float(np.nanmean(values)), *(float(x) for x in np.nanquantile(means, (0.025, 0.975))))


def resampled(statistic: Callable[[IntArray], float], count: int, draws: int = 200, seed: int = 0) -> Interval:
    """A statistic of clips, given by their numbers, with its 95 % bootstrap interval over clips.

    Distances between distributions grow when clips are drawn twice, so the draws are moved to lie around the value of
    all clips: their spread counts, not their mean.
    """
    rng = np.random.default_rng(seed)
    value = statistic(np.arange(count))
    drawn = np.array([statistic(rng.integers(count, size=count)) for _ in range(draws)])
    low, high = np.quantile(drawn - drawn.mean(), (0.025, 0.975))
    return Interval(value, value + float(low), value + float(high))


def correlation(one: FloatArray, two: FloatArray, draws: int = 2000, seed: int = 0) -> Interval:
    """Spearman's rank correlation of two numbers of every clip, with its 95 % bootstrap interval over clips."""

    def of(chosen: IntArray) -> float:
        return float(np.corrcoef(ranks(one[chosen]), ranks(two[chosen]))[0, 1])

    rng, count = np.random.default_rng(seed), len(one)
    low, high = np.quantile([of(rng.integers(count, size=count)) for _ in range(draws)], (0.025, 0.975))
    return Interval(of(np.arange(count)), float(low), float(high))


def ranks(values: FloatArray) -> FloatArray:
    """The place of each number among them; equal ones share the mean of their places."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle: FloatArray = np.cumsum(counts) - (counts - 1) / 2
    return middle[place]


def slope(curve: FloatArray, frames: int = 100) -> float:
    """How much a curve rises in so many frames, by the least-squares line through it; entries may be missing (nan)."""
    there = np.isfinite(curve)
    if there.sum() < 2:
        return float("nan")
    time = np.flatnonzero(there) - np.flatnonzero(there).mean()
    return frames * float(time @ curve[there] / (time @ time))
