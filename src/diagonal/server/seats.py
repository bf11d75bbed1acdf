"""How many sessions of a model there may be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Seats:
    """Used in the event loop alone."""

    def __init__(self, count: int) -> None:
        self.count, self.free = count, count

    @contextmanager
    def one(self) -> Iterator[bool]:
        """A seat while something is done, or none."""
        found = self.free > 0
        self.free -= found
        try:
            yield found
        finally:
            self.free += found
