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
    taps: tuple[str, ...] = ()  # that are done with it


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
            action, taps = self._next()
            self._taps = [name for name in self._taps if name not in taps]
            since, self._since = self._since, None
            return Taken(action, self._seq, since, taps)

    def give_back(self, taken: Taken) -> None:
        """The frame was not made."""
        with self._lock:
            self._taps = list(dict.fromkeys([*taken.taps, *self._taps]))
            self._since = self._since if taken.received is None else taken.received

    def changed(self, taken: Taken) -> bool:
        """Whether messages that came since would have the frame show something else."""
        with self._lock:
            if self._seq == taken.seq:
                return False
            self._taps, later = list(dict.fromkeys([*taken.taps, *self._taps])), self._taps
            action, _ = self._next()
            self._taps = later
            return action != taken.action

    def release(self) -> None:
        """Nothing is held or tapped."""
        with self._lock:
            self._held, self._taps = [], []

    def _next(self) -> tuple[str, tuple[str, ...]]:
        """The action of what is held and tapped now, and the taps that are in it."""
        parts = [*(name for name in self._held if name not in self._taps), *reversed(self._taps)]
        done = together(parts, self._parse).split("+")
        # In one order, however they were pressed: an action has one name.
        action = "+".join(name for name in self._known if name in done) or NOTHING
        return action, tuple(name for name in self._taps if name in done)
