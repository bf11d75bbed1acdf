"""Decoding schedules: each maps every cell of a grid to the step that decodes it.

A schedule's name is its module: `diagonal:k=2,d=10` is the class `Diagonal` of `diagonal.py` with the fields
k and d. A new schedule is one new file here with one frozen dataclass named like the file.
"""

from __future__ import annotations

import pkgutil
from typing import Protocol, cast

from diagonal.planning import notation
from diagonal.planning.grid import Grid, IntArray

DEFAULT = "diagonal:k=1"  # where nobody says


class Schedule(Protocol):
    """Which step decodes which cell."""

    def times(self, grid: Grid) -> IntArray:
        """Step of every cell, shaped (frames, rows, cols). Only the order counts: gaps are closed."""
        ...


def names() -> list[str]:
    """All schedules that `parse` knows."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def parse(spec: str) -> Schedule:
    """The schedule named by `name` or `name:field=value,field=value`."""
    return cast(Schedule, notation.parse(__name__, names(), spec))


def spec(schedule: Schedule) -> str:
    """The text that `parse` turns into this schedule (fields that are off left out)."""
    return notation.spec(schedule)
