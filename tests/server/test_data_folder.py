"""Whatever strangers send, the server reads and writes in its data folder alone, starts nothing and calls nobody.

Python tells of every file that it opens, moves or deletes, and of every connection (`sys.addaudithook`). What libraries
of C open by themselves it does not tell: clips are therefore decoded from memory, under a format that the server names.
"""

from __future__ import annotations

import mimetypes
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import diagonal
from diagonal.media.provenance import certificates
from diagonal.media.provenance.writing import Marking
from diagonal.server.settings import Limits
from tests.server.conftest import HOST, SOCKET, Player, tiny_world
from tests.server.job_server import PROMPT, SMALL, VIDEO, WORLD, create, finished, picture, started
from tests.signers import write_pair

PATHS = {  # events of files, and which of their arguments are paths
    "open": (0,),
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.mkdir": (0,),
    "os.rmdir": (0,),
    "os.chmod": (0,),
    "os.link": (0, 1),
    "os.symlink": (0, 1),
    "os.truncate": (0,),
    "os.listdir": (0,),
    "os.scandir": (0,),
    "shutil.rmtree": (0,),
    "sqlite3.connect": (0,),
    "tempfile.mkstemp": (0,),
    "tempfile.mkdtemp": (0,),
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
NEVER = (
    "subprocess.Popen",
    "os.exec",
    "os.system",
    "os.posix_spawn",
    "socket.connect",
    "socket.getaddrinfo",
    "socket.bind",
)
SYSTEM = {"/etc/os-release", *mimetypes.knownfiles}  # that Python reads to know where it runs
READ = [sys.prefix, sys.base_prefix, str(Path(diagonal.__file__).parent), "/dev/", "/proc/", "/sys/"]


class Watch:
    """What happens while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.touched: set[tuple[str, str]] = set()
        self.never: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in NEVER:
            self.never.append(f"{event}{arguments}")
        for place in PATHS.get(event, ()):
            path = arguments[place]
            if isinstance(path, str | bytes | os.PathLike):
                looks = event in ("os.listdir", "os.scandir") or (event == "open" and not (arguments[2] or 0) & WRITING)
                within = arguments[-1] if event in ("os.remove", "os.rmdir") else -1  # a folder that is open
                base = os.readlink(f"/proc/self/fd/{within}") if within >= 0 else ""
                self.touched.add(("read" if looks else "write", os.path.abspath(os.path.join(base, os.fsdecode(path)))))


WATCH = Watch()
sys.addaudithook(WATCH)  # there is no way to take it off: it is off by its flag


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Path]]:
    folder = tmp_path_factory.mktemp("watched")
    key, chain, _ = write_pair(folder)
    marking = Marking(certificates.own(key, chain))
    # Kernels are compiled once for a machine, whoever asks first: by now they are.
    tiny_world().generate(tiny_world().actions.start("hall")[0][:1], ["left"])
    diagonal.load(VIDEO).generate(PROMPT, num_frames=11)
    with started(Limits(jobs=32), data=folder / "data", marking=marking) as client:
        WATCH.touched.clear()
        WATCH.never.clear()
        WATCH.on = True
        yield client, folder / "data"
        WATCH.on = False


TRICKS = [
    "../../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/jobs.sqlite",
    "/etc/passwd",
    "jobs.sqlite",
]
FILES = ["../../outside.png", "/tmp/outside.png", "C:\\outside.png", "video.mp4", "a\x00b.png", "x" * 5000]


def _requests(client: TestClient) -> None:
    for trick in TRICKS:
        for method, end in (("GET", ""), ("GET", "/content"), ("DELETE", ""), ("POST", "/cancel"), ("POST", "/remix")):
            assert client.request(method, f"/v1/videos/{trick}{end}", json={}).status_code in (400, 404, 405, 415)
        for path in (
            f"/static/{trick}",
            f"/v1/models/{trick}/starts/{trick}",
            f"/v1/sessions/{trick}/snapshot",
            f"/{trick}",
        ):
            assert client.get(path).status_code in (400, 404)
        for fields in ({"model": trick}, {"start": trick}, {"schedule": trick}, {"actions": trick}, {"id": trick}):
            assert client.post("/v1/videos", json={"model": WORLD, **fields}).status_code in (400, 404)
        refer = {"input_reference": {"image_url": f"file://{trick}"}}
        assert client.post("/v1/videos", json={"model": WORLD, **refer}).status_code == 400
    for name in FILES:
        for data in (picture(), b"#EXTM3U\n/etc/passwd\n", b"\x00\x00\x00\x18ftypqt  " + b"/etc/passwd" * 99):
            answer = client.post(
                "/v1/videos", data={"model": WORLD, "prompt": "left"}, files={"input_reference": (name, data)}
            )
            assert answer.status_code in (200, 400, 429), answer.text
    big = {"input_reference": ("x.png", bytes(3_000_000))}  # more than forms usually keep in memory
    assert client.post("/v1/videos", data={"model": WORLD}, files=big).status_code == 400


def _sessions(client: TestClient) -> None:
    for text in (
        '{"type": "session.start", "start": "../../etc/passwd"}',
        '{"type": "session.start", "snapshot": {"model": "/"}}',
    ):
        with client.websocket_connect(f"{SOCKET}?model={WORLD}", headers=HOST) as socket:
            socket.send_text(text)
            assert socket.receive_json()["type"] == "error"
    with client.websocket_connect(f"{SOCKET}?model={WORLD}", headers=HOST) as socket:
        player = Player(socket)
        session = player.start(pace=False)["session_id"]
        player.frame()
        assert client.get(f"/v1/sessions/{session}/recording").content[4:8] == b"ftyp"


def test_nothing_outside_the_data_folder_is_read_or_written(watched: tuple[TestClient, Path]) -> None:
    client, data = watched
    _requests(client)
    _sessions(client)
    for model, prompt in ((WORLD, "left*2"), (VIDEO, PROMPT)):
        job = create(client, model=model, prompt=prompt, num_frames=2 if model == WORLD else 17, **SMALL)
        assert finished(client, job)["status"] == "completed"
        for variant in ("video", "thumbnail", "spritesheet"):
            assert client.get(f"/v1/videos/{job['id']}/content", params={"variant": variant}).status_code == 200
    client.delete(f"/v1/videos/{job['id']}")
    WATCH.on = False
    assert WATCH.never == []
    outside = {(how, path) for how, path in WATCH.touched if not path.startswith(str(data))}
    assert [path for how, path in outside if how == "write"] == []
    assert {path for how, path in outside if not path.startswith(tuple(READ))} <= SYSTEM
    assert any(path.endswith("video.mp4") for _, path in WATCH.touched)  # it was looking
    names = {path.name for path in data.rglob("*") if path.is_file()}
    kept = {name for name in names if re.fullmatch(r"session_[0-9a-f]{32}\.json", name)}
    made = {"video.mp4", "thumbnail.webp", "spritesheet.jpg", "input", "jobs.sqlite", "jobs.sqlite-wal"}
    assert names - kept <= made


def test_the_watch_sees_what_is_done_elsewhere(tmp_path: Path) -> None:
    """Or the test above could not fail."""
    WATCH.on = True

    def touch() -> None:
        (tmp_path / "x").write_bytes(b"x")
        (tmp_path / "x").unlink()

    thread = threading.Thread(target=touch)
    thread.start()
    thread.join()
    WATCH.on = False
    assert ("write", str(tmp_path / "x")) in WATCH.touched
