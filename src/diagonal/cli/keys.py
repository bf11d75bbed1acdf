"""Keys of a terminal: bytes to events, events to keys that are held, held keys to moves. No terminal is needed here.

Most terminals tell when a key goes down and repeat it while it stays there, but never that it went up: a key counts as
held until shortly after its last repeat. Only the key pressed last repeats, so one that was repeating goes on with it.
Terminals with kitty's keyboard protocol tell all of it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, Protocol

from diagonal.cli.game import ACT, BRANCH, RESTART, RETURN, SCHEDULE, Move, middle_and_late
from diagonal.worlds.pace import Pace
from diagonal.worlds.protocols import ActionSpace
from diagonal.worlds.script import together

HELD = 0.25  # seconds: more than there are between two repeats
PAUSE = "p"
QUIT = ("q", "escape", "ctrl-c")
TURNS = {
    "b": Move(BRANCH),
    "n": Move(RETURN),
    "r": Move(RESTART),
    "1": Move(SCHEDULE, "diagonal:k=1"),
    "2": Move(SCHEDULE, "diagonal:k=2"),
    "3": Move(SCHEDULE, "raster"),
}
HELP = "p pause  b branch  n return to it  r restart  1 2 3 diagonal:k=1, k=2, raster  q quit"
COMMANDS = (PAUSE, *QUIT, *TURNS)
NAMED = {" ": "space", "\r": "enter", "\x1b": "escape", "\x03": "ctrl-c"}
ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}
SEQUENCE = re.compile(rb"\x1b\[([0-?]*)[ -/]*([@-~])|\x1bO([@-~])|([\x00-\x7f])|[\x80-\xff]+")
UNFINISHED = re.compile(rb"\x1b(\[[0-?]*[ -/]*|O)?\Z")


class Kind(Enum):
    """What happened to a key."""

    DOWN = auto()  # or a repeat of it
    UP = auto()


class Event(NamedTuple):
    """A key that went down, repeated or went up."""

    key: str
    kind: Kind = Kind.DOWN


def decode(data: bytes, whole: bool = True) -> tuple[list[Event], bytes]:
    """The events in bytes from a terminal, and the beginning of a sequence whose rest is still to come. `whole`:
    nothing more comes, so an escape without a sequence is the key."""
    unfinished = UNFINISHED.search(data)
    if unfinished is not None and not whole:
        return _events(data[: unfinished.start()]), data[unfinished.start() :]
    return _events(data), b""


def _events(data: bytes) -> list[Event]:
    found = []
    for match in SEQUENCE.finditer(data):
        numbers, end, single, plain = (part.decode() if part is not None else None for part in match.groups())
        event = None
        if plain is not None:
            event = Event(NAMED.get(plain, plain.lower())) if plain.isprintable() or plain in NAMED else None
        elif single is not None:
            event = Event(ARROWS[single]) if single in ARROWS else None
        elif numbers is not None and end is not None:
            event = _reported(numbers, end)
        if event is not None:
            found.append(event)
    return found


def _reported(numbers: str, end: str) -> Event | None:
    """The event of CSI code ; modifiers : kind u, or of an arrow; None: a sequence of another kind."""
    match = re.fullmatch(r"(\d*)[\d:]*(?:;(\d*)(?::(\d))?)?[\d;:]*", numbers)
    if match is None or (end != "u" and end not in ARROWS):
        return None
    code, modifiers, what = (int(part or 1) for part in match.groups())
    control = end == "u" and (modifiers - 1) & 4 and code == ord("c")
    if end == "u" and not 0 < code < 128:
        return None
    key = "ctrl-c" if control else ARROWS[end] if end in ARROWS else NAMED.get(chr(code), chr(code).lower())
    return Event(key, Kind.UP if what == 3 else Kind.DOWN)


@dataclass
class _Key:
    since: float
    until: float
    repeats: bool = False


class Held:
    """Which keys are held. `exact`: the terminal tells when a key goes up."""

    def __init__(self, exact: bool = False) -> None:
        self._exact = exact
        self._down: dict[str, _Key] = {}
        self._taps: dict[str, float] = {}  # since `take` was called

    def feed(self, event: Event, at: float) -> bool:
        """Something happened to a key at some time; whether it was pressed anew, which a repeat is not."""
        key = event.key
        if event.kind is Kind.UP:
            self._down.pop(key, None)
            return False
        self._taps.setdefault(key, at)
        before = self._held(at).get(key)
        if self._exact:
            self._down.setdefault(key, _Key(at, float("inf")))
            return before is None
        for other in self._held(at).values():
            if other.repeats:
                other.until = at + HELD
        self._down[key] = _Key(at if before is None else before.since, at + HELD, before is not None)
        return before is None

    def take(self, at: float) -> list[str]:
        """The keys of the next frame, those pressed last behind: all that are held, and all that were tapped since the
        frame before."""
        since = self._taps | {key: state.since for key, state in self._held(at).items()}
        self._taps.clear()
        return sorted(since, key=lambda key: since[key])

    def release(self) -> None:
        """No key is held."""
        self._down.clear()
        self._taps.clear()

    def _held(self, at: float) -> dict[str, _Key]:
        return {key: state for key, state in self._down.items() if state.until > at}


class Keys(Protocol):
    """What tells of keys."""

    def read(self, seconds: float | None) -> list[tuple[Event, float]]:
        """Events and when they happened; waits so long for the first one, or for ever."""
        ...


class Meter:
    """How fast frames follow each other, and keys are answered."""

    def __init__(self) -> None:
        self.answers: list[float] = []  # ms from a key to the frame that it led to
        self._shown: deque[float] = deque()

    def shown(self, at: float, pressed: float | None = None) -> None:
        """A frame was drawn, which a key asked for."""
        self._shown.append(at)
        while len(self._shown) > 2 and self._shown[1] < at - 1:
            self._shown.popleft()
        if pressed is not None:
            self.answers.append(1000 * (at - pressed))

    @property
    def fps(self) -> float | None:
        """Of the last second."""
        if len(self._shown) < 2 or self._shown[-1] == self._shown[0]:
            return None
        return (len(self._shown) - 1) / (self._shown[-1] - self._shown[0])

    def __str__(self) -> str:
        fps = "-" if self.fps is None else f"{self.fps:.1f}"
        middle, late = middle_and_late(self.answers)
        answer = "" if middle is None or late is None else f"  key {middle:.0f} ms, p95 {late:.0f}"
        return f"{fps:>4} FPS{answer}"


@dataclass
class Player:
    """Who plays by keys."""

    keys: Keys
    held: Held
    actions: ActionSpace
    pace: Pace
    meter: Meter
    clock: Callable[[], float]
    paused: bool = False

    def __post_init__(self) -> None:
        self._pressed: float | None = None
        self._commands: list[str] = []

    def moves(self) -> Iterator[Move | None]:
        """What is done, without end until the player leaves; None: nothing but the pause has changed."""
        while True:
            self._listen(None if self.paused else self.pace.left())
            while self._commands:
                key = self._commands.pop(0)
                if key in QUIT:
                    return
                if key == PAUSE:
                    self.paused = not self.paused
                    self.held.release()
                yield TURNS.get(key)
            if self.paused or self.pace.left():
                continue
            self.pace.begin()
            pressed, self._pressed = self._pressed, None
            yield Move(ACT, self._action())
            self.meter.shown(self.clock(), pressed)

    def _listen(self, seconds: float | None) -> None:
        """Hear of keys for so long, or of the next one, or for as long as nobody gives a command."""
        until = None if seconds is None else self.clock() + seconds
        while True:
            for event, at in self.keys.read(None if until is None else max(0.0, until - self.clock())):
                fresh = self.held.feed(event, at)
                if fresh and event.key in COMMANDS:
                    self._commands.append(event.key)
                elif fresh and event.key in self.actions.CONTROLS and not self.paused:
                    self._pressed = at if self._pressed is None else self._pressed
            if self._commands or (until is not None and self.clock() >= until):
                return

    def _action(self) -> str:
        controls = self.actions.CONTROLS
        parts: Sequence[str] = [controls[key] for key in self.held.take(self.clock()) if key in controls]
        return together(list(dict.fromkeys(parts)), self.actions.parse)
