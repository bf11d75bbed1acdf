"""Servers for tests of jobs: one for a module, since starting one takes longer than a job of a tiny model."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import uvicorn
from PIL import Image
from starlette.testclient import TestClient

import diagonal
from diagonal.media.video import VideoArray
from diagonal.server.app import create_app
from diagonal.server.jobs.runner import Runner
from diagonal.server.settings import Limits, Settings
from diagonal.server.video_models import serve_video
from diagonal.server.world_models import serve_world
from tests.server.conftest import BASE, tiny_world

WORLD: Final = "doom/tiny"
VIDEO: Final = "doom-t2v/tiny"
PROMPT = "walking forward through a brick corridor"
SMALL = {"size": "128x96"}  # not enlarged
ENDED = ("completed", "failed")


def application(limits: Limits, **settings: Any) -> Any:
    """Tiny models of both kinds behind a server."""
    chosen = Settings(limits=limits, **settings)
    world = serve_world(tiny_world(), chosen.seats, limits)
    video = serve_video(diagonal.load(VIDEO), chosen.seats)
    return create_app(chosen, {world.name: world, video.name: video})


@contextmanager
def started(limits: Limits | None = None, **settings: Any) -> Iterator[TestClient]:
    """A server that runs."""
    app = application(limits or Limits(), **settings)
    with TestClient(app, base_url=BASE, raise_server_exceptions=False) as client:
        yield client


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """A server on a port of its own, as host and port."""
    config = uvicorn.Config(app, port=0, log_level="warning", ws="websockets-sansio", ws_per_message_deflate=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(30)


def runner_of(client: TestClient) -> Runner:
    """What makes its jobs."""
    runner: Runner = client.app.state.jobs  # type: ignore[attr-defined]
    return runner


def create(client: TestClient, **fields: Any) -> dict[str, Any]:
    """A job that is taken."""
    answer = client.post("/v1/videos", json=fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def look(client: TestClient, job: dict[str, Any]) -> dict[str, Any]:
    """A job as it is now."""
    answer = client.get(f"/v1/videos/{job['id']}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def finished(client: TestClient, job: dict[str, Any], seconds: float = 60.0) -> dict[str, Any]:
    """A job when it has ended."""
    until = time.monotonic() + seconds
    while (now := look(client, job))["status"] not in ENDED:
        assert time.monotonic() < until, now
        time.sleep(0.01)
    return now


def content(client: TestClient, job: dict[str, Any]) -> VideoArray:
    """The frames of a video."""
    import av

    answer = client.get(f"/v1/videos/{job['id']}/content")
    assert answer.status_code == 200 and answer.headers["content-type"] == "video/mp4"
    with av.open(io.BytesIO(answer.content), "r") as opened:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in opened.decode(video=0)])


def refused(client: TestClient, status: int, **request: Any) -> dict[str, Any]:
    """The error of a request for a video."""
    answer = client.post("/v1/videos", **request)
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["message"] and error["code"] and error["type"]
    return error


def picture(height: int = 96, width: int = 128, kind: str = "PNG") -> bytes:
    """A picture as a file."""
    file, levels = io.BytesIO(), np.arange(height * width * 3, dtype=np.uint32) // 97 % 256
    Image.fromarray(levels.astype(np.uint8).reshape(height, width, 3)).save(file, kind)
    return file.getvalue()
