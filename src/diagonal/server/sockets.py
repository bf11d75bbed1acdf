"""What all sockets have: their first message, a seat, and codes to close with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect

from diagonal.server.house import House, Served
from diagonal.server.wire import RefusedError

DONE, UNSUPPORTED, POLICY, TOO_LARGE, INTERNAL, RESTART, NO_SEAT = 1000, 1003, 1008, 1009, 1011, 1012, 1013
SLOW_START = 4408
FAREWELL = 5.0  # seconds for a client to read what is left
FIRST_CODES = {
    "bad_json": UNSUPPORTED,
    "unknown_type": UNSUPPORTED,
    "too_large": TOO_LARGE,
    "no_seat": NO_SEAT,
    "start_timeout": SLOW_START,
}


class Conversation(Protocol):
    """What is done on a socket that has a seat."""

    async def run(self) -> None:
        """All of it."""
        ...


async def receive_text(socket: WebSocket, seconds: float | None) -> str | bytes | None:
    """The next message; TimeoutError if none comes."""
    message = await asyncio.wait_for(socket.receive(), seconds)
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1006))
    text: str | bytes | None = message.get("text") or message.get("bytes")
    return text


async def attend(
    socket: WebSocket, model: Served, house: House, begin: Callable[[str | bytes | None], Conversation]
) -> None:
    """All of a socket that was accepted: `begin` makes of its first message what is done."""
    try:
        conversation = begin(await _first(socket, house.settings.limits.start_seconds))
        with model.seats.one() as seated:
            if not seated or house.closing:
                model.metrics.refused += 1
                why = (
                    "the server stops" if house.closing else f"all {model.seats.count} seats of {model.name} are taken"
                )
                raise RefusedError("no_seat", f"{why}; try again later")
            await conversation.run()
    except RefusedError as refused:
        await refuse(socket, refused)


async def refuse(socket: WebSocket, refused: RefusedError) -> None:
    """Say why, and close."""
    await farewell(socket, FIRST_CODES.get(refused.code, POLICY), refused.as_json())


async def farewell(socket: WebSocket, code: int, last: dict[str, Any] | None = None) -> None:
    """Close, after a last message if there is one. Who takes nothing any more is not waited for."""
    with suppress(TimeoutError):
        async with asyncio.timeout(FAREWELL):
            if last is not None:
                await socket.send_json(last)
            await socket.close(code, str(last.get("code", "")) if last else "")


def check_model(named: str | None, name: str) -> None:
    """Refuse a first message that names another model than the address."""
    if named not in (None, name):
        raise RefusedError("unknown_model", f"model {named!r} given, and {name!r} in the address")


async def _first(socket: WebSocket, seconds: float) -> str | bytes | None:
    try:
        return await receive_text(socket, seconds)
    except TimeoutError as error:
        raise RefusedError("start_timeout", f"no session.start came within {seconds:g} seconds") from error
