"""The levels of the teacher, Wan2.1 itself: many steps over all frames at once, with guidance, and without a cache.

Between them diffusers' UniPCMultistepScheduler solves the flow's equation, and no noise is drawn anew. The solver makes
its own table, with timesteps rounded down; here are the same levels for whoever counts the calls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagonal.planning.denoising.noise import START, FlowTable, shifted


@dataclass(frozen=True, slots=True)
class Teacher:
    """steps: how many, evenly spaced before the shift. Wan2.1-T2V-1.3B is run with a shift of 8 and up."""

    steps: int = 50
    shift: float = 8.0

    def __post_init__(self) -> None:
        FlowTable(self.shift)
        if not 1 <= self.steps <= START:
            raise ValueError(f"teacher: steps={self.steps} given; it must be 1 to 1000")

    def levels(self, chunk: int) -> tuple[float, ...]:
        line = np.linspace(1, 1 / START, self.steps + 1)[:-1]
        return tuple((START * shifted(line, self.shift)).tolist())

    def context_level(self, chunk: int) -> float | None:
        return None
