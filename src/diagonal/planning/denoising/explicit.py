"""Noise levels as they are written: `explicit:lists=1000-750-500-250/1000-500` or `t1000-t757-t522`.

A slash separates chunks, and the last list repeats. A dash separates levels: a whole number is a step before the shift,
one with a t is a timestep after it, and both may be mixed.
"""

from __future__ import annotations

from dataclasses import dataclass

from diagonal.planning.denoising.noise import CLEAN, FlowTable, check_descending, check_lag, repeated


@dataclass(frozen=True, slots=True)
class Explicit:
    """lists: the levels of each chunk; context: `clean` adds a call with the clean chunk for the cache, `last` leaves
    the cache to the last denoising call, and a level (100, t100) adds a call with the chunk noised to it."""

    lists: str = "1000-750-500-250"
    context: str = CLEAN
    shift: float = 5.0
    lag: int | None = None

    def __post_init__(self) -> None:
        check_lag(self.lag, f"explicit: {self}")
        for chunk, text in enumerate(self.lists.split("/")):
            check_descending(self.levels(chunk), f"explicit: the list {text!r}")
            self.context_level(chunk)

    def levels(self, chunk: int) -> tuple[float, ...]:
        return tuple(map(FlowTable(self.shift).level, repeated(self.lists.split("/"), chunk).split("-")))

    def context_level(self, chunk: int) -> float | None:
        return FlowTable(self.shift).extra(self.context, self.levels(chunk)[-1])
