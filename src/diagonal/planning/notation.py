"""Schedules as text, for decoding and denoising alike: `name:field=value,field=value`.

The name is a module of the package, and the fields are those of the frozen dataclass in it that is named like the file.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Sequence
from typing import Any, get_args, get_type_hints

Value = int | float | bool | str | None
NUMBERS: dict[object, tuple[str, type[int] | type[float], str]] = {
    int: (r"-?[0-9]{1,9}", int, "a whole number"),
    float: (r"-?[0-9]{1,9}(\.[0-9]{1,9})?", float, "a number"),
}


def parse(package: str, names: Sequence[str], spec: str) -> Any:
    """The schedule of `package` named by `name` or `name:field=value,field=value`."""
    name, _, arguments = spec.strip().partition(":")
    if name not in names:
        raise ValueError(f"unknown schedule {name!r} in {spec!r}; known: {', '.join(names)}")
    kind = getattr(importlib.import_module(f"{package}.{name}"), name.capitalize())
    types = get_type_hints(kind)
    allowed = [field.name for field in dataclasses.fields(kind)]
    values: dict[str, Value] = {}
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
    return kind(**values)


def spec(schedule: object) -> str:
    """The text that `parse` turns into this schedule (fields that are off left out)."""
    kind = type(schedule)
    if not dataclasses.is_dataclass(schedule):
        return kind.__name__.lower()
    fields = [(field, getattr(schedule, field.name)) for field in dataclasses.fields(schedule)]
    on = [(f.name, value) for f, value in fields if value != f.default or not (value is None or value is False)]
    written = [f"{name}={str(value).lower()}" for name, value in on]
    return ":".join(filter(None, (kind.__name__.lower(), ",".join(written))))


def _value(kind: object, text: str, spec: str) -> Value:
    if kind in (str, str | None):
        return text
    words = {"true": True, "on": True, "false": False, "off": False}
    if kind is bool and text.lower() in words:
        return words[text.lower()]
    if text.lower() == "none" and type(None) in get_args(kind):
        return None
    # A field that may be None is otherwise a whole number where it is given.
    form, number, what = NUMBERS.get(kind, NUMBERS[int])
    if kind is not bool and re.fullmatch(form, text):
        return number(text)
    raise ValueError(f"{text!r} in schedule {spec!r} must be {'true or false' if kind is bool else what}")
