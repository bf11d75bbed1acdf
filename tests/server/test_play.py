"""A world that is played over a WebSocket."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from diagonal.server.images import encode
from tests.server.conftest import HOST, SOCKET, Join, Player, Serve, actions_of, tiny_world


def test_models_are_listed_with_all_that_a_page_needs(serve: Serve) -> None:
    model, video = serve().get("/v1/models").json()["data"]
    assert (video["id"], video["kind"], video["frames"]) == ("doom-t2v/tiny", "video", 41)
    assert (model["id"], model["object"], model["kind"], model["owned_by"]) == (
        "doom/tiny",
        "model",
        "world",
        "diagonal",
    )
    assert model["starts"][0] == "hall" and model["controls"] == ["forward", "back", "left", "right", "attack"]
    assert model["chords"] == {"forward+left": "forward+left", "forward+right": "forward+right"}
    assert model["actions"] == ["noop", *model["controls"], "forward+left", "forward+right"]
    assert model["default_schedule"] in model["schedules"] and model["random_weights"]
    assert (model["height"], model["width"], model["seats"], model["free"]) == (96, 128, 3, 3)


def test_a_world_is_played_by_held_controls(serve: Serve, join: Join) -> None:
    player = join(serve())
    started = player.start(paused=True)
    first = player.frame()
    assert first.about["frame"] == started["frame"] == 3 and started["seed"] == 3
    player.say("session.control", seq=1, held=["forward", "left"])
    player.say("session.update", paused=False, update_id="go")
    player.say("session.control", seq=2, held=["left", "forward"])
    frames = [player.frame().about for _ in range(4)]
    assert all(made["calls"] == 27 and made["schedule"] == "diagonal:k=1" for made in frames)
    assert frames[-1]["frame"] == started["frame"] + len(frames) + frames[-1]["dropped"]
    assert {made["action"] for made in frames} == {"forward+left"}
    player.say("session.stop")
    assert player.until("session.done")["stopped"]
    with pytest.raises(WebSocketDisconnect) as closed:
        player.hear()
    assert closed.value.code == 1000


def test_what_is_played_is_what_the_library_makes(serve: Serve, join: Join) -> None:
    player = join(serve())
    player.start(format="webp", quality=90, pace=True)
    player.say("session.control", seq=5, held=["right"])
    shown = [player.frame() for _ in range(8)]
    saved = player.snapshot()
    session = tiny_world().play("hall", seed=3)
    made = {3: session.view()} | {(piece := session.step(action)).index: piece.frame for action in actions_of(saved)}
    assert session.snapshot().units_TU.equal(saved.units_TU) and "right" in actions_of(saved)
    assert all(one.image == encode(made[one.about["frame"]], "webp", 90) for one in shown)


def test_a_tap_between_two_frames_is_seen_in_one(serve: Serve, join: Join) -> None:
    player = join(serve())
    player.start(pace=True)
    player.say("session.control", seq=1, pressed=["attack", "left"])
    applied = player.until("session.applied")
    assert (applied["what"], applied["seq"]) == ("control", 1)
    while (made := player.frame().about)["frame"] < applied["frame"] + 3:
        pass
    assert made["seq"] == 1 and made["action"] == "noop"
    actions = actions_of(player.snapshot())
    at = applied["frame"] - 4
    assert actions[at : at + 2] == ["attack", "left"] and set(actions[:at] + actions[at + 2 :]) <= {"noop"}


def test_the_time_from_a_control_to_its_image_is_told(serve: Serve, join: Join) -> None:
    player = join(serve())
    player.start()
    player.say("session.control", seq=1, held=["back"])
    while (made := player.frame().about)["seq"] is None:
        assert made["latency_ms"] is None
    assert made["latency_ms"] > 0 and player.frame().about["latency_ms"] is None


def test_images_wait_for_the_page_and_the_oldest_are_dropped(serve: Serve, join: Join) -> None:
    player = join(serve())
    player.start()
    shown = [player.frame(acknowledge=False) for _ in range(2)]
    player.say("session.ping")
    assert player.hear()["type"] == "session.pong"  # and no third image
    while player.snapshot().frame < shown[-1].about["frame"] + 4:
        pass
    player.say("session.ack", frame=shown[-1].about["frame"])
    later = player.frame()
    assert later.about["dropped"] > 0
    assert later.about["frame"] - shown[-1].about["frame"] == later.about["dropped"] + 1


def test_the_schedule_changes_while_it_is_played(serve: Serve, join: Join) -> None:
    player = join(serve())
    player.start(paused=True)
    player.frame()
    for schedule, calls in (("raster", 192), ("diagonal:k=2", 38)):
        player.say("session.update", schedule=schedule, update_id=schedule)
        receipt = player.until("session.applied")
        assert receipt["what"] == "schedule" and receipt["update_id"] == schedule
        player.say("session.update", paused=False)
        made = player.frame()
        assert (made.about["schedule"], made.about["calls"]) == (schedule, calls)
        player.say("session.update", paused=True)
        while (receipt := player.until("session.applied"))["what"] != "pause":
            pass


def test_sessions_beyond_the_seats_are_refused_and_a_seat_comes_back(serve: Serve, join: Join) -> None:
    client = serve(seats=1)
    with client.websocket_connect(f"{SOCKET}?model=doom/tiny", headers=HOST) as socket:
        Player(socket).start()
        refused = join(client)
        refused.say("session.start")
        error = refused.hear()
        assert error["code"] == "no_seat" and "1 seats" in error["message"]
        with pytest.raises(WebSocketDisconnect) as closed:
            refused.hear()
        assert closed.value.code == 1013
    _wait_for_a_seat(client)
    join(client).start()


def _wait_for_a_seat(client: TestClient) -> None:
    for _ in range(200):
        if client.get("/v1/models").json()["data"][0]["free"]:
            return
    raise AssertionError("the seat did not come back")
