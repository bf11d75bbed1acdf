"""Sessions are kept while they are played, and taken up by another server; whatever the store does, they play on."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from diagonal.server.app import create_app
from diagonal.server.settings import Limits, Settings
from diagonal.server.store import Folder, SnapshotStore, StoreError, StoreLimits
from diagonal.server.world_models import serve_world
from tests.server.conftest import BASE, HOST, SOCKET, Player
from tests.worlds import small_world

ID = "session_" + "0" * 32
EVERY = StoreLimits(every=4, seconds=2.0)
Open = Any


@pytest.fixture
def server() -> Iterator[Open]:
    """Start a server with a short window, whose sessions are kept in a place."""
    with ExitStack() as stack:

        def start(place: str | Path | None, keep: StoreLimits = EVERY, seats: int = 3) -> TestClient:
            settings = Settings(seats=seats, snapshots=None if place is None else str(place), keep=keep)
            world = small_world("doom/tiny", rows=12, cols=16, frames=6, reference_frames=2)
            app = create_app(settings, {world.name: serve_world(world, seats, Limits())})
            return stack.enter_context(TestClient(app, base_url=BASE, raise_server_exceptions=False))

        yield start


@pytest.fixture
def join() -> Iterator[Any]:
    with ExitStack() as stack:
        yield lambda client: Player(stack.enter_context(client.websocket_connect(SOCKET, headers=HOST)))


def wait_for(path: Path, beyond: float = 0.0) -> None:
    """A snapshot is written in the background."""
    for _ in range(500):
        if path.exists() and path.stat().st_mtime_ns > beyond:
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} did not come")


def played(player: Player, until: int, images: dict[int, bytes]) -> None:
    """Images of the frames up to a number."""
    while True:
        about, image, _ = player.frame()
        images[about["frame"]] = image
        if about["frame"] >= until:
            return


@pytest.mark.parametrize("place", ["{folder}", "memory://sessions", "file://{folder}"])
def test_another_server_takes_a_session_up_and_the_same_frames_follow(
    server: Open, join: Any, tmp_path: Path, place: str
) -> None:
    place = place.format(folder=tmp_path / "kept")
    player, seen = join(server(place)), dict[int, bytes]()
    started = player.start(format="webp", schedule="diagonal:k=2", pace=True)
    assert started["kept_every"] == 4
    player.say("session.control", seq=1, held=["right"])
    played(player, 14, seen)  # beyond the window of 6: its keys know of frames that have left
    player.say("session.update", paused=True)
    other, again = join(server(place)), dict[int, bytes]()
    other.say("session.start", resume=started["session_id"], format="webp", quality=85, paused=True)
    resumed = other.hear()
    assert resumed["type"] == "session.started" and resumed["session_id"] != started["session_id"]
    assert resumed["frame"] > 6 and (resumed["schedule"], resumed["seed"]) == ("diagonal:k=2", 3)
    other.say("session.control", seq=1, held=["right"])
    other.say("session.update", paused=False, pace=True)
    played(other, resumed["frame"] + 10, again)
    player.say("session.control", seq=2, held=["right"])
    player.say("session.update", paused=False)
    played(player, resumed["frame"] + 10, seen)  # what follows where nobody is disturbed
    both = again.keys() & seen.keys()
    assert len(both) >= 5 and all(again[frame] == seen[frame] for frame in both)


def test_a_session_is_taken_up_while_others_play(server: Open, join: Any, tmp_path: Path) -> None:
    """Frames are repeated one by one between those of others, and change nothing for anybody."""
    client = server(tmp_path)
    first, seen = join(client), dict[int, bytes]()
    session = first.start(format="webp", pace=True)["session_id"]
    played(first, 9, seen)
    with client.websocket_connect(SOCKET, headers=HOST) as socket:
        late = Player(socket)
        late.say("session.start", resume=session, format="webp", quality=85)
        again = dict[int, bytes]()
        assert late.hear()["type"] == "session.started"
        played(late, 12, again)
    played(first, 12, seen)
    assert len(again.keys() & seen.keys()) >= 3
    assert all(again[frame] == seen[frame] for frame in again.keys() & seen.keys())


def test_when_the_server_stops_sessions_are_handed_over_at_their_last_frame(
    server: Open, join: Any, tmp_path: Path
) -> None:
    client = server(tmp_path)
    player = join(client)
    session = player.start(pace=True)["session_id"]
    player.frame()
    client.portal.call(client.app.state.house.say_goodbye, "a new version")
    closing = player.until("session.closing")
    assert closing["resume"] == session
    with pytest.raises(WebSocketDisconnect) as closed:
        player.hear()
    assert closed.value.code == 1012
    other = join(server(tmp_path))
    other.say("session.start", resume=closing["resume"], paused=True)
    assert other.hear()["frame"] == closing["snapshot"]["frame"]


def test_who_leaves_for_good_leaves_nothing_behind(server: Open, join: Any, tmp_path: Path) -> None:
    player = join(server(tmp_path))
    path = tmp_path / f"{player.start()['session_id']}.json"
    wait_for(path)
    player.say("session.stop")
    player.until("session.done")
    for _ in range(500):
        if not path.exists():
            return
        time.sleep(0.01)
    raise AssertionError("the snapshot of a session that is over was kept")


def no_space(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def gone(*_: Any) -> None:
    raise FileNotFoundError(errno.ENOENT, "no such folder")


@pytest.mark.parametrize(("broken", "why"), [(no_space, "is full"), (gone, "is gone")])
def test_a_store_that_fails_is_told_once_and_the_session_plays_on(
    server: Open, join: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Any, why: str
) -> None:
    client = server(tmp_path)
    monkeypatch.setattr(Folder, "write", broken)
    player = join(client)
    player.start()
    told = player.until("session.not_kept")
    assert why in told["message"] and str(tmp_path) in told["message"]
    before = [message["type"] for _ in range(12) for message in player.frame().before]
    assert "session.not_kept" not in before
    metrics = client.get("/metrics").text
    assert 'diagonal_snapshots_failed_total{model="doom/tiny"} 0' not in metrics


def test_a_store_that_hangs_is_given_up_and_the_session_plays_on(
    server: Open, join: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, released = server(tmp_path, StoreLimits(every=1, seconds=0.2)), threading.Event()
    monkeypatch.setattr(Folder, "write", lambda *_: released.wait(30))
    player, before = join(client), threading.active_count()
    player.start()
    assert "did not answer within 0.2 seconds" in player.until("session.not_kept")["message"]
    for _ in range(30):
        player.frame()
    assert threading.active_count() <= before + 16  # four that hang, and those that wait to be given up
    released.set()


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "there is no session"), ("{", "damaged"), ("[]", "no snapshot"), ("{}", "shape"), ("x" * 5000, "bytes")],
)
def test_what_cannot_be_taken_up_is_refused_in_words(
    server: Open, join: Any, tmp_path: Path, content: str | None, why: str
) -> None:
    client = server(tmp_path, StoreLimits(bytes=4096))
    if content is not None:
        (tmp_path / f"{ID}.json").write_text(content)
    player = join(client)
    player.say("session.start", resume=ID)
    error = player.hear()
    assert error["type"] == "error" and why in error["message"], error
    assert client.get("/v1/models").json()["data"][0]["free"] == 3


def test_a_session_is_resumed_by_its_id_alone(server: Open, join: Any, tmp_path: Path) -> None:
    client = server(tmp_path)
    for fields, code in (
        ({"resume": "../../etc/passwd"}, "bad_value"),
        ({"resume": ID, "start": "hall"}, "bad_value"),
        ({"resume": ID, "snapshot": {}}, "bad_value"),
    ):
        player = join(client)
        player.say("session.start", **fields)
        assert player.hear()["code"] == code
    player = join(server(None))
    player.say("session.start", resume=ID)
    error = player.hear()
    assert error["code"] == "not_kept" and "--snapshots" in error["message"]


def test_the_store_refuses_what_is_too_large_and_removes_what_is_old(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, StoreLimits(bytes=100, age_seconds=60))
    store.check()
    with pytest.raises(StoreError, match="at most 100"):
        store.save(ID, {"long": "x" * 100})
    with pytest.raises(ValueError, match="no id"):
        store.save("../elsewhere", {})
    store.save(ID, {"frame": 1})
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    for path in (tmp_path / f"{ID}.json", other):
        os.utime(path, (time.time() - 120,) * 2)
    assert store.prune() == 1 and [*tmp_path.iterdir()] == [other]
    assert store.load(ID) is None


def test_a_place_that_cannot_hold_snapshots_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StoreError, match="cannot be made: it is a file"):
        SnapshotStore(file).check()
    with pytest.raises(ValueError, match="nonsense"):
        SnapshotStore("nonsense://somewhere")
