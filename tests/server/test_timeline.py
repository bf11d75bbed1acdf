"""Going back, beginning again, and sessions as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagonal.generation.snapshot import Snapshot
from diagonal.media import video
from diagonal.media.provenance import credentials
from diagonal.media.provenance.writing import Marking, signed_by
from diagonal.server.timeline import Timeline
from diagonal.worlds.script import spell
from tests.server.conftest import Join, Player, Serve, actions_of, tiny_world


def play_until(player: Player, frame: int) -> None:
    """Play, and pause not before this frame."""
    player.say("session.update", paused=False)
    while player.frame().about["frame"] < frame:
        pass
    player.say("session.update", paused=True, update_id="rest")
    while player.until("session.applied").get("update_id") != "rest":
        pass


def test_a_timeline_gives_the_snapshot_of_every_frame_that_it_keeps() -> None:
    session = tiny_world().play("hall")
    timeline = Timeline(session.snapshot(), cells=192, most=6, fed=3)
    for action in ("left", "right", "forward", "back"):
        made = session.step(action)
        assert made.actions is not None
        timeline.add(made.tokens[0].flatten(), made.actions[0])
    assert (timeline.first, timeline.last) == (2, 7)
    whole = session.snapshot().units_TU
    for frame in range(2, 8):
        saved = timeline.at(frame)
        count = min(3, frame - 1)
        assert saved.frame == frame and saved.given == len(saved.units_TU) == count and not saved.made
        assert saved.units_TU[:-1].equal(whole[frame + 1 - count : frame])
        assert saved.units_TU[-1, :-1].equal(whole[frame, :-1]) and saved.units_TU[-1, -1] == -1
    with pytest.raises(ValueError, match="frame 1 is not kept; those from 2 to 7"):
        timeline.at(1)
    timeline.cut(4)
    assert (timeline.first, timeline.last) == (2, 4)


def test_playing_on_from_an_earlier_frame_leaves_what_came_after_it(serve: Serve, join: Join) -> None:
    player = join(serve())
    player.start(paused=True, seed=5)
    player.say("session.control", seq=1, held=["forward"])
    play_until(player, 9)
    before = player.snapshot()
    player.say("session.rewind", frame=6)
    receipt = player.until("session.applied")
    assert receipt == {"type": "session.applied", "what": "rewind", "frame": 6}
    assert player.frame().about["frame"] == 6
    after = player.snapshot()
    assert after.frame == 6 and after.units_TU[:7, :-1].equal(before.units_TU[:7, :-1])
    player.say("session.control", seq=2, held=["left"])
    play_until(player, 8)
    branch = player.snapshot()
    assert branch.units_TU[:6].equal(before.units_TU[:6]) and actions_of(branch)[3] == "left"
    player.say("session.rewind", frame=10_000)
    error = player.until("error")
    assert error["code"] == "bad_value" and "frame 10000 is not kept" in error["message"]


def test_reset_begins_again_with_the_same_frames(serve: Serve, join: Join) -> None:
    player = join(serve())
    player.start(paused=True, seed=5)
    play_until(player, 6)
    first = player.snapshot().units_TU
    player.say("session.reset")
    assert player.until("session.applied")["what"] == "reset"
    assert player.frame().about["frame"] == 3
    play_until(player, 6)
    again = player.snapshot().units_TU
    assert again[:7, :-1].equal(first[:7, :-1])
    player.say("session.reset", start="gate", seed=6)
    player.until("session.applied")
    assert (player.snapshot().seed, player.snapshot().frame) == (6, 3)
    assert not player.snapshot().units_TU.equal(first[:4])
    player.say("session.reset", start="nowhere")
    assert player.until("error")["code"] == "unknown_start"


def test_a_session_goes_on_from_its_file(serve: Serve, join: Join) -> None:
    client = serve()
    player = join(client)
    session = player.start(paused=True, schedule="raster")["session_id"]
    play_until(player, 7)
    saved = client.get(f"/v1/sessions/{session}/snapshot")
    assert saved.headers["content-disposition"] == f'attachment; filename="{session}.json"'
    other = join(client)
    started = other.start(start=None, snapshot=saved.json(), paused=True, schedule=None)
    expected = Snapshot.from_json(saved.json())
    assert (started["frame"], started["seed"]) == (expected.frame, 3)
    assert other.snapshot().units_TU.equal(expected.units_TU)
    other.say("session.rewind", frame=4)
    assert other.until("session.applied")["frame"] == 4


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model": "doom"}, "the snapshot is of doom"),
        ({"shape": [2**40, 193]}, "at most 4096"),
        ({"shape": [-1]}, "two numbers"),
        (
            {"made": [{"frames": 2**62, "chooses": False, "schedule": "raster", "stand_in": "above", "refeed": True}]},
            "",
        ),
        ({"units": "AAAA"}, "damaged"),
        ({"weights": "00000000"}, "other weights"),
        ({"format": None}, "no snapshot"),
    ],
)
def test_files_that_are_no_sessions_of_this_world_are_refused(
    serve: Serve, join: Join, change: dict[str, object], why: str
) -> None:
    saved = tiny_world().play("hall").snapshot().as_json() | change
    player = join(serve(seats=1))
    player.say("session.start", snapshot=saved)
    error = player.hear()
    assert error["code"] == "bad_snapshot" and why in error["message"]


def test_a_recording_is_signed_and_says_what_was_played(serve: Serve, join: Join, tmp_path: Path) -> None:
    client = serve(marking=Marking(signed_by(None, None)[0]))
    player = join(client)
    session = player.start(paused=True)["session_id"]
    play_until(player, 6)
    done = actions_of(player.snapshot())
    (tmp_path / "played.mp4").write_bytes(client.get(f"/v1/sessions/{session}/recording").content)
    found = credentials.read(tmp_path / "played.mp4")
    assert found.state == credentials.VALID and found.statement["model"] == "doom/tiny"
    assert found.statement["told"]["actions"].endswith(spell(done))


def test_what_was_played_is_a_video(serve: Serve, join: Join, tmp_path: Path) -> None:
    client = serve()
    player = join(client)
    session = player.start(paused=True)["session_id"]
    play_until(player, 8)
    frames = player.snapshot().frame + 1
    answer = client.get(f"/v1/sessions/{session}/recording")
    assert answer.headers["content-type"] == "video/mp4"
    (tmp_path / "played.mp4").write_bytes(answer.content)
    assert video.read(tmp_path / "played.mp4").shape == (frames, 288, 384, 3)


@pytest.mark.parametrize("name", ["session_" + 32 * "0", "../../etc/passwd", "%2e%2e%2f", "session_x", "a" * 5000])
def test_sessions_that_there_are_not_have_no_files(serve: Serve, name: str) -> None:
    for file in ("snapshot", "recording"):
        answer = serve().get(f"/v1/sessions/{name}/{file}")
        assert answer.status_code in (400, 404) and answer.json()["error"]["code"]
