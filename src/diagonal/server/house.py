"""All that a running server has: its models, the sessions that are open, and its folder."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from diagonal.server.keeping import Keeping
from diagonal.server.metrics import exposition
from diagonal.server.player import Player
from diagonal.server.settings import Settings
from diagonal.server.store import SnapshotStore, StoreError
from diagonal.server.ticker import Ticker
from diagonal.server.video_models import ServedVideo
from diagonal.server.world_models import ServedWorld

Served = ServedWorld | ServedVideo
Elsewhere = Callable[[str, str], Awaitable[bytes | None]]
PRUNED_EVERY = 3600.0  # seconds
GOODBYE = 5.0  # seconds in which clients are told that the server stops
log = logging.getLogger(__name__)


class Streaming(Protocol):
    """A video that is being made for a socket."""

    def close(self, reason: str) -> None:
        """The server goes: say so, and end."""
        ...


class Open(Protocol):
    """A session in a world."""

    @property
    def ticker(self) -> Ticker: ...

    @property
    def player(self) -> Player: ...

    async def snapshot(self) -> dict[str, Any]:
        """The session as a file."""
        ...

    async def stand(self) -> dict[str, Any]:
        """The same, and no frame is made after it."""
        ...

    def close(self, reason: str, snapshot: dict[str, Any], is_kept: bool) -> None:
        """The server goes: say so, and end. `is_kept`: another server can take the session up by its id."""
        ...


class House:
    """Made once for every application."""

    def __init__(self, settings: Settings, models: Mapping[str, Served]) -> None:
        self.settings, self.models = settings, models
        self.sessions: dict[str, Open] = {}
        self.videos: set[Streaming] = set()
        self.recording = asyncio.Semaphore(1)  # each takes time from those who play
        self.closing = False
        self._temporary = None if settings.data else tempfile.TemporaryDirectory(prefix="diagonal-")
        self.data = settings.data or Path(self._temporary.name if self._temporary else "")
        store = settings.store
        self.keeping = None if store is None else Keeping(SnapshotStore(store, settings.keep))
        self._pruning: asyncio.Task[None] | None = None
        self.replica: str | None = None  # its name among others
        self.elsewhere: Elsewhere | None = None  # asks other servers for a file of a session that is not here

    def start(self) -> None:
        """Start the threads of all worlds."""
        self.data.mkdir(parents=True, exist_ok=True)
        if self.keeping is not None:
            try:
                self.keeping.store.check()
            except StoreError as error:  # it may come back
                log.warning("sessions are not kept: %s", error)
            self._pruning = asyncio.create_task(self.keeping.prune(PRUNED_EVERY))
        for model in self.models.values():
            model.start()

    async def say_goodbye(self, reason: str) -> None:
        """End all sessions, and take no more. What they are is told to their clients, and kept in the folder."""
        self.closing = True
        for video in [*self.videos]:
            video.close(reason)
        await asyncio.gather(*(self._farewell(*one, reason) for one in [*self.sessions.items()]))
        with suppress(TimeoutError):  # who does not read is not waited for
            async with asyncio.timeout(GOODBYE):
                while self.sessions or self.videos:
                    await asyncio.sleep(0.02)

    def reopen(self) -> None:
        """Take sessions again."""
        self.closing = False

    def stop(self) -> None:
        """End the threads of all worlds."""
        if self._pruning is not None:
            self._pruning.cancel()
        for model in self.models.values():
            model.stop()
        if self._temporary is not None:
            self._temporary.cleanup()

    def health(self) -> dict[str, Any]:
        """Whether it runs, and how full it is."""
        seats = sum(model.seats.count for model in self.models.values())
        open_now = len(self.sessions) + len(self.videos)
        status = "closing" if self.closing else "ok"
        named = {} if self.replica is None else {"replica": self.replica}
        return {"status": status, "models": len(self.models), "sessions": open_now, "seats": seats, **named}

    def metrics(self) -> str:
        """The text of `/metrics`."""
        return exposition(
            {
                name: (model.metrics, model.seats.count - model.seats.free, model.seats.count)
                for name, model in self.models.items()
            }
        )

    async def _farewell(self, name: str, session: Open, reason: str) -> None:
        """Keep a session as it stands, and end it."""
        try:
            snapshot = await session.stand()
        except Exception as error:  # whatever it is, the others are told
            log.warning("session %s is not kept: %s", name, error)
            return
        is_kept = self.keeping is not None
        try:
            if self.keeping is not None:
                await self.keeping.save(name, snapshot)
        except StoreError as error:
            log.warning("session %s is not kept: %s", name, error)
            is_kept = False
        session.close(reason, snapshot, is_kept)
