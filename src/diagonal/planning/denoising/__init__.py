"""Denoising schedules: each gives every chunk of a video the noise levels at which the model is called.

A schedule's name is its module, as in planning/decoding: `diagonal:steps=4322222,context=100` is the class `Diagonal`
of `diagonal.py` with its fields. A string of digits alone is short for `diagonal:steps=...`. A new schedule is one new
file here with one frozen dataclass named like the file, all of whose fields have defaults.
"""

from __future__ import annotations

import pkgutil
import re
from typing import Protocol, cast

from diagonal.planning import notation

DIGITS = re.compile("[0-9]+")


class ChunkSchedule(Protocol):
    """At which noise levels, as timesteps of 0 (clean) to 1000 (noise), each chunk meets the model."""

    @property
    def shift(self) -> float:
        """The shift of the `noise.FlowTable` that the levels belong to."""
        ...

    @property
    def lag(self) -> int | None:
        """Iterations between the starts of two chunks, which are then in calls together (`planning.lag`). None: a
        chunk begins when the one before it is done."""
        ...

    def levels(self, chunk: int) -> tuple[float, ...]:
        """The levels of chunk 0, 1, ...: descending, one call of the model each."""
        ...

    def context_level(self, chunk: int) -> float | None:
        """The level of one more call, which writes the cache that later chunks read: 0.0 is the clean chunk.

        None: there is no such call, and later chunks read what the last denoising call left (Diagonal Forcing).
        """
        ...


def calls(schedule: ChunkSchedule, chunk: int) -> int:
    """Model calls of a chunk: one at each level, and the one that writes the cache, where it is one more."""
    return len(schedule.levels(chunk)) + (schedule.context_level(chunk) is not None)


def names() -> list[str]:
    """All schedules that `parse` knows: every module here but the one that they share."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "noise")


def parse(spec: str) -> ChunkSchedule:
    """The schedule named by `name`, `name:field=value,field=value`, or by the digits of `diagonal:steps=digits`."""
    text = f"diagonal:steps={spec.strip()}" if is_steps(spec) else spec
    return cast(ChunkSchedule, notation.parse(__name__, names(), text))


def spec(schedule: ChunkSchedule) -> str:
    """The text that `parse` turns into this schedule."""
    return notation.spec(schedule)


def is_steps(text: str) -> bool:
    """Whether the text is the short form: one digit for each chunk."""
    return DIGITS.fullmatch(text.strip()) is not None
