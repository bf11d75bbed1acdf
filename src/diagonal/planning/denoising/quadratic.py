"""MAGI-1: steps that are finer towards the noise, of several chunks at once.

With u = s / steps in step s, l = 1 - u^2 is the place on the line before the shift. A shift of 3 makes sigma from it,
and the quarters of the steps begin at sigma = 1, 0.978, 0.9 and 0.7. A chunk begins when the one before it has done a
quarter of its steps, so that at most four are under way.

Twelve steps are a choice among sixteen: of each quarter the beginning, and two of the three places behind it. `skip`
says whether the first of them is left out (0, 2, 3 sixteenths: the distilled model's), or the last (0, 1, 2).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from diagonal.planning.denoising.noise import START, FlowTable, check_lag, shifted

QUARTERS, A_QUARTER = 4, -1
SHORT, OF = 12, 16  # so many steps are chosen among so many
CHOSEN = {"first": (0, 2, 3), "last": (0, 1, 2)}  # of each quarter of them
MAX_STEPS = 1000


@dataclass(frozen=True, slots=True)
class Quadratic:
    """steps: of each chunk, a multiple of 4; lag: iterations between the starts of two chunks, -1 for a quarter of the
    steps, which it then becomes; skip: which of four places twelve steps leave out, `first` or `last`."""

    steps: int = 64
    lag: int | None = A_QUARTER
    skip: str = "first"
    shift: float = 3.0

    def __post_init__(self) -> None:
        FlowTable(self.shift)
        if not QUARTERS <= self.steps <= MAX_STEPS or self.steps % QUARTERS:
            raise ValueError(f"quadratic: steps={self.steps} given; it must be a multiple of 4, from 4 to {MAX_STEPS}")
        if self.lag == A_QUARTER:
            object.__setattr__(self, "lag", self.steps // QUARTERS)
        check_lag(self.lag, f"quadratic: {self}")
        if self.skip not in CHOSEN:
            raise ValueError(f"quadratic: skip={self.skip!r} given; it must be {' or '.join(CHOSEN)}")

    def levels(self, chunk: int) -> tuple[float, ...]:
        return tuple(START * shifted(1 - place**2, self.shift) for place in self.places()[:-1])

    def context_level(self, chunk: int) -> float | None:
        return 0.0

    def places(self) -> tuple[float, ...]:
        """u at each step, from 0, and the 1 at which the last one ends."""
        if self.steps != SHORT:
            return tuple(step / self.steps for step in range(self.steps + 1))
        quarter = OF // QUARTERS
        return (*((begin + one) / OF for begin in range(0, OF, quarter) for one in CHOSEN[self.skip]), 1.0)

    def sizes(self) -> tuple[float, ...]:
        """The size of each step as a distilled model is told it: half of how many such steps a chunk would take."""
        if self.steps != SHORT:
            return (self.steps / 2,) * self.steps
        return tuple(0.5 / (end - begin) for begin, end in itertools.pairwise(self.places()))
