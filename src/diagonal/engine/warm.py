"""What is expensive to make and may serve the next video too: caches, and the graphs that were captured on them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Warm(Generic[T]):
    """Keeps the newest thing for the next video of its kind: capturing takes longer than running, so a model that is
    asked again answers at once. A thing is out while it is used, so videos may be interleaved.
    """

    _idle: list[tuple[Hashable, T]] = field(default_factory=list)

    def take(self, kind: Hashable, make: Callable[[], T]) -> T:
        """The idle thing, if it is of this kind, or a new one. What does not fit is let go first, for its memory."""
        idle, self._idle[:] = self._idle[:], []
        for known, thing in idle:
            if known == kind:
                return thing
        del idle
        return make()

    def give(self, kind: Hashable, thing: T) -> None:
        """Hand a thing back after its video."""
        self._idle[:] = [(kind, thing)]

    def clear(self) -> None:
        """Let go of what is kept, as it is no longer true."""
        self._idle.clear()
