"""A world that is played, as moves: each is an action, which leads to a frame, or a turn between two frames.

Keys, scripts and replays are sources of moves, and `Game.play` is all that makes them. What it made is a `Replay`: the
snapshot that it began with, and its moves.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from diagonal.media.files import atomic
from diagonal.planning.decoding import parse
from diagonal.worlds.script import MAX_ACTIONS, spell

if TYPE_CHECKING:
    from diagonal.generation.live import LiveSession
    from diagonal.generation.session import Piece
    from diagonal.generation.snapshot import Snapshot
    from diagonal.generation.world import World

FORMAT, VERSION = "diagonal replay", 1
MAX_BYTES = 64 * 2**20
ACT, SCHEDULE, BRANCH, RETURN, RESTART = "act", "schedule", "branch", "return", "restart"
TURNS = (SCHEDULE, BRANCH, RETURN, RESTART)


class Move(NamedTuple):
    """What is done next."""

    kind: str  # ACT, or one of TURNS
    value: str = ""  # the text of the action, or of the schedule


@dataclass(frozen=True, slots=True)
class Replay:
    """All that leads to the same frames again."""

    begin: Snapshot  # model, seed, schedule, sampling and the first frames
    moves: Sequence[Move]

    def save(self, path: str | Path) -> None:
        """Write it as JSON; moves that repeat are counted."""
        counted = [{**move._asdict(), "times": len(list(alike))} for move, alike in groupby(self.moves)]
        found = {"format": FORMAT, "version": VERSION, "begin": self.begin.as_json(), "moves": counted}
        with atomic(path) as temporary:
            temporary.write_text(json.dumps(found), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Replay:
        """Read what `save` wrote."""
        from diagonal.generation.snapshot import Snapshot

        path = Path(path)
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"{path} has {path.stat().st_size} bytes; a replay has at most {MAX_BYTES}")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is no replay, or a part of one: {error}") from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError(f"{path} is no replay; diagonal play --replay writes them")
        if found.get("version") != VERSION:
            raise ValueError(f"{path} has version {found.get('version')!r}; this library reads version {VERSION}")
        begin = Snapshot.from_json(found.get("begin"), f"{path}, its beginning,")
        try:
            moves = [Move(one["kind"], one["value"]) for one in found["moves"] for _ in range(_times(one["times"]))]
            _check(moves)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from error
        return cls(begin, moves)


def _times(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MAX_ACTIONS:
        raise ValueError(f"{value!r} is no whole number from 1 to {MAX_ACTIONS}")
    return value


def _check(moves: Sequence[Move]) -> None:
    for kind, value in moves:
        if kind not in (ACT, *TURNS) or not isinstance(value, str):
            raise ValueError(f"unknown move {kind!r}; known: {', '.join((ACT, *TURNS))}")
        if kind == SCHEDULE:
            parse(value)


class Game:
    """A session with its branch, its restarts and what was done in it."""

    def __init__(self, world: World, session: LiveSession) -> None:
        self.world, self.session = world, session
        self.begin = session.snapshot()
        self.moves: list[Move] = []
        self.kept: LiveSession | None = None
        self.seconds: list[float] = []  # of each frame
        self.calls: list[int] = []
        self.acting = "noop"

    @property
    def frames(self) -> int:
        """Frames made, in all branches."""
        return len(self.seconds)

    @property
    def schedule(self) -> str:
        """The one of the next frame."""
        return str(self.session.order)

    def play(self, move: Move) -> Piece | None:
        """Make a move; a frame comes of an action alone."""
        self.moves.append(move)
        if move.kind == ACT:
            began = time.perf_counter()
            made = self.session.step(move.value)
            self.seconds.append(time.perf_counter() - began)
            self.calls.append(made.calls)
            self.acting = move.value
            return made
        if move.kind == SCHEDULE:
            self.session.update(schedule=replace(self.session.order, schedule=parse(move.value)))
        elif move.kind == BRANCH:
            self.kept, before = self.session.branch(), self.kept
            if before is not None:
                before.close()
        elif move.kind == RETURN and self.kept is not None:
            self._go_on(self.kept.branch())
        elif move.kind == RESTART:
            self._go_on(self.world.resume(self.begin))
        return None

    def replay(self) -> Replay:
        """What was done so far."""
        return Replay(self.begin, tuple(self.moves))

    def told(self) -> str:
        """What was done so far, as text: actions, and in brackets all else."""
        return spell([move.value if move.kind == ACT else f"[{move.kind} {move.value}]" for move in self.moves])

    def report(self) -> dict[str, Any]:
        """Numbers of all frames: times are those of model calls and of decoding to pixels."""
        seconds = sum(self.seconds)
        median, late = middle_and_late([1000 * one for one in self.seconds])
        return {
            "frames": self.frames,
            "frame": self.session.index,
            "seconds": seconds,
            "fps": self.frames / seconds if self.frames else None,
            "ms_per_frame": median,
            "ms_per_frame_p95": late,
            "calls": sum(self.calls),
            "calls_per_frame": sum(self.calls) / self.frames if self.frames else None,
            "schedule": self.schedule,
            "seed": self.session.seed,
            "context": self.session.context,
        }

    def close(self) -> None:
        """Leave the world."""
        self.session.close()
        if self.kept is not None:
            self.kept.close()

    def _go_on(self, session: LiveSession) -> None:
        self.session.close()
        self.session = session


def middle_and_late(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The median and the 95th percentile (of the values, the least that 95 of a hundred do not exceed)."""
    if not values:
        return None, None
    return statistics.median(values), sorted(values)[-(-95 * len(values) // 100) - 1]


def limited(moves: Iterator[Move | None], frames: int | None) -> Iterator[Move | None]:
    """Moves up to the last frame that was asked for."""
    made = 0
    for move in moves:
        yield move
        made += move is not None and move.kind == ACT
        if made == frames:
            return
