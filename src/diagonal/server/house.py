"""All that a running server has: its models, the sessions that are open, and its folder."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from diagonal.media.files import atomic
from diagonal.server.metrics import exposition
from diagonal.server.player import Player
from diagonal.server.settings import Settings
from diagonal.server.ticker import Ticker
from diagonal.server.video_models import ServedVideo
from diagonal.server.world_models import ServedWorld

Served = ServedWorld | ServedVideo
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

    def close(self, reason: str, snapshot: dict[str, Any]) -> None:
        """The server goes: say so, and end."""
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

    def start(self) -> None:
        """Start the threads of all worlds."""
        self.data.mkdir(parents=True, exist_ok=True)
        for model in self.models.values():
            model.start()

    async def say_goodbye(self, reason: str) -> None:
        """End all sessions, and take no more. What they are is told to their clients, and kept in the folder."""
        self.closing = True
        for video in [*self.videos]:
            video.close(reason)
        open_now = [*self.sessions.items()]
        saved = await asyncio.gather(*(one.snapshot() for _, one in open_now), return_exceptions=True)
        for (name, session), snapshot in zip(open_now, saved, strict=True):
            if isinstance(snapshot, BaseException):
                log.warning("session %s is not kept: %s", name, snapshot)
                continue
            session.close(reason, snapshot)
            self._keep(name, snapshot)
        with suppress(TimeoutError):  # who does not read is not waited for
            async with asyncio.timeout(GOODBYE):
                while self.sessions or self.videos:
                    await asyncio.sleep(0.02)

    def stop(self) -> None:
        """End the threads of all worlds."""
        for model in self.models.values():
            model.stop()
        if self._temporary is not None:
            self._temporary.cleanup()

    def health(self) -> dict[str, Any]:
        """Whether it runs, and how full it is."""
        seats = sum(model.seats.count for model in self.models.values())
        open_now = len(self.sessions) + len(self.videos)
        status = "closing" if self.closing else "ok"
        return {"status": status, "models": len(self.models), "sessions": open_now, "seats": seats}

    def metrics(self) -> str:
        """The text of `/metrics`."""
        return exposition(
            {
                name: (model.metrics, model.seats.count - model.seats.free, model.seats.count)
                for name, model in self.models.items()
            }
        )

    def _keep(self, name: str, snapshot: dict[str, Any]) -> None:
        folder = self.data / "sessions"
        folder.mkdir(parents=True, exist_ok=True)
        with atomic(folder / f"{name}.json") as temporary:
            temporary.write_text(json.dumps(snapshot), encoding="utf-8")
