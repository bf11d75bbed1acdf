"""Diffusion forcing (SkyReels-V2): the many steps of a solver, with chunks that begin a few steps one after the other.

The levels are those of `teacher`, and the same for all chunks: between them a solver makes the steps, with what it
remembers of each chunk, and no noise is drawn anew. A chunk that is done is shown clean to those after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from diagonal.planning.denoising.noise import check_lag, line_levels


@dataclass(frozen=True, slots=True)
class Forcing:
    """steps: of each chunk, evenly spaced before the shift; lag: iterations between the starts of two chunks. SkyReels
    is published with 30 or 50 steps and a lag of 5; a lag of 0 makes all chunks at once."""

    steps: int = 30
    lag: int | None = 5
    shift: float = 8.0

    def __post_init__(self) -> None:
        check_lag(self.lag, f"forcing: {self}")
        self.levels(0)

    def levels(self, chunk: int) -> tuple[float, ...]:
        return line_levels(self.steps, self.shift)

    def context_level(self, chunk: int) -> float | None:
        return 0.0
