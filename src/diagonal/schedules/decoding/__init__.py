"""Decoding schedules: each maps every cell of a grid to the step that decodes it.

A schedule's name is its module: `diagonal:k=2,d=10` is the class `Diagonal` of `diagonal.py` with the fields
k and d. A new schedule is one new file here with one frozen dataclass named like the file.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from typing import Protocol, cast, get_type_hints

from diagonal.grid import Grid, IntArray


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
    name, _, arguments = spec.strip().partition(":")
    if name not in names():
        raise ValueError(f"unknown schedule {name!r} in {spec!r}; known: {', '.join(names())}")
    kind = getattr(importlib.import_module(f"{__name__}.{name}"), name.capitalize())
    types = get_type_hints(kind)
    allowed = [field.name for field in dataclasses.fields(kind)]
    values: dict[str, int | bool] = {}
    for item in filter(None, (part.strip() for part in arguments.split(","))):
        key, equals, text = item.partition("=")
        if key not in allowed or not equals:
            known = ", ".join(f"{field}=..." for field in allowed) or "no fields"
            raise ValueError(f"{item!r} in schedule {spec!r} is not understood; {name} takes {known}")
        if key in values:
            raise ValueError(f"schedule {spec!r} gives {key} twice")
        values[key] = _value(types[key], text, spec)
    missing = [f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING and f.name not in values]
    if missing:
        raise ValueError(f"schedule {spec!r} lacks {', '.join(missing)}; write for example {name}:{missing[0]}=1")
    return cast(Schedule, kind(**values))


def spec(schedule: Schedule) -> str:
    """The text that `parse` turns into this schedule (fields that are off left out)."""
    kind = type(schedule)
    if not dataclasses.is_dataclass(schedule):
        return kind.__name__.lower()
    fields = [(field, getattr(schedule, field.name)) for field in dataclasses.fields(schedule)]
    on = [(f.name, value) for f, value in fields if value != f.default or not (value is None or value is False)]
    written = [f"{name}={str(value).lower()}" for name, value in on]
    return ":".join(filter(None, (kind.__name__.lower(), ",".join(written))))


def _value(kind: object, text: str, spec: str) -> int | bool:
    words = {"true": True, "on": True, "false": False, "off": False}
    if kind is bool and text.lower() in words:
        return words[text.lower()]
    if kind is not bool and re.fullmatch(r"-?[0-9]{1,9}", text):
        return int(text)
    raise ValueError(f"{text!r} in schedule {spec!r} must be {'true or false' if kind is bool else 'a whole number'}")
