"""Diagonal Distillation: the first chunks get more steps, and later ones lean on them.

Every list starts at the noise (1000) and ends at the context level c, so that the last call of a chunk leaves the
noised cache that later chunks read, without a call of its own (Diagonal Forcing):

    2 steps   1000, c
    3 steps   1000, 933, c
    4 steps   1000, 933, 733, c
    n steps   1000, 933, 733, then n - 4 levels evenly between 733 and c, then c

933 and 733 are timesteps of the released code, whatever the shift. As there, lists of three and more steps are in whole
timesteps, rounded down (357), while a list of two keeps c as it is (357.142853). The released code has lists of 2, 3
and 4 steps alone; the longer ones are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagonal.planning.denoising.noise import CLEAN, START, FlowTable, check_descending, check_lag, digits, repeated

MIDDLE = (933.0, 733.0)
END = "100"  # where the lists end if the context is clean


@dataclass(frozen=True, slots=True)
class Diagonal:
    """steps: of each chunk; context: the level c, as a step before the shift (100) or a timestep after it (t100).

    `context=clean` ends the lists as 100 does and adds a call with the clean chunk. So does, at c, a chunk of one step:
    its only call is at the noise, which tells later chunks nothing. With `cycle=true` a video that is longer than the
    steps begins them again, so that it gets many steps now and then; else their last one repeats.
    """

    steps: str = "4322222"
    context: str = "100"
    shift: float = 5.0
    cycle: bool = False
    lag: int | None = None

    def __post_init__(self) -> None:
        check_lag(self.lag, f"diagonal: {self}")
        for count in sorted(set(digits(self.steps))):
            check_descending([*self._levels(count), *[self._end()] * (count == 1)], f"diagonal: {self}")

    def levels(self, chunk: int) -> tuple[float, ...]:
        return self._levels(self._count(chunk))

    def context_level(self, chunk: int) -> float | None:
        if self.context == CLEAN:
            return 0.0
        return self._end() if self._count(chunk) == 1 else None

    def _count(self, chunk: int) -> int:
        counts = digits(self.steps)
        return repeated(counts, chunk % len(counts) if self.cycle else chunk)

    def _end(self) -> float:
        return FlowTable(self.shift).level(END if self.context == CLEAN else self.context)

    def _levels(self, count: int) -> tuple[float, ...]:
        if count <= 2:
            return (START, self._end())[:count]
        between = np.linspace(MIDDLE[-1], self._end(), count - 2)[1:-1]
        return tuple(float(int(level)) for level in (START, *MIDDLE[: count - 2], *between, self._end()))
