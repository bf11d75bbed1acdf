"""Jobs outlive the server: what it was doing when it ended is done again, once, and says so; and what it may take."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diagonal.media.provenance import certificates
from diagonal.media.provenance.credentials import TRUSTED
from diagonal.media.provenance.verify import verify
from diagonal.media.provenance.writing import Marking
from diagonal.server.jobs.store import FOLDER, Job, Store, check_folder
from diagonal.server.settings import Limits
from tests.server.job_server import (
    PROMPT,
    SMALL,
    VIDEO,
    WORLD,
    content,
    create,
    finished,
    look,
    refused,
    started,
)
from tests.signers import write_pair


def _job(number: int, **changes: Any) -> Job:
    fields = {"model": WORLD, "prompt": "left*2", "seed": 3, **SMALL}
    job = Job(id=f"video_{number:032x}", model=WORLD, fields=fields, frames=2, fps=8.75, size=(96, 128), schedule="")
    return replace(job, **changes)


def test_what_a_server_left_is_settled_by_the_next(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    left = {
        "waiting": _job(1),
        "cut off": _job(2, status="in_progress"),
        "cut off twice": _job(3, status="in_progress", restarts=1),
        "of another model": _job(4, model="mcar/700m"),
        "done": _job(5, status="completed", completed_at=1.0, expires_at=time.time() + 100),
    }
    store = Store(tmp_path / FOLDER)
    for job in left.values():
        store.add(job, None)
    (store.place(left["done"].id) / "video.mp4").write_bytes(b"video")
    (store.place(left["cut off"].id) / ".video-x1.mp4").write_bytes(b"half")
    (store.folder / ("video_" + 32 * "f")).mkdir()  # of a job that was never kept
    store.close()
    with started(data=tmp_path) as client:
        now = {name: finished(client, {"id": job.id}) for name, job in left.items()}
        assert (now["waiting"]["status"], now["waiting"]["restarts"]) == ("completed", 0)
        assert (now["cut off"]["status"], now["cut off"]["restarts"]) == ("completed", 1)
        assert left["cut off"].id in caplog.text
        assert content(client, now["waiting"]).tobytes() == content(client, now["cut off"]).tobytes()
        assert now["cut off twice"]["error"]["code"] == "interrupted"
        assert now["of another model"]["error"]["code"] == "model_gone"
        assert now["done"]["status"] == "completed"
        files = {path.name for path in (tmp_path / FOLDER).glob("*/*")}
        assert files == {"video.mp4", "thumbnail.webp", "spritesheet.jpg"}
        assert not (store.folder / ("video_" + 32 * "f")).exists()


def test_a_server_that_stops_leaves_nothing_half_written_and_the_next_goes_on(tmp_path: Path) -> None:
    with started(data=tmp_path) as client:
        job = create(client, model=WORLD, prompt="left*300", **SMALL)
        while look(client, job)["progress"] == 0:
            time.sleep(0.01)
        later = create(client, model=WORLD, prompt="left", **SMALL)
    assert [path for path in (tmp_path / FOLDER).rglob("*") if path.is_file() and path.suffix != ".sqlite"] == []
    with started(data=tmp_path) as client:
        assert look(client, job)["status"] in ("queued", "in_progress") and look(client, job)["restarts"] == 0
        assert client.post(f"/v1/videos/{job['id']}/cancel").json()["error"]["code"] == "cancelled"
        assert finished(client, later)["status"] == "completed"


KILLED = """
import os, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.server.job_server import *
with started(data=Path({data!r})) as client:
    job = create(client, model=WORLD, prompt="left*300", **SMALL)
    while look(client, job)["progress"] == 0:
        time.sleep(0.01)
    print(job["id"], flush=True)
    os._exit(9)
"""


def test_a_server_that_is_killed_in_the_middle_begins_the_job_again(tmp_path: Path) -> None:
    code = KILLED.format(root=str(Path(__file__).parents[2]), data=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 9, done.stderr
    job = {"id": done.stdout.strip()}
    assert [*(tmp_path / FOLDER / job["id"]).glob(".*")] != []
    with started(data=tmp_path) as client:
        assert look(client, job)["restarts"] == 1
        while look(client, job)["progress"] == 0:
            time.sleep(0.01)
        assert client.post(f"/v1/videos/{job['id']}/cancel").json()["error"]["code"] == "cancelled"
        assert not (tmp_path / FOLDER / job["id"]).exists()


def test_a_folder_serves_one_server_at_a_time_and_must_be_ours(tmp_path: Path) -> None:
    store = Store(tmp_path / FOLDER)
    with pytest.raises(ValueError, match="another server uses them"):
        check_folder(tmp_path)
    store.close()
    check_folder(tmp_path)
    (tmp_path / FOLDER / "jobs.sqlite").write_bytes(b"no data base" * 100)
    with pytest.raises(ValueError, match="damaged"):
        check_folder(tmp_path)
    with pytest.raises(ValueError, match="cannot be written"):
        check_folder(tmp_path / FOLDER / "jobs.sqlite")


def test_as_many_jobs_wait_and_as_much_is_kept_as_is_allowed(tmp_path: Path) -> None:
    with started(Limits(jobs=2, disk_bytes=2_000), data=tmp_path) as client:
        ticker = client.app.state.house.models[WORLD].ticker  # type: ignore[attr-defined]
        let_go = threading.Event()
        ticker.ask(let_go.wait)
        asked = [create(client, model=WORLD, prompt="left", **SMALL) for _ in range(2)]
        answer = client.post("/v1/videos", json={"model": WORLD, "prompt": "left"})
        assert answer.status_code == 429 and answer.json()["error"]["code"] == "queue_full"
        assert answer.headers["retry-after"] == "5"
        let_go.set()
        assert all(finished(client, job)["status"] == "completed" for job in asked)
        answer = client.post("/v1/videos", json={"model": WORLD, "prompt": "left"})
        assert answer.status_code == 429 and answer.json()["error"]["code"] == "disk_full"
        assert answer.headers["x-should-retry"] == "false"  # OpenAI's clients do not try again
        for job in asked:
            client.delete(f"/v1/videos/{job['id']}")
        create(client, model=WORLD, prompt="left", **SMALL)
        client.app.state.house.closing = True  # type: ignore[attr-defined]
        assert refused(client, 503, json={"model": WORLD, "prompt": "left"})["code"] == "closing"


def test_jobs_can_be_switched_off(tmp_path: Path) -> None:
    with started(data=tmp_path, jobs=False) as client:
        assert refused(client, 400, json={"model": WORLD, "prompt": "left"})["code"] == "unsupported"
        assert client.get("/v1/videos/video_0").json()["error"]["code"] == "unsupported"
        assert "diagonal_jobs" not in client.get("/metrics").text and not (tmp_path / FOLDER).exists()


def test_videos_of_jobs_are_signed_and_those_of_texts_have_a_watermark(tmp_path: Path) -> None:
    key, chain, root = write_pair(tmp_path)
    marking = Marking(certificates.own(key, chain))
    with started(data=tmp_path / "data", marking=marking) as client:
        asked = {
            "walk": create(client, model=WORLD, prompt="left*2", seed=5, **SMALL),
            "film": create(client, model=VIDEO, prompt=PROMPT, num_frames=17, seed=6, **SMALL),
        }
        for name, job in asked.items():
            done = finished(client, job)
            assert done["status"] == "completed", done["error"]
            answer = client.get(f"/v1/videos/{done['id']}/content")
            (tmp_path / f"{name}.mp4").write_bytes(answer.content)
    walk, film = (verify(tmp_path / f"{name}.mp4", root.read_text()) for name in asked)
    assert walk.credentials.state == film.credentials.state == TRUSTED
    said = walk.credentials.statement
    assert (said["model"], said["seed"], said["schedule"], said["frames"]) == (WORLD, "5", "diagonal:k=1", 2)
    assert said["told"] == {"actions": "left*2", "start": "hall"} and "only videos from texts" in said["watermark"]
    said = film.credentials.statement
    assert said["told"] == {"prompt": PROMPT} and said["watermark"]["family"] == "doom-t2v" and film.agrees is not False
