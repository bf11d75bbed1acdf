"""Who may come in, what is refused, and what a client that misbehaves costs others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from diagonal.generation.snapshot import Snapshot
from diagonal.server.settings import Limits, Settings
from tests.server.conftest import BASE, HOST, SOCKET, Join, Player, Serve

TOKEN = "a long enough token"


def refusal(player: Player, code: int) -> str:
    """The code of the error with which a socket closes."""
    error = player.hear()
    assert error["type"] == "error" and error["message"]
    with pytest.raises(WebSocketDisconnect) as closed:
        player.hear()
    assert closed.value.code == code
    return str(error["code"])


def test_other_hosts_need_a_token() -> None:
    with pytest.raises(ValueError, match="no token is given"):
        Settings(host="0.0.0.0")
    with pytest.raises(ValueError, match="at least 8"):
        Settings(host="0.0.0.0", token="short")
    assert (
        Settings(host="::1").local and Settings(host="127.0.0.9").local and not Settings(host="::", token=TOKEN).local
    )


def test_nothing_is_served_without_the_token_but_the_page(serve: Serve, join: Join) -> None:
    client = serve(token=TOKEN, host="0.0.0.0")
    for path in ("/v1/models", "/metrics", "/openapi.json", "/v1/sessions/x/snapshot"):
        answer = client.get(path)
        assert answer.status_code == 401 and answer.json()["error"]["code"] == "bad_token"
    assert client.get("/health").status_code == 200
    assert client.get("/v1/models", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert client.get("/v1/models", params={"token": TOKEN}).status_code == 200
    assert client.get("/v1/models", params={"token": TOKEN + "x"}).status_code == 401
    assert refusal(join(client), 1008) == "bad_token"
    join(client, f"?model=doom/tiny&token={TOKEN}").start()


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"origin": "https://evil.example"}, "bad_origin"),
        ({"origin": "null"}, "bad_origin"),
        ({"origin": "http://127.0.0.1:8001"}, "bad_origin"),
        ({"host": "evil.example:8000", "origin": "http://evil.example:8000"}, "bad_host"),
    ],
)
def test_pages_of_others_may_not_play(serve: Serve, join: Join, headers: dict[str, str], code: str) -> None:
    client = serve()
    assert refusal(join(client, **headers), 1008) == code
    answer = client.get("/v1/models", headers=headers)
    assert answer.status_code == 403 and answer.json()["error"]["code"] == code


def test_pages_that_are_allowed_may_play(serve: Serve, join: Join) -> None:
    client = serve(origins=("https://friend.example",))
    for origin in ("https://friend.example", "http://127.0.0.1:8000"):
        join(client, origin=origin).start()


def test_the_page_may_load_nothing_from_elsewhere(serve: Serve) -> None:
    answer = serve().get("/")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy and answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("text", "code", "closed"),
    [
        ("{", "bad_json", 1003),
        ("[1]", "bad_json", 1003),
        ("[" * 100_000, "bad_json", 1003),
        ('{"type": "session.start", "seed": NaN}', "bad_json", 1003),
        ('{"type": "hello"}', "unknown_type", 1003),
        ('{"type": ["session.start"]}', "unknown_type", 1003),
        ("{}", "unknown_type", 1003),
        ('{"type": "session.ping"}', "wrong_order", 1008),
        ('{"type": "session.start", "sede": 1}', "unknown_field", 1008),
        ('{"type": "session.start", "seed": "1"}', "bad_value", 1008),
        ('{"type": "session.start", "seed": -1}', "bad_value", 1008),
        ('{"type": "session.start", "seed": 1' + 5000 * "0" + "}", "bad_json", 1003),
        ('{"type": "session.start", "quality": 0}', "bad_value", 1008),
        ('{"type": "session.start", "model": "doom"}', "unknown_model", 1008),
        ('{"type": "session.start", "start": "nowhere"}', "unknown_start", 1008),
        ('{"type": "session.start", "start": "../hall"}', "unknown_start", 1008),
        ('{"type": "session.start", "schedule": "diagonal:k=1,d=3"}', "bad_value", 1008),
        ('{"type": "session.start", "snapshot": {}}', "bad_snapshot", 1008),
        (" " * 5 * 2**20, "too_large", 1009),
    ],
)
def test_first_messages_that_are_wrong_end_the_socket(
    serve: Serve, join: Join, text: str, code: str, closed: int
) -> None:
    player = join(serve(seats=1))
    player.socket.send_text(text)
    assert refusal(player, closed) == code


def test_models_that_there_are_not_are_refused(serve: Serve, join: Join) -> None:
    assert refusal(join(serve(), "?model=doom/huge"), 1008) == "unknown_model"


def test_who_says_nothing_is_left(serve: Serve, join: Join) -> None:
    client = serve(Limits(start_seconds=0.05, idle_seconds=0.2))
    assert refusal(join(client), 4408) == "start_timeout"
    player = join(client)
    player.start(paused=True)
    player.frame()
    assert refusal(player, 1008) == "idle_timeout"


def test_wrong_messages_are_told_and_many_of_them_end_the_session(serve: Serve, join: Join) -> None:
    player = join(serve(Limits(errors=3)))
    player.start(paused=True)
    player.frame()
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("session.update", {"schedule": "diagonal:k=9"}),
        ("session.control", {"seq": 1, "held": ["fly"]}),
        ("session.start", {}),
        ("session.dance", {}),
    ]
    codes = []
    for kind, fields in wrong:
        player.say(kind, event_id="mine", **fields)
        error = player.until("error")
        codes.append(error["code"])
        assert error["event_id"] == "mine"
    assert codes == ["bad_value", "bad_value", "wrong_order", "unknown_type"]
    with pytest.raises(WebSocketDisconnect) as closed:
        player.hear()
    assert closed.value.code == 1008


def test_one_large_or_binary_message_is_refused(serve: Serve, join: Join) -> None:
    client = serve(Limits(message_bytes=1000))
    player = join(client)
    player.start(paused=True)
    player.frame()
    player.socket.send_bytes(b"abc")
    assert player.until("error")["code"] == "bad_json"
    player.say("session.update", update_id=2000 * "a")
    assert player.until("error")["code"] == "too_large"
    with pytest.raises(WebSocketDisconnect) as closed:
        player.hear()
    assert closed.value.code == 1009


def test_controls_must_come_in_their_order(serve: Serve, join: Join) -> None:
    player = join(serve())
    player.start(paused=True)
    player.frame()
    player.say("session.control", seq=7)
    player.say("session.control", seq=7, event_id="late")
    error = player.until("error")
    assert error["event_id"] == "late" and "seq 7 came after 7" in error["message"]


def test_a_client_that_does_not_read_holds_up_nobody(serve: Serve, join: Join) -> None:
    client = serve()
    join(client).start()  # and never reads or acknowledges again
    player = join(client)
    player.start()
    shown = [player.frame().about for _ in range(20)]
    assert shown[-1]["frame"] == 3 + 19 + shown[-1]["dropped"]


def test_a_slow_schedule_of_others_takes_its_share_alone(serve: Serve, join: Join) -> None:
    """Frames under raster take seven times as long: who plays another schedule still gets more of them."""
    client = serve()
    slow, quick = join(client), join(client)
    slow.start(schedule="raster")
    quick.start(schedule="diagonal:k=2")
    while quick.frame().about["frame"] < 20:
        pass
    assert slow.snapshot().frame < 16


def test_who_vanishes_leaves_a_seat(serve: Serve, join: Join) -> None:
    client = serve(seats=1)
    with client.websocket_connect(SOCKET, headers=HOST) as socket:
        Player(socket).start()
        assert client.get("/health").json()["sessions"] == 1
    while client.get("/v1/models").json()["data"][0]["free"] == 0:
        pass
    assert client.get("/health").json()["sessions"] == 0
    join(client).start()


def test_when_the_server_stops_sessions_are_told_and_kept(serve: Serve, join: Join, tmp_path: Path) -> None:
    client = serve(data=tmp_path)
    player = join(client)
    session = player.start(paused=True)["session_id"]
    player.frame()
    assert client.portal is not None
    client.portal.call(client.app.state.house.say_goodbye, "tests are done")  # type: ignore[attr-defined]
    closing = player.until("session.closing")
    assert closing["reason"] == "tests are done"
    with pytest.raises(WebSocketDisconnect) as closed:
        player.hear()
    assert closed.value.code == 1012
    kept = Snapshot.load(tmp_path / "sessions" / f"{session}.json")
    assert kept.as_json() == closing["snapshot"] and [*(tmp_path / "sessions").iterdir()] != []
    assert refusal_after_closing(client, join) == "no_seat"


def refusal_after_closing(client: TestClient, join: Join) -> str:
    player = join(client)
    player.say("session.start")
    return refusal(player, 1013)


def test_metrics_count_what_happened(serve: Serve, join: Join) -> None:
    client = serve(seats=1)
    player = join(client)
    player.start()
    player.say("session.control", seq=1, held=["left"])
    while player.frame().about["seq"] is None:
        pass
    other = join(client)
    other.say("session.start")
    assert other.hear()["code"] == "no_seat"
    lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if not line.startswith("#"))
    label = 'model="doom/tiny"'
    assert int(lines[f'diagonal_frames_total{{{label},schedule="diagonal:k=1"}}']) >= 1
    assert int(lines[f"diagonal_sessions{{{label}}}"]) == int(lines[f"diagonal_seats{{{label}}}"]) == 1
    assert int(lines[f"diagonal_refused_total{{{label}}}"]) == int(lines[f"diagonal_sessions_total{{{label}}}"]) == 1
    count = int(lines[f"diagonal_control_to_image_seconds_count{{{label}}}"])
    assert count == int(lines[f'diagonal_control_to_image_seconds_bucket{{{label},le="+Inf"}}']) >= 1


def test_start_views_have_pictures(serve: Serve) -> None:
    client = serve()
    answer = client.get("/v1/models/doom/tiny/starts/hall")
    assert answer.headers["content-type"] == "image/webp" and answer.content[:4] == b"RIFF"
    for path in ("doom/tiny/starts/nowhere", "doom/starts/hall", "../starts/hall"):
        missing = client.get(f"{BASE}/v1/models/{path}")
        assert missing.status_code == 404 and json.loads(missing.content)["error"]["code"] == "not_found"
