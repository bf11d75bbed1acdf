"""A record of which implementations were chosen, for `diagonal bench` and tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_records: list[dict[str, str]] = []


@contextmanager
def recorded() -> Iterator[dict[str, str]]:
    """What is chosen for every operation inside: operation -> implementations, written as the choice is made. Replays
    of a captured graph choose nothing: record what captures it."""
    found: dict[str, str] = {}
    _records.append(found)
    try:
        yield found
    finally:
        _records[:] = [one for one in _records if one is not found]


def describe(run: Callable[[], object]) -> dict[str, str]:
    """What is chosen while a model runs, say the first steps of a plan: operation -> implementations."""
    with recorded() as found:
        run()
    return dict(sorted(found.items()))


def active() -> bool:
    """Whether somebody records choices."""
    return bool(_records)


def chosen(operation: str, implementation: str) -> None:
    """Note a choice, where somebody records them."""
    for one in _records:
        known = one.setdefault(operation, implementation)
        if implementation not in known.split("; "):
            one[operation] = f"{known}; {implementation}"
