"""The thread of a world: all model calls are made in it, a frame at a time, for all players whose frame is due.

Whatever else is done to sessions is a task, done in this thread between two frames. So nothing here needs a lock but
the list of tasks, and a client that does not read, or leaves, holds up nobody: nothing is waited for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch

from diagonal.generation.arena import Arena
from diagonal.generation.live import LiveSession
from diagonal.generation.session import Piece
from diagonal.generation.snapshot import Snapshot
from diagonal.generation.world import World
from diagonal.media.video import VideoArray
from diagonal.server.controls import Controls, Taken
from diagonal.server.metrics import Metrics
from diagonal.server.player import Deliver, Delivery, Player
from diagonal.server.starts import Start
from diagonal.server.timeline import Timeline, recent
from diagonal.worlds.pace import Pace

Result = TypeVar("Result")
FAILED = {"type": "error", "code": "internal", "message": "the model failed; the session is over"}
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Joining:
    """How a player begins."""

    begin: Start | Snapshot
    seed: int
    schedule: str
    paced: bool
    paused: bool
    controls: Controls


class Arrival(NamedTuple):
    """A session whose frames are being repeated, one by one, and who waits for it."""

    steps: Generator[None, None, LiveSession]
    seated: Callable[[LiveSession], Player]
    waiting: Future[Player]


class Ticker:
    """Players of one world. Its thread runs from `start` to `stop`."""

    def __init__(self, world: World, seats: int, timeline: int) -> None:
        self.world, self._timeline = world, timeline
        self._arena = Arena(world, seats)
        config, refill = world.variant.config, self._arena.context == "refill"
        self._fed = int(config.reference_frames) if refill else int(config.frames) - 1
        self.metrics = Metrics()
        self._players: list[Player] = []
        self._arrivals = deque[Arrival]()
        self._spent, self._now = dict[str, float](), 0.0  # seconds of each schedule, and of the one that was last
        self._tasks = deque[tuple[Callable[[], Any], Future[Any]]]()
        self._news, self._stopping = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name=f"world {world.name}", daemon=True)

    def start(self) -> None:
        """Begin to run."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the frame that is being made, and end. Tasks that wait are done."""
        with self._news:
            self._stopping = True
            self._news.notify()
        self._thread.join()
        self._arena.close()

    def ask(self, task: Callable[[], Result]) -> Future[Result]:
        """Do something to sessions, between two frames."""
        future: Future[Result] = Future()
        with self._news:
            if self._stopping:
                raise RuntimeError("this world is closed")
            self._tasks.append((task, future))
            self._news.notify()
        return future

    def take_up(self, how: Joining, deliver: Deliver, greeting: Callable[[Player], dict[str, Any]]) -> Future[Player]:
        """Join where a snapshot was made: the very same frames follow. To that end the frames that were decoded are
        repeated, each between two frames of those who play. Who cancels the future gives the seat back."""
        saved, waiting = how.begin, Future[Player]()
        assert isinstance(saved, Snapshot)

        def seated(session: LiveSession) -> Player:
            session.update(schedule=how.schedule)
            return self._seat(session, how, deliver, greeting)

        self.ask(lambda: self._arrivals.append(Arrival(self._arena.resuming(saved), seated, waiting)))
        return waiting

    # What follows runs in the thread.

    def join(self, how: Joining, deliver: Deliver, greeting: Callable[[Player], dict[str, Any]]) -> Player:
        """Take a seat, greet, and show the frame that it begins with."""
        return self._seat(self._begin(how.begin, how.seed, how.schedule), how, deliver, greeting)

    def _seat(
        self, session: LiveSession, how: Joining, deliver: Deliver, greeting: Callable[[Player], dict[str, Any]]
    ) -> Player:
        timeline = self._timeline_of(session, how.begin)
        player = Player(session, timeline, how.controls, float(self.world.variant.fps), deliver)
        player.paused = how.paused
        player.pace = Pace(player.fps, time.monotonic) if how.paced else None
        player.show(greeting(player))
        self._players.append(player)
        self.metrics.sessions += 1
        return player

    def leave(self, player: Player) -> None:
        """Give a seat back."""
        if player in self._players:
            self._players.remove(player)
            player.session.close()

    def reset(self, player: Player, begin: Start | Snapshot, seed: int, said: dict[str, Any]) -> None:
        """Begin again, in the same seat."""
        schedule = player.schedule
        self._go_on(player, lambda: self._begin(begin, seed, schedule))
        player.timeline = self._timeline_of(player.session, begin)
        player.show(said | {"frame": player.session.index})

    def rewind(self, player: Player, frame: int, said: dict[str, Any]) -> None:
        """Go on from an earlier frame, in the same seat."""
        saved, schedule = player.timeline.at(frame), player.schedule
        self._go_on(player, lambda: self._begin(saved, saved.seed, schedule))
        player.timeline.cut(frame)
        player.show(said | {"frame": frame})

    def pixels(self, player: Player, start: int, count: int) -> VideoArray:
        """So many frames (T, H, W, 3) of a session, from the number `start` on."""
        config = self.world.variant.config
        tokens = player.timeline.tokens(start, count).view(-1, 1, config.rows, config.cols)
        with torch.inference_mode():
            pixels = self.world.tokenizer.decode(tokens.to(self.world.device), {})
        frames: VideoArray = pixels[:, 0].permute(0, 2, 3, 1).cpu().numpy()
        return frames

    def _go_on(self, player: Player, begin: Callable[[], LiveSession]) -> None:
        """Another session in the place of the one that was played; without one the player has left."""
        player.session.close()
        player.controls.release()
        try:
            player.session = begin()
        except BaseException:
            self._players.remove(player)
            raise

    def _begin(self, begin: Start | Snapshot, seed: int, schedule: str) -> LiveSession:
        if isinstance(begin, Snapshot):
            session = self._arena.resume(recent(begin, self._fed))
            session.update(schedule=schedule)
            return session
        return self._arena.play(begin.tokens_THW, begin.actions, schedule=schedule, seed=seed)

    def _timeline_of(self, session: LiveSession, begin: Start | Snapshot) -> Timeline:
        """What has been: of a snapshot all that is in it, though not all of it is fed again."""
        saved = (
            replace(session.snapshot(), units_TU=begin.units_TU) if isinstance(begin, Snapshot) else session.snapshot()
        )
        return Timeline(saved, self.world.layout(1).grid.frame_tokens, self._timeline, self._fed)

    def _run(self) -> None:
        while True:
            with self._news:
                if not self._tasks and not self._stopping and not self._arrivals:
                    self._news.wait(self._idle())
                tasks, stopping = [*self._tasks], self._stopping
                self._tasks.clear()
            for task, future in tasks:
                _do(task, future)
            if stopping:
                for arrival in self._arrivals:
                    arrival.waiting.cancel()
                return
            due = self._due()
            if due:
                self._tick(due)
            if self._arrivals:
                self._repeat(self._arrivals[0])

    def _repeat(self, arrival: Arrival) -> None:
        """One more frame of a session that is taken up."""
        if not arrival.waiting.cancelled():
            try:
                next(arrival.steps)
                return
            except StopIteration as ended:
                session: LiveSession = ended.value
                _do(lambda: arrival.seated(session), arrival.waiting)
                if arrival.waiting.cancelled() or arrival.waiting.exception() is not None:
                    session.close()
            except Exception as error:
                failed = error
                _do(lambda: _raise(failed), arrival.waiting)
        arrival.steps.close()
        self._arrivals.popleft()

    def _due(self) -> list[Player]:
        """Players whose frame is due, under the schedule that has had the least time. Schedules differ in their time
        for a frame: so nobody's frames come slower because others chose a slow one, but for their share."""
        groups: dict[str, list[Player]] = {}
        for player in self._players:
            if player.left() == 0.0:
                groups.setdefault(player.schedule, []).append(player)
        if not groups:
            return []
        # Who was away saves up no time.
        self._spent = {schedule: max(self._spent.get(schedule, 0.0), self._now) for schedule in groups}
        schedule = min(groups, key=lambda one: self._spent[one])
        self._now = self._spent[schedule]
        return groups[schedule]

    def _idle(self) -> float | None:
        """Seconds until a frame is due; None: nobody plays."""
        return min((left for player in self._players if (left := player.left()) is not None), default=None)

    def _tick(self, due: list[Player]) -> None:
        """The next frame of these players."""
        taken, began = [player.begin() for player in due], time.perf_counter()
        try:
            taken, pieces = self._step(due, taken)
        except Exception:  # whatever a model does: others may go on
            log.exception("a frame of %s failed", self.world.name)
            for player in due:
                player.deliver(Delivery((FAILED,)))
                self.leave(player)
            return
        schedule, took = due[0].schedule, time.perf_counter() - began
        self._spent[schedule] += took
        self.metrics.frames[schedule] += len(due)
        self.metrics.frame_seconds.observe(took)
        for player, one in zip(due, taken, strict=True):
            player.made(pieces[player.session], one)

    def _step(self, due: list[Player], taken: list[Taken]) -> tuple[list[Taken], dict[LiveSession, Piece]]:
        """The frames, and the controls that they show: where one plays alone, those that came early in its frame too.
        A control comes at any time, on average in the middle of a frame; it would wait for the next one."""
        actions = {player.session: one.action for player, one in zip(due, taken, strict=True)}
        active = [player for player in self._players if not player.paused]
        if active != due or len(due) > 1:
            return taken, self._arena.step(actions)
        (player,), (first,) = due, taken
        try:
            return taken, self._arena.step(actions, _Watch(player, first))
        except SupersededError:
            self.metrics.superseded += 1
            again = player.begin_over(first)
            return [again], self._arena.step({player.session: again.action})


class SupersededError(Exception):
    """A control came that the frame can still show, if it is begun over."""


class _Watch:
    """Called after every model call of a frame; raises in its first two thirds if the player asks for something else.
    Then the answer takes one frame. In the last third the frame is left to end, which throws less work away."""

    def __init__(self, player: Player, taken: Taken) -> None:
        self._player, self._taken, self._calls = player, taken, 0

    def __call__(self) -> None:
        self._calls += 1
        if 3 * self._calls <= 2 * self._player.calls and self._player.controls.changed(self._taken):
            raise SupersededError


def _raise(error: Exception) -> Any:
    raise error


def _do(task: Callable[[], Any], future: Future[Any]) -> None:
    """Do what was asked for, and say what came of it."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(task())
    except Exception as error:  # it is raised where the task was asked for
        future.set_exception(error)
