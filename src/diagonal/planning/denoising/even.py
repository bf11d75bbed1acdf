"""Self-Forcing: n steps spaced evenly before the shift, 1000 * (n - i) / n for i = 0 .. n - 1.

Four steps are 1000, 750, 500, 250, which a shift of 5 makes the timesteps 1000, 937.5, 833.33, 625. What does not
divide is rounded down to a step of the table: three steps are 1000, 666, 333.
"""

from __future__ import annotations

from dataclasses import dataclass

from diagonal.planning.denoising.noise import CLEAN, FlowTable, check_descending, check_lag, digits, repeated


@dataclass(frozen=True, slots=True)
class Even:
    """steps: of each chunk; context: `clean` adds a call with the clean chunk for the cache, `last` leaves the cache
    to the last denoising call, and a level (100, t100) adds a call with the chunk noised to it."""

    steps: str = "4"
    context: str = CLEAN
    shift: float = 5.0
    lag: int | None = None

    def __post_init__(self) -> None:
        check_lag(self.lag, f"even: {self}")
        for chunk in range(len(digits(self.steps))):
            check_descending(self.levels(chunk), f"even: {self}")
            self.context_level(chunk)

    def levels(self, chunk: int) -> tuple[float, ...]:
        count = repeated(digits(self.steps), chunk)
        table = FlowTable(self.shift)
        return table.warp(table.steps * (count - i) // count for i in range(count))

    def context_level(self, chunk: int) -> float | None:
        return FlowTable(self.shift).extra(self.context, self.levels(chunk)[-1])
