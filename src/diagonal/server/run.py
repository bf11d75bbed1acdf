"""The application under uvicorn: sessions are told before the server goes."""

from __future__ import annotations

import ctypes
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from diagonal.server.house import House
from diagonal.server.settings import Limits, Settings

GRACE = 10  # seconds for requests to end when the server stops
M_MMAP_THRESHOLD, LARGE = -3, 2**20  # glibc's number of a setting; bytes: less takes a tenth of the time of a frame
SWITCH = 0.0005  # seconds that a thread may keep Python's lock; by default ten times as long


class Server(uvicorn.Server):
    """Says goodbye to sessions while their sockets are open still."""

    def __init__(self, config: uvicorn.Config, house: House, on_ready: Callable[[str], object]) -> None:
        super().__init__(config)
        self._house, self._on_ready = house, on_ready

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End, and with success: uvicorn's own raises the signal again at the end, as if it had been killed. A second
        Ctrl-C waits for nobody."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where."""
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End sessions, then all else."""
        await self._house.say_goodbye("the server stops")
        await super().shutdown(sockets)


def serve(app: FastAPI, settings: Settings, on_ready: Callable[[str], object]) -> None:
    """Run until SIGINT or SIGTERM. Threads hand over Python's lock soon: an image goes through several before it is
    sent, and each would wait for the thread of the world, which is in the midst of the next frame."""
    sys.setswitchinterval(SWITCH)
    _give_memory_back()
    with listen(settings) as place:
        Server(uvicorn.Config(app, **options(settings.limits)), app.state.house, on_ready).run([place])


def _give_memory_back() -> None:
    """glibc gives a block back to the system if it is large, and what counts as large grows with every one. Soon the
    frames of all sessions do not, and small things that stay among them keep their places: a quarter more memory."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)


def options(limits: Limits) -> dict[str, Any]:
    """What uvicorn is told. Images do not compress, so messages are not compressed; and data that is compressed in the
    server would hide from it that a client does not keep up."""
    return {
        "ws": "websockets-sansio",
        "ws_max_size": limits.start_bytes,
        "ws_per_message_deflate": False,
        "limit_concurrency": limits.connections,
        "timeout_graceful_shutdown": GRACE,
        "access_log": False,  # addresses may have the token in them
        "log_level": "warning",
        "server_header": False,
    }


def listen(settings: Settings) -> socket.socket:
    """A socket where the server is to be reached."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host.strip("[]"), settings.port), family=family)
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]  # what follows is the address again
        raise ValueError(
            f"host {settings.host}, port {settings.port}: {why}; --port 0 takes any port that is free"
        ) from error
