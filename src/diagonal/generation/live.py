"""A world that is played: an action in, a frame out.

    session = world.play("hall", seed=0)
    piece = session.step("forward")  # piece.frame is what the action leads to

Sessions have seats of an arena (`arena`), whose steps they share with others, or have one of their own.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagonal.engine.tokens.ring import Turn
from diagonal.generation.opening import check_seed
from diagonal.generation.session import Piece
from diagonal.generation.snapshot import How, Past, Snapshot
from diagonal.media.video import VideoArray
from diagonal.planning.decoding import Schedule
from diagonal.planning.plan import Order
from diagonal.planning.sampling import Sampling

if TYPE_CHECKING:
    from diagonal.generation.arena import Arena, Tick


class LiveSession:
    """A world that is being played. Made by `World.play`, `Arena.play`, `branch` and `World.resume`."""

    def __init__(self, arena: Arena, turn: Turn, past: Past, order: Order, sampling: Sampling, alone: bool) -> None:
        self.arena, self.order, self.sampling = arena, order, sampling
        self.turn, self.past = turn, past  # the newest frame, and what led to it
        self.waiting: deque[Tick] = deque()  # frames that are not on the host yet
        self._alone, self._open = alone, True

    @property
    def seed(self) -> int:
        """With the position in the video, what the noise of sampling depends on."""
        return self.turn.seed

    @property
    def index(self) -> int:
        """Number of the newest frame in the video, the prompt's frames counted."""
        return self.turn.frame

    @property
    def context(self) -> str:
        """What happens when the window is full: roll or refill."""
        return self.arena.context

    @property
    def open(self) -> bool:
        """Whether it has its seat still."""
        return self._open

    def step(self, action: Any) -> Piece:
        """The frame that an action leads to: one of the world's actions, its text, or `Free()` for worlds that choose
        themselves."""
        return self.arena.step({self: action})[self]

    def update(self, *, schedule: str | Schedule | Order | None = None, sampling: Sampling | None = None) -> None:
        """Another schedule or sampling, from the next frame on."""
        self.check_open()
        if schedule is not None:
            order = Order.of(schedule)
            self.arena.plan(How(order))  # refuses it, or has it ready
            self.order = order
        self.sampling = sampling or self.sampling

    def view(self) -> VideoArray:
        """The newest frame (H, W, 3): what there is to see before the next action."""
        self.check_open()
        return self.arena.view(self.turn)

    def snapshot(self) -> Snapshot:
        """All that it is, without what can be computed again."""
        self.check_open()
        self.settle()
        units, given, made = self.past.kept()
        world, order, sampling = self.arena.world, self.order, self.sampling
        about = (world.name, world.fingerprint(), self.context)
        return Snapshot(*about, order, sampling, self.seed, self.index, units, given, made)

    def save(self, path: str | Path) -> Path:
        """Write a snapshot: a small JSON file that `World.resume` takes."""
        return self.snapshot().save(path)

    def branch(self, *, seed: int | None = None) -> LiveSession:
        """A second future of the same past: in this arena, or for a session that plays alone in one of its own.
        `seed`: other noise from here on."""
        self.check_open()
        self.settle()
        arena = self.arena.another() if self._alone else self.arena
        return arena.adopt(self, self._alone, self.seed if seed is None else check_seed(seed))

    def close(self) -> None:
        """Leave the seat. What it was made with serves the next session."""
        if not self._open:
            return
        self._open = False
        self.waiting.clear()
        self.arena.leave(self, close=self._alone)

    def check_open(self) -> None:
        """Refuse to go on with what was closed."""
        if not self._open:
            raise ValueError("this session is closed; play or resume another one")

    def settle(self) -> None:
        """Wait for frames that are on their way: they are part of the past."""
        while self.waiting:
            self.waiting[0].result()
