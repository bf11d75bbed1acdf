"""A video that is watched while it is made, in the dialect of vLLM-Omni."""

from __future__ import annotations

import io
import time
from typing import Any

import av
import numpy as np
import pytest
from starlette.websockets import WebSocketDisconnect

import diagonal
from diagonal.media.provenance.watermark import LIVE
from diagonal.media.provenance.writing import Marking
from diagonal.server.fmp4 import boxes
from diagonal.server.settings import Limits
from tests.server.conftest import Join, Player, Serve

VIDEO = "?model=doom-t2v/tiny"
PROMPT = "walking forward through a brick corridor"


def watch(player: Player) -> tuple[list[dict[str, Any]], list[bytes], list[dict[str, Any]]]:
    """All chunks to the end: what is said of each, its bytes, and all other messages."""
    chunks, data, others = [], [], []
    while (message := player.hear())["type"] != "session.done":
        if message["type"] == "video.chunk_metadata":
            chunks.append(message)
            data.append(player.socket.receive_bytes())
            assert len(data[-1]) == message["byte_length"]
        else:
            others.append(message)
    others.append(message)
    return chunks, data, others


def frames_of(data: bytes) -> list[Any]:
    with av.open(io.BytesIO(data), "r") as container:
        return [*container.decode(video=0)]


def closes(player: Player, code: int) -> None:
    with pytest.raises(WebSocketDisconnect) as closed:
        player.hear()
    assert closed.value.code == code


def test_a_stream_says_what_makes_it_and_has_a_watermark(serve: Serve, join: Join) -> None:
    player = join(serve(marking=Marking()), VIDEO)
    player.say("session.start", prompt=PROMPT, num_frames=11, seed=4)
    said = player.hear()["provenance"]
    assert said["signed"] is False and said["digital_source_type"] == "trainedAlgorithmicMedia"
    assert said["model"] == "doom-t2v/tiny" and said["told"] == {"prompt": PROMPT} and said["seed"] == "4"
    assert said["watermark"]["new_pattern_every"] == LIVE and said["watermark"]["family"] == "doom-t2v"
    _, marked, _ = watch(player)
    player = join(serve(), VIDEO)
    player.say("session.start", prompt=PROMPT, num_frames=11, seed=4)
    assert player.hear()["provenance"]["watermark"] == "switched off"
    _, plain, _ = watch(player)
    pairs = zip(frames_of(b"".join(marked)), frames_of(b"".join(plain)), strict=True)
    changed = [np.abs(one.to_ndarray(format="rgb24") * 1.0 - other.to_ndarray(format="rgb24")) for one, other in pairs]
    assert all(0.1 < frame.mean() < 6 for frame in changed)


def test_the_bytes_of_all_chunks_are_the_video_of_the_library(serve: Serve, join: Join) -> None:
    player = join(serve(), VIDEO)
    player.say("session.start", prompt=PROMPT, num_frames=29, seed=4, model="doom-t2v/tiny")
    begun = player.hear()
    assert begun["type"] == "video.start" and begun["format"] == "m4s" and begun["config"]["num_frames"] == 29
    chunks, data, others = watch(player)
    closes(player, 1000)
    assert [one["transport_chunk_index"] for one in chunks] == [0, 1, 2, 3, 4]
    assert sum(one["num_frames"] for one in chunks) == 29 and {one["kind"] for one in chunks} == {"media"}
    assert others[-1] == {
        "type": "session.done",
        "request_id": begun["request_id"],
        "chunks": len(chunks),
        "stopped": False,
    }
    shown = frames_of(b"".join(data))
    expected = diagonal.load("doom-t2v/tiny").generate(PROMPT, num_frames=29, seed=4).frames
    assert len(shown) == 29 and [frame.pts for frame in shown] == sorted({frame.pts for frame in shown})
    seen = np.stack([frame.to_ndarray(format="rgb24") for frame in shown]).astype(int)
    same = np.abs(seen - expected).mean()
    other = np.abs(np.roll(seen, 1, axis=0) - expected).mean()
    assert same < 0.8 * other  # H.264 is lossy, on noise above all; still each frame is itself


def test_every_chunk_begins_with_a_picture_and_the_header_comes_once(serve: Serve, join: Join) -> None:
    player = join(serve(), VIDEO)
    player.say("session.start", prompt=PROMPT, num_frames=29)
    player.hear()
    _, data, _ = watch(player)
    names = [[name for name, _ in boxes(one)] for one in data]
    assert names[0] == [b"ftyp", b"moov", b"moof", b"mdat"] and all(one == [b"moof", b"mdat"] for one in names[1:])
    late = frames_of(data[0][: len(data[0]) - len(data[0].partition(b"moof")[2]) - 8] + data[1])
    assert late[0].key_frame


def test_a_prompt_has_a_receipt_with_the_chunk_that_follows_it(serve: Serve, join: Join) -> None:
    player = join(serve(), VIDEO)
    player.say("session.start", prompt=PROMPT, extra_params={"pace_to_media_time": False})
    player.hear()
    player.hear()
    player.socket.receive_bytes()
    player.say("session.interaction", interaction={"event_id": "one", "event": {"prompt": "a stone maze"}})
    messages = []
    while (message := player.hear())["type"] != "session.applied":
        if message["type"] == "video.chunk_metadata":
            player.socket.receive_bytes()
        messages.append(message)
    queued = [one for one in messages if one["type"] == "session.interaction.queued"]
    assert len(queued) == 1 and queued[0]["event_id"] == "one"
    assert (message["what"], message["event_id"]) == ("prompt", "one")
    chunk = player.hear()
    assert chunk["generation_chunk_index"] == message["chunk"] > 0
    assert chunk["started_event_ids"] == chunk["active_event_ids"] == ["one"]
    player.socket.receive_bytes()
    player.say("session.stop")
    while (message := player.hear())["type"] != "session.done":
        player.socket.receive_bytes()
    assert message["stopped"] and message["chunks"] > chunk["transport_chunk_index"]
    closes(player, 1000)


def test_a_client_that_acknowledges_has_one_chunk_that_it_has_not_shown(serve: Serve, join: Join) -> None:
    player = join(serve(), VIDEO)
    player.say("session.start", prompt=PROMPT, extra_params={"acknowledge": True, "pace_to_media_time": False})
    player.hear()
    for chunk in range(3):
        assert player.hear()["transport_chunk_index"] == chunk
        player.socket.receive_bytes()
        time.sleep(0.1)  # so long that others would be there, if they came
        player.say("session.ping")
        assert player.hear()["type"] == "session.pong"
        player.say("session.ack", chunk=chunk)
    assert player.hear()["transport_chunk_index"] == 3
    player.socket.receive_bytes()
    player.say("session.ack", chunk=9, event_id="early")
    error = player.hear()
    assert (error["code"], error["event_id"]) == ("bad_value", "early") and "not sent yet" in error["message"]


def test_who_shows_nothing_and_says_nothing_is_left(serve: Serve, join: Join) -> None:
    player = join(serve(Limits(stall_seconds=0.3)), VIDEO)
    player.say("session.start", prompt=PROMPT, extra_params={"acknowledge": True})
    player.hear()
    player.hear()
    player.socket.receive_bytes()
    closes(player, 1008)


def test_prompts_that_cannot_be_taken_are_told_and_the_video_goes_on(serve: Serve, join: Join) -> None:
    player = join(serve(Limits(prompt=60)), VIDEO)
    player.say("session.start", prompt=PROMPT)
    wrong = [("unknown words", "purple elephants"), ("empty", " "), ("long", 61 * "a")]
    for name, prompt in wrong:
        player.say("session.interaction", interaction={"event_id": name, "event": {"prompt": prompt}})
    player.say("session.interaction", interaction={"event_id": "empty", "event": {"prompt": "a maze"}})
    player.say("session.interaction", interaction={"event_id": "empty", "event": {"prompt": "a maze"}})
    player.say("session.interaction", interaction={"event": {"prompt": "a maze"}, "transition_chunks": 3})
    errors: list[tuple[str, str | None]] = []
    queued: list[str] = []
    while len(errors) + len(queued) < 6:
        message = player.hear()
        if message["type"] == "video.chunk_metadata":
            player.socket.receive_bytes()
        elif message["type"] == "error":
            errors.append((message["code"], message.get("event_id")))
        elif message["type"] == "session.interaction.queued":
            queued.append(message["event_id"])
    failed = [("interaction_failed", name) for name, _ in wrong]
    assert errors == [*failed, ("event_id_conflict", "empty"), ("bad_value", None)] and queued == ["empty"]


@pytest.mark.parametrize(
    ("fields", "code", "why"),
    [
        ({"prompt": ""}, "bad_value", "empty"),
        ({"prompt": "purple"}, "bad_value", "does not know"),
        ({}, "bad_value", "prompt"),
        ({"prompt": PROMPT, "num_frames": 30}, "bad_value", "the nearest is"),
        ({"prompt": PROMPT, "num_frames": 10**5 + 1}, "bad_value", "at most 2000"),
        ({"prompt": PROMPT, "seconds": 1e9}, "bad_value", "seconds"),
        ({"prompt": PROMPT, "width": 1920, "height": 1080}, "bad_value", "at most 128x96"),
        ({"prompt": PROMPT, "size": "100x96"}, "bad_value", "multiple"),
        ({"prompt": PROMPT, "guidance_scale": 3.0}, "bad_value", "presets wan"),
        ({"prompt": PROMPT, "lora": {"name": "x"}}, "bad_value", "lora"),
        ({"prompt": PROMPT, "image_reference": {"image_url": "file:///etc/passwd"}}, "bad_value", "image_reference"),
        ({"prompt": PROMPT, "preset": "/etc/passwd"}, "unknown_field", "preset"),
        ({"prompt": PROMPT, "extra_params": {"schedule": "nonsense"}}, "bad_value", ""),
        ({"prompt": PROMPT, "extra_params": {"codec": 1}}, "unknown_field", "codec"),
        ({"prompt": PROMPT, "format": "webm"}, "bad_value", "m4s"),
        ({"prompt": PROMPT, "model": "doom-t2v"}, "unknown_model", ""),
    ],
)
def test_videos_that_cannot_be_made_are_refused(
    serve: Serve, join: Join, fields: dict[str, Any], code: str, why: str
) -> None:
    player = join(serve(seats=1), VIDEO)
    player.say("session.start", **fields)
    error = player.hear()
    assert error["code"] == code and why in error["message"]
    closes(player, 1008)


def test_sampling_params_are_fields_of_the_start(serve: Serve, join: Join) -> None:
    player = join(serve(), VIDEO)
    sampling = {"num_frames": 17, "seed": 9, "schedule": "2"}
    player.say("session.start", prompt=PROMPT, sampling_params=sampling, video_params={"fps": 5.0})
    config = player.hear()["config"]
    assert (config["num_frames"], config["seed"], config["fps"]) == (17, 9, 5.0)


def test_seconds_are_the_nearest_length_that_there_is(serve: Serve, join: Join) -> None:
    player = join(serve(), VIDEO)
    player.say("session.start", prompt=PROMPT, seconds=2.0)
    assert player.hear()["config"]["num_frames"] == 17  # of 17.5


def test_who_leaves_in_the_middle_leaves_the_seat(serve: Serve, join: Join) -> None:
    client = serve(seats=1)
    with client.websocket_connect("/v1/realtime/video" + VIDEO, headers={"host": "127.0.0.1"}) as socket:
        watcher = Player(socket)
        watcher.say("session.start", prompt=PROMPT)
        watcher.hear()
        other = join(client, VIDEO)
        other.say("session.start", prompt=PROMPT)
        assert other.hear()["code"] == "no_seat"
    while client.get("/v1/models").json()["data"][1]["free"] == 0:
        pass
    again = join(client, VIDEO)
    again.say("session.start", prompt=PROMPT, num_frames=17)
    assert again.hear()["type"] == "video.start"
