"""Ten thousand sessions, opened and closed in every way that there is: all seats are free, and nothing is kept."""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from diagonal.server.app import create_app
from diagonal.server.player import Player
from diagonal.server.seats import Seats
from diagonal.server.settings import Limits, Settings
from diagonal.server.starts import Start
from diagonal.server.ticker import Ticker
from diagonal.server.world_models import ServedWorld
from diagonal.server.world_socket import WorldSocket
from tests.server.job_server import WORLD
from tests.worlds import prompt_of, small_world

SESSIONS, TOGETHER = 10_000, 16
START: dict[str, Any] = {"type": "session.start", "seed": 1, "paused": True}
SCOPE: dict[str, Any] = {
    "type": "websocket",
    "path": "/v1/realtime/video",
    "raw_path": b"/v1/realtime/video",
    "root_path": "",
    "scheme": "ws",
    "query_string": b"",
    "headers": [(b"host", b"127.0.0.1")],
    "client": ("127.0.0.1", 1),
    "server": ("127.0.0.1", 8000),
    "subprotocols": [],
}
SEATED: list[list[dict[str, Any] | None]] = [
    [START, {"type": "session.stop"}],
    [START, None],  # it vanishes
    [START, {"type": "session.update", "paused": False}, {"type": "session.stop"}],  # after a frame
    [START, {"type": "session.dance"}, {"type": "session.start"}, None],
    [START, {"type": "session.snapshot"}, None],  # it does not wait for what it asked for
]
BEFORE: list[list[dict[str, Any] | None]] = [
    [None],
    [{"type": "session.dance"}],
    [START | {"start": "nowhere"}],
]  # none of them has its first frame
EVERY = 4  # one session of so many gets a seat: those take time


def _resident() -> float:
    """MiB of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


async def _session(app: Any, way: list[dict[str, Any] | None]) -> str:
    """One client, at the level of ASGI; gives the types of what it heard first and last."""
    said, heard = iter(way), list[str]()
    begun = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not heard:
            heard.append("")
            return {"type": "websocket.connect"}
        message = next(said, None)
        if message is not START and way[0] is START:
            await begun.wait()  # a client has a seat before it goes on
        if message is None:
            return {"type": "websocket.disconnect", "code": 1006}
        return {"type": "websocket.receive", "text": json.dumps(message)}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "websocket.send" and "text" in message:
            heard.append(json.loads(message["text"])["type"])
            begun.set()
        if message["type"] == "websocket.close":
            begun.set()

    await app(dict(SCOPE), receive, send)
    return heard[1] if len(heard) > 1 else ""


async def _many(app: Any, count: int) -> Counter[str]:
    room, first = asyncio.Semaphore(TOGETHER), Counter[str]()

    async def one(number: int) -> None:
        ways, place = (BEFORE, number) if number % EVERY else (SEATED, number // EVERY)
        async with room:
            first[await _session(app, ways[place % len(ways)])] += 1

    await asyncio.gather(*(one(number) for number in range(count)))
    return first


async def _served() -> None:
    limits = Limits(timeline=16)
    small, seats = small_world(WORLD), TOGETHER
    begin = Start(prompt_of(small, 2), None, np.zeros((*small.size, 3), np.uint8))
    world = ServedWorld(WORLD, small, {"drawn": begin}, Seats(seats), Ticker(small, seats, limits.timeline), 0)
    app = create_app(Settings(limits=limits, seats=seats), {WORLD: world})
    async with app.router.lifespan_context(app):
        await _many(app, SESSIONS // 5)
        gc.collect()
        before = _resident()
        first = await _many(app, SESSIONS - SESSIONS // 5)
        gc.collect()
        assert first["session.started"] == (SESSIONS - SESSIONS // 5) // EVERY and first["error"] > SESSIONS // 4
        assert (world.seats.free, app.state.house.sessions) == (world.seats.count, {})
        assert _resident() - before < 30
        # The thread of the world may remember those whom it served last.
        kept = [one for one in gc.get_objects() if type(one) in (WorldSocket, Player)]
        assert len(kept) <= 2 * TOGETHER
        assert (world.metrics.sessions, world.metrics.refused) == (SESSIONS // EVERY, 0)


def test_ten_thousand_sessions_leave_nothing_behind() -> None:
    asyncio.run(_served())
