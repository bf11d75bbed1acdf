"""Jobs in the shape of OpenAI's Videos API: what is asked for is made, kept, listed and deleted."""

from __future__ import annotations

import io
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

import diagonal
from diagonal.media.video import read, writer
from diagonal.server.settings import Limits
from tests.server.conftest import HOST, SOCKET, Player, tiny_world
from tests.server.job_server import (
    PROMPT,
    SMALL,
    VIDEO,
    WORLD,
    content,
    create,
    finished,
    look,
    picture,
    refused,
    runner_of,
    started,
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    limits = Limits(upload_bytes=200_000, prompt=100, video_frames=400)
    with started(limits, data=tmp_path_factory.mktemp("data")) as running:
        yield running


def test_a_world_goes_on_along_actions_as_in_the_library(client: TestClient) -> None:
    asked = create(client, model=WORLD, prompt="forward*3,left*2", seed=7, schedule="diagonal:k=1,d=10", **SMALL)
    assert (asked["status"], asked["object"], asked["seconds"], asked["size"]) == (
        "queued",
        "video",
        "0.571429",
        "128x96",
    )
    done = finished(client, asked)
    assert (done["start"], done["seed"], done["schedule"]) == ("hall", 7, "diagonal:k=1,d=10")
    world = tiny_world()
    clip, between = world.actions.start("hall")
    actions = [*between, *["forward"] * 3, *["left"] * 2]
    expected = world.generate(clip, actions, schedule="diagonal:k=1,d=10", seed=7)
    frames = content(client, done)
    assert (done["status"], done["progress"], done["model_calls"]) == ("completed", 100, expected.calls)
    assert frames.shape == expected.frames.shape == (5, 96, 128, 3)
    _same(frames, expected.frames)


def test_a_diffusion_model_makes_a_video_as_in_the_library(client: TestClient) -> None:
    done = finished(client, create(client, model=VIDEO, prompt=PROMPT, seconds="2", seed=4, **SMALL))
    frames, expected = content(client, done), diagonal.load(VIDEO).generate(PROMPT, num_frames=17, seed=4)
    assert done["num_frames"] == len(frames) == 17 and done["model_calls"] == expected.calls
    _same(frames, expected.frames)


def _same(seen: Any, expected: Any) -> None:
    """H.264 is lossy, but the same each time."""
    with tempfile.TemporaryDirectory() as folder:
        with writer(Path(folder) / "expected.mp4", Fraction(35, 4)) as file:
            file.write(expected)
        assert np.array_equal(seen, read(Path(folder) / "expected.mp4"))


def test_thumbnail_and_spritesheet_are_pictures_of_the_video(client: TestClient) -> None:
    done = finished(client, create(client, model=WORLD, prompt="right*6", **SMALL))
    pictures = {}
    for variant, kind in (("thumbnail", "image/webp"), ("spritesheet", "image/jpeg")):
        answer = client.get(f"/v1/videos/{done['id']}/content", params={"variant": variant})
        assert answer.headers["content-type"] == kind
        pictures[variant] = np.asarray(Image.open(io.BytesIO(answer.content)).convert("RGB")).astype(int)
    frames = content(client, done).astype(int)
    assert np.abs(pictures["thumbnail"] - frames[0]).mean() < 12
    assert pictures["spritesheet"].shape == (2 * 96, 4 * 128, 3)
    assert np.abs(pictures["spritesheet"][96:, 128:256] - frames[5]).mean() < 12
    assert not pictures["spritesheet"][100:, 270:].any()
    wrong = client.get(f"/v1/videos/{done['id']}/content", params={"variant": "audio"})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "variant"


@pytest.mark.parametrize(
    "form",
    [
        {"actions": "forward*2,left"},
        {"actions": json.dumps(["forward", "forward", "left"])},
        {"actions[]": ["forward", "forward", "left"]},
        {"prompt": "forward*2, left"},
        {"extra_params": json.dumps({"actions": ["forward*2", "left"]}), "num_frames": "3"},
        {"extra_params[actions]": "forward*2,left"},
    ],
)
@pytest.mark.parametrize("multipart", [True, False])
def test_actions_may_come_in_every_form_that_clients_send(
    client: TestClient, form: dict[str, Any], multipart: bool
) -> None:
    shared = {"model": WORLD, "seed": "5", "start": "gate", "size": "256x192"}
    whole = form | shared
    answer = client.post("/v1/videos", **({"files": _as_parts(whole)} if multipart else {"data": whole}))
    assert answer.status_code == 200, answer.text
    asked = answer.json()
    assert (asked["num_frames"], asked["seed"], asked["start"], asked["size"]) == (3, 5, "gate", "256x192")
    assert client.delete(f"/v1/videos/{asked['id']}").json() == {
        "id": asked["id"],
        "object": "video.deleted",
        "deleted": True,
    }


def _as_parts(form: dict[str, Any]) -> list[tuple[str, tuple[None, str]]]:
    """A form as multipart without a file."""
    pairs = [(name, one) for name, value in form.items() for one in (value if isinstance(value, list) else [value])]
    return [(name, (None, value)) for name, value in pairs]


@pytest.mark.parametrize(
    ("fields", "param", "why"),
    [
        ({"sede": 1}, "sede", "no such field"),
        ({"model": WORLD, "prompt": "a cat"}, "prompt", "unknown action 'a cat'"),
        ({"model": WORLD, "prompt": "left", "actions": "left"}, "prompt", "reads no text"),
        ({"model": WORLD, "actions": "left*3", "num_frames": 4}, "actions", "3 actions for 4 frames"),
        ({"model": WORLD, "actions": "left*401"}, "actions", "at most 400"),
        ({"model": WORLD, "actions": "left*9999999"}, "actions", "more than 1000000"),
        ({"model": WORLD, "num_frames": 401}, "num_frames", "at most 400"),
        ({"model": WORLD, "seconds": 1e4}, "num_frames", "at most 400"),
        ({"model": WORLD, "seconds": 1, "num_frames": 9}, "num_frames", "give one"),
        ({"model": WORLD, "start": "../hall"}, "start", "known: hall"),
        ({"model": WORLD, "schedule": "diagonal:k=3"}, "schedule", "known: raster"),
        ({"model": WORLD, "size": "1280x720"}, "size", "128x96, 256x192"),
        ({"model": WORLD, "size": "128x97"}, "size", "128x96, 256x192"),
        ({"model": WORLD, "size": "0x0"}, "size", "at least 1"),
        ({"model": WORLD, "size": "128x96", "width": 128}, "size", "give one"),
        ({"model": WORLD, "width": 12800}, "size", "128x96"),
        ({"model": WORLD, "negative_prompt": "x"}, "negative_prompt", "is a world"),
        ({"model": WORLD, "temperature": 1e-9}, None, "temperature"),
        ({"model": WORLD, "seed": -1}, "seed", "greater than"),
        ({"model": WORLD, "seed": 2**63}, "seed", "less than"),
        ({"model": WORLD, "seed": "1" * 5000}, "seed", "integer"),
        ({"model": WORLD, "fit": "crop"}, "fit", "no input_reference"),
        (
            {"model": WORLD, "input_reference": {"image_url": "file:///etc/passwd"}},
            "input_reference",
            "fetches nothing",
        ),
        ({"model": WORLD, "input_reference": {"image_url": "http://127.0.0.1/"}}, "input_reference", "fetches nothing"),
        ({"model": WORLD, "input_reference": {"file_id": "x"}}, "input_reference", "fetches nothing"),
        ({"model": WORLD, "extra_params": {"seed": 1}, "seed": 1}, "seed", "twice"),
        ({"model": WORLD, "extra_params": 3}, "extra_params", "object"),
        ({"model": WORLD, "extra_params": {"lora": "x"}}, "lora", "no such field"),
        ({"model": VIDEO}, None, "empty"),
        ({"model": VIDEO, "prompt": "purple elephants"}, None, "does not know"),
        ({"model": VIDEO, "prompt": 101 * "a"}, "prompt", "at most 100"),
        ({"model": VIDEO, "prompt": PROMPT, "actions": "left"}, "actions", "diffusion model"),
        ({"model": VIDEO, "prompt": PROMPT, "num_frames": 30}, None, "the nearest is"),
        ({"model": VIDEO, "prompt": PROMPT, "num_frames": 401}, None, "at most 400"),
        ({"model": VIDEO, "prompt": PROMPT, "width": 100}, None, "multiple"),
        ({"model": VIDEO, "prompt": PROMPT, "size": "1280x720"}, None, "at most 128x96"),
        ({"model": VIDEO, "prompt": PROMPT, "schedule": "nonsense"}, None, "nonsense"),
        ({"model": VIDEO, "prompt": PROMPT, "guidance_scale": 5.0}, None, "presets wan"),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(
    client: TestClient, fields: dict[str, Any], param: str | None, why: str
) -> None:
    before = sum(counters.created for counters in runner_of(client).counters.values())
    error = refused(client, 400, json=fields)
    assert error["param"] == param and why in error["message"], error
    assert sum(counters.created for counters in runner_of(client).counters.values()) == before


def test_what_is_not_there_is_404(client: TestClient) -> None:
    error = refused(client, 404, json={"model": "sora-2", "prompt": "x"})
    assert (error["code"], error["param"]) == ("unknown_model", "model") and WORLD in error["message"]
    for path in ("video_1", "video_" + 32 * "0", "..%2F..%2Fetc%2Fpasswd", "%00", "edits"):
        for method, end in (("GET", ""), ("DELETE", ""), ("GET", "/content"), ("POST", "/cancel"), ("POST", "/remix")):
            answer = client.request(method, f"/v1/videos/{path}{end}")
            assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found", (method, path, end)


@pytest.mark.parametrize("path", ["edits", "characters"])
def test_what_no_model_here_can_do_is_said(client: TestClient, path: str) -> None:
    answer = client.post(f"/v1/videos/{path}", data={"prompt": "x"})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "unsupported"


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        ({"content": b"{"}, 400, "bad_json"),
        ({"content": b"[1]"}, 400, "bad_json"),
        ({"content": b"[" * 100_000}, 400, "bad_json"),
        ({"content": b'{"seed": NaN}'}, 400, "bad_json"),
        ({"content": b"\xff{}"}, 400, "bad_json"),
        ({"content": b'{"prompt": "\\ud800"}'}, 400, "bad_value"),
        ({"content": b'{"\\ud800": 1}'}, 400, "bad_value"),
        ({"content": b'{"extra_params": ' + b'{"a":' * 900 + b"1" + b"}" * 901}, 400, "unknown_field"),
        ({"content": b" " * 4_200_000}, 413, "too_large"),
        ({"content": b"x", "headers": {"content-type": "text/plain"}}, 415, "bad_content_type"),
        ({"content": b"", "headers": {"content-type": "multipart/form-data"}}, 400, "bad_form"),
        ({"content": b"--x", "headers": {"content-type": "multipart/form-data; boundary=y"}}, 400, "bad_form"),
        ({"data": {"prompt": ["left", "left"]}}, 400, "bad_value"),
        ({"data": {"actions": "left", "actions[]": ["left"]}}, 400, "bad_value"),
        ({"data": {"actions": "[" * 10_000}}, 400, "bad_json"),
        ({"data": {"a[b][c]": "1"}}, 400, "unknown_field"),
        ({"files": {"video": ("x.png", b"x")}}, 400, "unknown_field"),
        ({"files": [("input_reference", ("a", b"x")), ("input_reference", ("b", b"x"))]}, 400, "bad_form"),
        ({"files": {"input_reference": ("x.png", bytes(200_001))}}, 413, "too_large"),
        ({"data": {"prompt": "x" * 140_000}}, 413, "too_large"),
    ],
)
def test_bodies_that_are_wrong_are_refused(
    client: TestClient, request_: dict[str, Any], status: int, code: str
) -> None:
    request_ = {"headers": {"content-type": "application/json"}, **request_} if "content" in request_ else request_
    assert refused(client, status, **request_)["code"] == code


def test_a_world_begins_with_a_picture_that_was_sent(client: TestClient) -> None:
    shared = {"model": WORLD, "prompt": "left", "seed": "1", **SMALL}
    shown, files = dict[str, Any](), dict[str, Any]()
    for kind, name in (("PNG", "../../x.png"), ("WEBP", "x.png"), ("JPEG", "")):
        files = {"input_reference": (name or "x", picture(kind=kind))}
        shown[kind] = finished(client, client.post("/v1/videos", data=shared, files=files).json())
    world, sent = tiny_world(), np.array(Image.open(io.BytesIO(picture())))
    _same(content(client, shown["PNG"]), world.generate(sent, ["left"], seed=1).frames)
    error = refused(client, 400, data=shared, files={"input_reference": picture(97, 128)})
    assert error["param"] == "input_reference" and "128x97, and 128x96 is needed" in error["message"]
    for fit in ("crop", "resize"):
        files = {"input_reference": picture(97, 128)}
        assert client.post("/v1/videos", data=shared | {"fit": fit}, files=files).status_code == 200
    thin: dict[str, Any] = {"input_reference": picture(1, 4000)}
    assert "too narrow" in refused(client, 400, data=shared | {"fit": "crop"}, files=thin)["message"]
    both = {"input_reference": picture()}
    assert "give one" in refused(client, 400, data=shared | {"start": "hall"}, files=both)["message"]


def test_a_diffusion_model_goes_on_from_a_picture_or_a_clip(client: TestClient, tmp_path: Path) -> None:
    shared = {"model": VIDEO, "prompt": PROMPT, "seed": "1", **SMALL}
    still = np.array(Image.open(io.BytesIO(picture())))
    with writer(tmp_path / "clip.mp4", 8) as file:
        file.write(np.repeat(still[None], 5, 0))
    clip = (tmp_path / "clip.mp4").read_bytes()
    for frames, sent in (("25", picture()), ("23", clip)):
        answer = client.post("/v1/videos", data=shared | {"num_frames": frames}, files={"input_reference": sent})
        assert answer.status_code == 200, answer.text
        done = finished(client, answer.json())
        made = content(client, done)
        assert len(made) == int(frames) == done["num_frames"]
        assert np.abs(made[0].astype(int) - still).mean() < np.abs(made[-1].astype(int) - still).mean()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no picture and no clip"),
        (b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n", "no picture and no clip"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "no picture and no clip"),
        (b"<svg><image href='file:///etc/passwd'/></svg>", "no picture and no clip"),
        (b"GIF89a" + bytes(100), "no picture and no clip"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "no readable PNG"),
        (picture()[:-200], "no readable PNG"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 " + bytes(100), "no readable WEBP"),
        (b"\xff\xd8\xff" + bytes(100), "no readable JPEG"),
        (b"\x00\x00\x00\x18ftypisom" + bytes(1000), "cannot be read as video"),
        (b"\x1aE\xdf\xa3" + bytes(1000), "cannot be read as video"),
    ],
)
def test_uploads_that_are_no_pictures_and_no_clips_are_refused(client: TestClient, data: bytes, why: str) -> None:
    error = refused(client, 400, data={"model": WORLD}, files={"input_reference": ("x.mp4", data)})
    assert why in error["message"] and "/" not in error["message"].split(":", 1)[0]


def test_pictures_that_unpack_to_too_much_are_refused(client: TestClient) -> None:
    file = io.BytesIO()
    Image.new("1", (10_000, 10_000)).save(file, "PNG")
    assert len(file.getvalue()) < 20_000
    error = refused(client, 400, data={"model": WORLD, "fit": "resize"}, files={"input_reference": file.getvalue()})
    assert "10000x10000" in error["message"] or "exceeds limit" in error["message"]


def _idle(client: TestClient) -> None:
    """Wait until jobs of tests before are done."""
    until = time.monotonic() + 60
    while runner_of(client).store.waiting(status=("queued", "in_progress")):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_job_is_queued_until_its_model_has_time_for_it(client: TestClient) -> None:
    _idle(client)
    ticker = client.app.state.house.models[WORLD].ticker  # type: ignore[attr-defined]
    let_go = threading.Event()
    ticker.ask(let_go.wait)
    try:
        first, second = (create(client, model=WORLD, prompt="left*9", **SMALL) for _ in range(2))
        time.sleep(0.1)
        assert [(look(client, job)["status"], look(client, job)["position"]) for job in (first, second)] == [
            ("queued", 0),
            ("queued", 1),
        ]
        answer = client.get(f"/v1/videos/{second['id']}/content")
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_ready"
    finally:
        let_go.set()
    states = {look(client, first)["status"]}
    while "completed" not in states:
        states.add(look(client, first)["status"])
    assert states <= {"queued", "in_progress", "completed"} and "in_progress" in states
    assert finished(client, second)["status"] == "completed"


def test_who_polls_is_told_when_to_come_again(client: TestClient) -> None:
    answer = client.post("/v1/videos", json={"model": WORLD, "prompt": "left*3", **SMALL})
    job, waits = answer.json(), [answer.headers["openai-poll-after-ms"]]
    while job["status"] not in ("completed", "failed"):
        answer = client.get(f"/v1/videos/{job['id']}")
        job = answer.json()
        waits.append(answer.headers["openai-poll-after-ms"])
    assert all(50 <= int(wait) <= 5000 for wait in waits)


def _begun(client: TestClient, **fields: Any) -> dict[str, Any]:
    """A long job of which some frames were made."""
    job = create(client, model=WORLD, prompt="left*400", **SMALL, **fields)
    until = time.monotonic() + 60
    while (now := look(client, job))["progress"] == 0:
        assert now["status"] in ("queued", "in_progress") and time.monotonic() < until
        time.sleep(0.005)
    assert now["status"] == "in_progress"
    return now


def test_a_job_that_is_deleted_ends_at_its_next_piece_and_leaves_nothing(client: TestClient) -> None:
    job, runner = _begun(client), runner_of(client)
    place = runner.store.place(job["id"])
    assert place.is_dir()
    assert client.delete(f"/v1/videos/{job['id']}").json()["deleted"]
    made = runner.counters[WORLD].frames
    assert not place.exists() and runner.running(job["id"]) is None
    assert client.get(f"/v1/videos/{job['id']}").status_code == 404
    assert client.delete(f"/v1/videos/{job['id']}").status_code == 404
    time.sleep(0.2)
    assert runner.counters[WORLD].frames == made  # the model does nothing for it any more


def test_a_job_that_takes_long_for_a_piece_is_deleted_at_once_and_cleaned_up_later(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diagonal.server.jobs.api.ENDS", 0.05)
    ticker, runner = client.app.state.house.models[WORLD].ticker, runner_of(client)  # type: ignore[attr-defined]
    job, let_go = _begun(client), threading.Event()
    ticker.ask(let_go.wait)
    assert client.delete(f"/v1/videos/{job['id']}").json()["deleted"]
    assert client.get(f"/v1/videos/{job['id']}").status_code == 404
    running = runner.running(job["id"])
    assert running is not None
    let_go.set()
    assert running.ended.wait(10) and not runner.store.place(job["id"]).exists()


def test_a_job_is_cancelled_before_in_and_after_its_work(client: TestClient) -> None:
    done = finished(client, create(client, model=WORLD, prompt="left", **SMALL))
    running, waiting = _begun(client), create(client, model=WORLD, prompt="left", **SMALL)
    for job, said in ((waiting, "before it began"), (running, "of 400 frames")):
        answer = client.post(f"/v1/videos/{job['id']}/cancel").json()
        assert (answer["status"], answer["error"]["code"]) == ("failed", "cancelled") and said in answer["error"][
            "message"
        ]
        assert not runner_of(client).store.place(job["id"]).exists()
        missing = client.get(f"/v1/videos/{job['id']}/content")
        assert missing.status_code == 404 and missing.json()["error"]["code"] == "cancelled"
    after = client.post(f"/v1/videos/{done['id']}/cancel").json()
    assert after["status"] == "completed" and len(content(client, done)) == 1


def test_each_job_has_the_reason_of_its_own_failure(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = []
    for error in (ValueError("a reason"), OSError(28, "No space left on device"), RuntimeError("secret")):

        def fail(*_: Any, error: Exception = error) -> Any:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr("diagonal.server.jobs.runner.pictures", fail)
            codes.append(finished(client, create(client, model=WORLD, prompt="left", **SMALL)))
    errors = [(job["error"]["code"], job["error"]["message"]) for job in codes]
    assert errors[0] == ("bad_value", "a reason") and errors[2][0] == "internal" and "secret" not in errors[2][1]
    assert errors[1][0] == "storage" and "No space left" in errors[1][1]
    assert [look(client, job)["error"]["code"] for job in codes] == [code for code, _ in errors]
    assert not any(runner_of(client).store.place(job["id"]).exists() for job in codes)


def test_jobs_are_listed_in_pages(client: TestClient) -> None:
    made = [create(client, model=WORLD, prompt="left", **SMALL)["id"] for _ in range(4)]
    newest = client.get("/v1/videos", params={"limit": 3}).json()
    assert [job["id"] for job in newest["data"]] == made[:0:-1] and newest["has_more"] and newest["object"] == "list"
    assert (newest["first_id"], newest["last_id"]) == (made[3], made[1])
    after = client.get("/v1/videos", params={"limit": 1, "after": made[1]}).json()
    assert [job["id"] for job in after["data"]] == [made[0]]
    oldest = client.get("/v1/videos", params={"order": "asc", "limit": 100}).json()
    assert [job["id"] for job in oldest["data"]][-4:] == made and not oldest["has_more"]
    end = client.get("/v1/videos", params={"order": "asc", "after": made[3]}).json()
    assert end == {"object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None}
    for params in ({"limit": 0}, {"limit": 101}, {"limit": "x"}, {"order": "up"}):
        assert client.get("/v1/videos", params=params).status_code == 400
    assert client.get("/v1/videos", params={"after": "video_0"}).status_code == 404


def test_a_remix_is_the_same_with_another_prompt(client: TestClient) -> None:
    files = {"input_reference": picture()}
    first = client.post(
        "/v1/videos", data={"model": WORLD, "actions": "left*2", "seed": "9", **SMALL}, files=files
    ).json()
    walked = client.post(f"/v1/videos/{first['id']}/remix", json={"prompt": "right*3"}).json()
    assert (walked["remixed_from_video_id"], walked["num_frames"], walked["seed"]) == (first["id"], 3, 9)
    still = np.array(Image.open(io.BytesIO(picture())))
    _same(content(client, finished(client, walked)), tiny_world().generate(still, ["right"] * 3, seed=9).frames)
    film = create(client, model=VIDEO, prompt=PROMPT, num_frames=17, seed=3, **SMALL)
    other = client.post(f"/v1/videos/{film['id']}/remix", json={"prompt": "a stone maze"}).json()
    assert (other["num_frames"], other["seed"], other["prompt"]) == (17, 3, "a stone maze")
    for body in ({}, {"prompt": "left", "seed": 1}, {"seed": 1}):
        assert client.post(f"/v1/videos/{first['id']}/remix", json=body).status_code == 400
    for job in (film, other):
        assert client.delete(f"/v1/videos/{job['id']}").status_code == 200


@pytest.mark.parametrize("schedule", ["diagonal:k=1", "diagonal:k=1,d=10"])
def test_an_extension_begins_with_the_frames_that_it_extends(client: TestClient, schedule: str) -> None:
    first = create(client, model=WORLD, prompt="left*2,forward", seed=9, start="gate", schedule=schedule, **SMALL)
    more = client.post("/v1/videos/extensions", data={"video": first["id"], "prompt": "right*2"}).json()
    assert (more["num_frames"], more["seed"], more["seconds"]) == (5, 9, "0.571429")
    assert (more["actions"], more["remixed_from_video_id"]) == ("left*2,forward,right*2", first["id"])
    world = tiny_world()
    clip, between = world.actions.start("gate")
    actions = [*between, *world.actions.parse("left*2,forward,right*2")]
    whole, part = (world.generate(clip, acts, seed=9, schedule=schedule).frames for acts in (actions, actions[:-2]))
    assert np.array_equal(whole[:3], part)
    _same(content(client, finished(client, first)), part)
    _same(content(client, finished(client, more)), whole)
    still = client.post("/v1/videos/extensions", json={"video": {"id": more["id"]}, "num_frames": 2}).json()
    assert still["actions"].endswith("right*2,noop*2") and still["num_frames"] == 7


def test_extensions_that_cannot_be_are_refused(client: TestClient) -> None:
    film = create(client, model=VIDEO, prompt=PROMPT, num_frames=17, **SMALL)
    walk = create(client, model=WORLD, prompt="left*399", **SMALL)["id"]
    wrong: list[tuple[dict[str, Any], int, str, str | None]] = [
        ({"json": {"prompt": "left"}}, 400, "bad_value", "video"),
        ({"json": {"video": {"name": "x"}, "prompt": "left"}}, 400, "bad_value", "video"),
        ({"json": {"video": "video_0", "prompt": "left"}}, 404, "not_found", "video"),
        ({"json": {"video": walk, "prompt": "left", "seed": 1}}, 400, "bad_value", "seed"),
        ({"json": {"video": walk, "prompt": "a cat"}}, 400, "bad_value", "prompt"),
        ({"json": {"video": walk, "prompt": "left*2"}}, 400, "bad_value", "actions"),  # too long together
        ({"json": {"video": film["id"], "prompt": "a stone maze"}}, 400, "unsupported", None),
        ({"data": {"prompt": "left"}, "files": {"video": ("x.mp4", b"x")}}, 400, "unknown_field", "video"),
    ]
    for request, status, code, param in wrong:
        answer = client.post("/v1/videos/extensions", **request)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (status, code, param), error
    for job in (film["id"], walk):
        client.delete(f"/v1/videos/{job}")


def test_a_video_that_has_gone_is_not_completed(client: TestClient) -> None:
    one, other = (finished(client, create(client, model=WORLD, prompt="left", **SMALL)) for _ in range(2))
    store = runner_of(client).store
    kept = store.find(one["id"])
    assert kept is not None and kept.bytes > 1000 and one["expires_at"] > time.time() + 6 * 24 * 3600
    store.change(replace(kept, expires_at=time.time() - 1))
    now = look(client, one)
    assert (now["status"], now["error"]["code"]) == ("failed", "expired") and not store.place(one["id"]).exists()
    missing = client.get(f"/v1/videos/{one['id']}/content")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "expired"
    kept = store.find(one["id"])
    assert kept is not None and kept.bytes == 0
    store.change(replace(kept, expires_at=time.time() - 1))
    assert client.get(f"/v1/videos/{one['id']}").status_code == 404  # and in the end the job goes, too
    (store.place(other["id"]) / "video.mp4").unlink()
    listed = client.get("/v1/videos").json()["data"][0]
    assert (listed["id"], listed["status"], listed["error"]["code"]) == (other["id"], "failed", "content_missing")


def test_jobs_are_counted(client: TestClient) -> None:
    def counted(name: str) -> int:
        lines = client.get("/metrics").text.splitlines()
        return sum(int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    names = [f'diagonal_job{name}model="{WORLD}"' for name in ("s_created_total{", "_frames_total{")]
    names.append(f'diagonal_jobs_ended_total{{model="{WORLD}",outcome="completed"')
    _idle(client)
    before = [counted(name) for name in names]
    finished(client, create(client, model=WORLD, prompt="left*2", **SMALL))
    assert [counted(name) for name in names] == [before[0] + 1, before[1] + 2, before[2] + 1]
    assert counted(f'diagonal_jobs{{model="{WORLD}"') == 0


def test_a_job_leaves_most_of_the_model_to_those_who_play(client: TestClient) -> None:
    _idle(client)
    with client.websocket_connect(f"{SOCKET}?model={WORLD}", headers=HOST) as socket:
        player = Player(socket)
        player.start(start="hall", pace=False)
        player.frame()
        job = _begun(client)
        runner = runner_of(client)
        before, first = runner.counters[WORLD].frames, player.frame().about["frame"]
        while (made := runner.counters[WORLD].frames - before) < 6:
            last = player.frame().about["frame"]
        assert last - first > 1.5 * made
    assert client.delete(f"/v1/videos/{job['id']}").status_code == 200
