"""A session is kept while it is played: every so many frames its snapshot goes to the store, in the background.

At most one snapshot of a session is on its way: a store that is slow keeps fewer of them, and one that hangs is given
up after a while. Whatever the store does, the session plays on, and its client is told when it is no longer kept.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from diagonal.server.metrics import Metrics
from diagonal.server.store import SnapshotStore, StoreError

THREADS = 4  # that may wait for the store
Result = TypeVar("Result")
log = logging.getLogger(__name__)


class Keeping:
    """The store as the event loop uses it: in threads of its own, and not for longer than it may take."""

    def __init__(self, store: SnapshotStore) -> None:
        self.store = store
        self._free = threading.Semaphore(THREADS)

    async def save(self, session_id: str, snapshot: dict[str, Any]) -> None:
        """Keep it, or raise StoreError."""
        await self._within(lambda: self.store.save(session_id, snapshot))

    async def load(self, session_id: str) -> dict[str, Any] | None:
        """What is kept, or StoreError."""
        return await self._within(lambda: self.store.load(session_id))

    async def remove(self, session_id: str) -> None:
        """Forget it, or StoreError."""
        await self._within(lambda: self.store.remove(session_id))

    async def prune(self, every: float) -> None:
        """Remove what is old, now and then, for ever."""
        while True:
            try:
                await self._within(self.store.prune)
            except StoreError as error:
                log.warning("%s", error)
            await asyncio.sleep(every)

    async def _within(self, work: Callable[[], Result]) -> Result:
        """Daemon threads: one that hangs holds up neither others nor the end of the process."""
        seconds, done = self.store.limits.seconds, Future[Result]()
        threading.Thread(target=self._run, args=(work, done), name="snapshot", daemon=True).start()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(done), seconds)
        except TimeoutError as error:
            place = self.store.place
            raise StoreError(f"the snapshot store {place} did not answer within {seconds:g} seconds") from error

    def _run(self, work: Callable[[], Result], done: Future[Result]) -> None:
        if not self._free.acquire(timeout=self.store.limits.seconds):
            return  # so many hang that nobody waits for this one any more
        try:
            if done.set_running_or_notify_cancel():
                done.set_result(work())
        except Exception as error:  # it is raised where it is waited for
            done.set_exception(error)
        finally:
            self._free.release()


class Kept:
    """One session. Used in the event loop alone."""

    def __init__(
        self,
        keeping: Keeping,
        session_id: str,
        snapshot: Callable[[], Awaitable[dict[str, Any]]],
        say: Callable[[dict[str, Any]], object],
        metrics: Metrics,
    ) -> None:
        self._keeping, self._id, self._snapshot, self._say = keeping, session_id, snapshot, say
        self._metrics, self._failing = metrics, False
        self._last: int | None = None  # frame of the newest snapshot that was asked for
        self._task: asyncio.Task[None] | None = None

    def shown(self, frame: int) -> None:
        """A frame was made: time for a snapshot, maybe. After the first one, and when the player went back."""
        last, every = self._last, self._keeping.store.limits.every
        due = last is None or frame < last or frame >= last + every
        if due and (self._task is None or self._task.done()):
            self._last = frame
            self._task = asyncio.create_task(self._keep())

    def stop(self) -> None:
        """The socket is closed."""
        if self._task is not None:
            self._task.cancel()

    async def forget(self) -> None:
        """The player left for good: nothing needs to be kept."""
        if self._last is None:
            return
        try:
            await self._keeping.remove(self._id)
        except StoreError as error:
            log.warning("%s", error)

    async def _keep(self) -> None:
        try:
            await self._keeping.save(self._id, await self._snapshot())
        except ValueError as error:  # a StoreError, or the session is closed
            self._metrics.not_kept += 1
            if not self._failing:
                log.warning("session %s is not kept: %s", self._id, error)
                self._say({"type": "session.not_kept", "message": f"{error}. The session plays on"})
            self._failing = True
        except RuntimeError as error:  # the world is closed: the session has ended
            log.info("session %s is not kept: %s", self._id, error)
        else:
            self._metrics.kept += 1
            self._failing = False
