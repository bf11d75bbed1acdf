"""All that a running server has: its models, and the sessions that are open."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from diagonal.server.models import ServedWorld
from diagonal.server.settings import Settings


class Open(Protocol):
    """A session that is open."""

    async def end(self, reason: str) -> None:
        """Say why, and end it."""
        ...


@dataclass(slots=True)
class House:
    """Made once for every application."""

    settings: Settings
    models: Mapping[str, ServedWorld]
    sessions: dict[str, Open] = field(default_factory=dict)
    closing: bool = False

    def start(self) -> None:
        """Start the threads of all worlds."""
        for model in self.models.values():
            model.ticker.start()

    async def say_goodbye(self, reason: str) -> None:
        """End all sessions, and take no more."""
        self.closing = True
        await asyncio.gather(*(session.end(reason) for session in [*self.sessions.values()]), return_exceptions=True)

    def stop(self) -> None:
        """End the threads of all worlds."""
        for model in self.models.values():
            model.ticker.stop()

    def health(self) -> dict[str, Any]:
        """Whether it runs, and how full it is."""
        seats = sum(model.seats.count for model in self.models.values())
        status = "closing" if self.closing else "ok"
        return {"status": status, "models": len(self.models), "sessions": len(self.sessions), "seats": seats}
