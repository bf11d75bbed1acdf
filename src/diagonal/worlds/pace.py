"""So many frames a second, at most: for worlds that are played at their own rate."""

from __future__ import annotations

from collections.abc import Callable


class Pace:
    """When the next frame may be begun."""

    def __init__(self, fps: float, clock: Callable[[], float]) -> None:
        self._every, self._clock, self._due = 1 / fps, clock, clock()

    def left(self) -> float:
        """Seconds until the next frame may be begun."""
        return max(0.0, self._due - self._clock())

    def begin(self) -> None:
        """A frame is begun. A little lateness is made up for, so that the mean is kept; more is not."""
        now = self._clock()
        self._due = (self._due if now < self._due + self._every else now) + self._every
