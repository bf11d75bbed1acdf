"""Noise levels of flow matching: a table from timesteps to sigma, the noise level.

x_t = (1 - sigma) * x0 + sigma * noise. The table spaces a line l from 1 to 0 evenly, shifts it towards the noise,
sigma = s*l / (1 + (s - 1)*l), and calls 1000 * sigma the timestep. So a level may be given in two ways:

    100    a step of the line, before the shift: with s = 5 it is the timestep 357.14
    t100   the timestep itself, after the shift
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

START = 1000.0  # the timestep of pure noise
CLEAN, LAST = "clean", "last"
LEVEL = re.compile(r"t(?:[0-9]{1,4}(?:\.[0-9]{1,9})?)|[0-9]{1,4}")

FloatArray = NDArray[np.float32]
T = TypeVar("T")
Line = TypeVar("Line", float, FloatArray, NDArray[np.float64])


@dataclass(frozen=True, slots=True)
class FlowTable:
    """The levels of a model that was trained with this shift."""

    shift: float
    steps: int = 1000

    def __post_init__(self) -> None:
        if not (math.isfinite(self.shift) and self.shift > 0):
            raise ValueError(f"shift {self.shift} given; it must be a number above 0 (Self-Forcing: 5, CausVid: 8)")
        if self.steps < 1:
            raise ValueError(f"a table of {self.steps} steps given; it must have at least 1")

    @property
    def sigmas(self) -> FloatArray:
        """Sigma of each entry, from 1 down; the clean 0 is no entry."""
        return _sigmas(self.shift, self.steps)

    @property
    def timesteps(self) -> FloatArray:
        """The timestep of each entry, from 1000 down."""
        return self.sigmas * np.float32(START)

    def sigma(self, t: float) -> float:
        """Sigma at the entry nearest to the timestep t. At t = 0 that is the last entry, not 0: a clean
        latent is fed as it is, without being noised."""
        if not 0 <= t <= START:
            raise ValueError(f"timestep {t} given; it must be 0 (clean) to 1000 (noise)")
        return float(self.sigmas[np.abs(self.timesteps - np.float32(t)).argmin()])

    def warp(self, indices: Iterable[int]) -> tuple[float, ...]:
        """The timesteps of steps of the line, before the shift: `steps` is the noise, 0 is clean."""
        given = tuple(indices)
        wrong = [index for index in given if not 0 <= index <= self.steps]
        if wrong:
            raise ValueError(f"step {wrong[0]} given; before the shift it must be 0 (clean) to {self.steps} (noise)")
        return tuple(float(self.timesteps[self.steps - index]) if index else 0.0 for index in given)

    def level(self, text: str) -> float:
        """The timestep that a text such as '100' or 't100' means."""
        if LEVEL.fullmatch(text) is None:
            raise ValueError(
                f"noise level {text!r} is not understood; it must be a whole step before the shift such as 100, or a "
                "timestep after it such as t100 or t357.14"
            )
        if not text.startswith("t"):
            return self.warp([int(text)])[0]
        if float(text[1:]) > START:
            raise ValueError(f"noise level {text!r} given; a timestep must be t0 to t1000")
        return float(text[1:])

    def extra(self, context: str, last: float) -> float | None:
        """The level of the call that writes the cache, for a chunk whose denoising ends at the level `last`."""
        if context == LAST:
            return None
        level = 0.0 if context == CLEAN else self.level(context)
        return None if level == last else level


def digits(steps: str) -> tuple[int, ...]:
    """The number of steps of each chunk."""
    if re.fullmatch("[1-9]+", steps) is None:
        raise ValueError(
            f"steps {steps!r} given; they must be digits of 1 to 9, one for each chunk, such as 4322222: "
            "the last repeats for longer videos"
        )
    return tuple(map(int, steps))


def repeated(items: Sequence[T], chunk: int) -> T:
    """The chunk's item, where the last one repeats."""
    if chunk < 0:
        raise ValueError(f"chunk {chunk} given; chunks are counted from 0")
    return items[min(chunk, len(items) - 1)]


def check_descending(levels: Sequence[float], what: str) -> None:
    """Refuse levels that no denoising can follow."""
    falling = all(high > low for high, low in itertools.pairwise(levels))
    if not falling or levels[0] > START or levels[-1] <= 0:
        listed = ", ".join(f"{level:g}" for level in levels)
        raise ValueError(f"{what} gives the timesteps {listed}; they must fall, from at most 1000, and stay above 0")


def check_lag(lag: int | None, what: object) -> None:
    """Refuse a lag that is none."""
    if lag is not None and not 0 <= lag <= START:
        raise ValueError(f"{what}: the lag must be 0 to 1000 iterations, or be left out: one chunk after the other")


def line_levels(steps: int, shift: float) -> tuple[float, ...]:
    """Timesteps spaced evenly before the shift, the last of them near 0: those of solvers of many steps."""
    if not 1 <= steps <= START:
        raise ValueError(f"steps={steps} given; it must be 1 to 1000")
    FlowTable(shift)
    line = np.linspace(1, 1 / START, steps + 1)[:-1]
    return tuple((START * shifted(line, shift)).tolist())


def shifted(line: Line, shift: float) -> Line:
    """The sigma at a place of the line from 1 (noise) to 0 (clean): s*l / (1 + (s - 1)*l)."""
    sigma: Line = shift * line / (1 + (shift - 1) * line)
    return sigma


@functools.cache
def _sigmas(shift: float, steps: int) -> FloatArray:
    # As PyTorch's linspace in single precision, to the bit: counted from both ends, and rounded once for each entry.
    count = np.arange(steps)
    width = float(np.float32(1) / np.float32(steps))
    line = np.where(count < steps // 2, 1 - width * count, width * (steps - count)).astype(np.float32)
    sigmas = shifted(line, shift)
    sigmas[0] = 1  # which the shift keeps; single precision may miss it
    sigmas.setflags(write=False)
    return sigmas
