"""The levels of the teacher, Wan2.1 itself: many steps over all frames at once, with guidance, and without a cache.

Between them diffusers' UniPCMultistepScheduler solves the flow's equation, and no noise is drawn anew. The solver makes
its own table, with timesteps rounded down; here are the same levels for whoever counts the calls.
"""

from __future__ import annotations

from dataclasses import dataclass

from diagonal.planning.denoising.noise import check_lag, line_levels


@dataclass(frozen=True, slots=True)
class Teacher:
    """steps: how many, evenly spaced before the shift. Wan2.1-T2V-1.3B is run with a shift of 8 and up."""

    steps: int = 50
    shift: float = 8.0
    lag: int | None = None

    def __post_init__(self) -> None:
        check_lag(self.lag, f"teacher: {self}")
        self.levels(0)

    def levels(self, chunk: int) -> tuple[float, ...]:
        return line_levels(self.steps, self.shift)

    def context_level(self, chunk: int) -> float | None:
        return None
