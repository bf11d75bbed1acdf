"""The controls that a player holds and has tapped: fed by the socket, taken for every frame by the thread of the world.

What is held is a state, said again and again, so that nothing sticks where a message is lost. A tap is a control that
was pressed since the message before: it acts on at least one frame, however short it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diagonal.worlds.script import together

NOTHING = "noop"  # what `together` makes of nothing


@dataclass(frozen=True, slots=True)
class Taken:
    """What a frame is asked to show."""

    action: str
    seq: int | None  # of the newest message that is in it; None: there was none yet
    received: float | None  # when the oldest message came that no frame before had seen; None: nothing is new


class Controls:
    """Of one player."""

    def __init__(self, known: Sequence[str], parse: Callable[[str], object]) -> None:
        self._known, self._parse, self._lock = tuple(known), parse, threading.Lock()
        self._held: list[str] = []
        self._taps: list[str] = []
        self._seq: int | None = None
        self._since: float | None = None

    def feed(self, seq: int, held: Sequence[str], pressed: Sequence[str], at: float) -> None:
        """What a message says, and when it came."""
        unknown = [name for name in (*held, *pressed) if name not in self._known]
        if unknown:
            raise ValueError(f"there is no control {unknown[0]!r}; known: {', '.join(self._known)}")
        with self._lock:
            if self._seq is not None and seq <= self._seq:
                raise ValueError(f"seq {seq} came after {self._seq}; it must grow with every message")
            self._held = list(dict.fromkeys(held))
            self._taps = list(dict.fromkeys([*self._taps, *pressed]))
            self._seq = seq
            self._since = at if self._since is None else self._since

    def take(self) -> Taken:
        """The action of the next frame. Taps go before what is merely held; those that cannot be combined wait for the
        frame after."""
        with self._lock:
            parts = [*(name for name in self._held if name not in self._taps), *reversed(self._taps)]
            done = together(parts, self._parse).split("+")
            self._taps = [name for name in self._taps if name not in done]
            since, self._since = self._since, None
            # In one order, however they were pressed: an action has one name.
            action = "+".join(name for name in self._known if name in done) or NOTHING
            return Taken(action, self._seq, since)

    def release(self) -> None:
        """Nothing is held or tapped."""
        with self._lock:
            self._held, self._taps = [], []
