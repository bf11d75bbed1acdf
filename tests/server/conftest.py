"""A server of a tiny world, and a client that speaks as the page does."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import pytest
import uvicorn
from starlette.testclient import TestClient, WebSocketTestSession

import diagonal
from benchmarks.serving import Running
from diagonal import World
from diagonal.catalog.names import find
from diagonal.generation.snapshot import Snapshot
from diagonal.server import run
from diagonal.server.app import create_app
from diagonal.server.house import Served
from diagonal.server.settings import Limits, Settings
from diagonal.server.video_models import serve_video
from diagonal.server.world_models import serve_world
from diagonal.worlds import vizdoom
from tests.worlds import small_world

BASE = "http://127.0.0.1:8000"
SOCKET = "/v1/realtime/video"
HOST = {"host": "127.0.0.1:8000"}  # the test client has a name of its own otherwise


def tiny_world() -> World:
    """With a window so long that a snapshot has all frames of a test."""
    return small_world("doom/tiny", rows=12, cols=16, frames=40, reference_frames=4)


class Played(NamedTuple):
    """A frame as a client gets it, and the messages that came before it."""

    about: dict[str, Any]
    image: bytes
    before: list[dict[str, Any]]


class Player:
    """One who plays over a socket."""

    def __init__(self, socket: WebSocketTestSession) -> None:
        self.socket = socket

    def say(self, kind: str, **fields: Any) -> None:
        self.socket.send_json({"type": kind, **fields})

    def hear(self) -> dict[str, Any]:
        """The next message; of an image, what is said of it."""
        message: dict[str, Any] = self.socket.receive_json()
        return message

    def frame(self, acknowledge: bool = True) -> Played:
        """The next image."""
        before = []
        while (message := self.hear())["type"] != "video.frame":
            before.append(message)
        image = self.socket.receive_bytes()
        assert len(image) == message["byte_length"]
        if acknowledge:
            self.say("session.ack", frame=message["frame"])
        return Played(message, image, before)

    def until(self, kind: str) -> dict[str, Any]:
        """The next message of a kind; images in between are acknowledged."""
        while (message := self.hear())["type"] != kind:
            if message["type"] == "video.frame":
                self.socket.receive_bytes()
                self.say("session.ack", frame=message["frame"])
        return message

    def snapshot(self) -> Snapshot:
        """The session as it is now."""
        self.say("session.snapshot")
        return Snapshot.from_json(self.until("session.snapshot")["snapshot"])

    def start(self, **fields: Any) -> dict[str, Any]:
        """Begin, and give `session.started`."""
        self.say("session.start", **{"start": "hall", "seed": 3, "pace": False, **fields})
        started = self.hear()
        assert started["type"] == "session.started", started
        return started


Serve = Callable[..., TestClient]
Join = Callable[..., Player]
Listen = Callable[..., Running]


def actions_of(saved: Snapshot, given: int = 4) -> list[str]:
    """What was done in a session of Doom after the frames that it began with."""
    ids = saved.units_TU[given - 1 : -1, -1] - find("models", saved.model).config.codebook
    return [vizdoom.ACTIONS[index] for index in ids.tolist()]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server of `doom/tiny`; `limits` and settings are given by name."""
    with ExitStack() as stack:

        def start(limits: Limits | None = None, seats: int = 3, **settings: Any) -> TestClient:
            limits = limits or Limits()
            chosen = Settings(limits=limits, seats=seats, **settings)
            model = serve_world(tiny_world(), seats, limits)
            video = serve_video(diagonal.load("doom-t2v/tiny"), seats)
            app = create_app(chosen, {model.name: model, video.name: video})
            return stack.enter_context(TestClient(app, base_url=BASE, raise_server_exceptions=False))

        yield start


@pytest.fixture
def join() -> Iterator[Join]:
    """Open a socket."""
    with ExitStack() as stack:

        def open_socket(client: TestClient, query: str = "?model=doom/tiny", **headers: str) -> Player:
            return Player(stack.enter_context(client.websocket_connect(SOCKET + query, headers=HOST | headers)))

        yield open_socket


@contextmanager
def listening(limits: Limits, seats: int) -> Iterator[Running]:
    """A server in a thread of this process."""
    settings = Settings(port=0, seats=seats, limits=limits)
    world, video = serve_world(tiny_world(), seats, limits), serve_video(diagonal.load("doom-t2v/tiny"), seats)
    models: dict[str, Served] = {world.name: world, video.name: video}
    app, ready, found = create_app(settings, models), threading.Event(), list[str]()

    def on_ready(address: str) -> None:
        found.append(address)
        ready.set()

    with run.listen(settings) as place:
        server = run.Server(uvicorn.Config(app, **run.options(limits)), app.state.house, on_ready)
        thread = threading.Thread(target=server.run, args=([place],))
        thread.start()
        assert ready.wait(20)
        try:
            yield Running(found[0], os.getpid())
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Start a server that is reached over TCP."""
    with ExitStack() as stack:
        yield lambda limits=None, seats=4: stack.enter_context(listening(limits or Limits(), seats))
