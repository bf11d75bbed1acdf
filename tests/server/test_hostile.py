"""What strangers send: nothing of it crashes the server, and every refusal has a message and a code."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi import checks as conforms
from starlette.requests import Request
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from diagonal.server.jobs.body import Bodies
from diagonal.server.settings import Limits
from diagonal.server.wire import RefusedError
from tests.server.job_server import SMALL, VIDEO, WORLD, application, listening

EXAMPLES = 12  # of each operation, right ones and wrong ones
QUIET = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[*HealthCheck],
    database=None,
    derandomize=True,
)
CHECKS = [
    not_a_server_error,
    conforms.status_code_conformance,
    conforms.content_type_conformance,
    conforms.response_headers_conformance,
    conforms.response_schema_conformance,
    conforms.unsupported_method,
]
PATHS = {
    "/v1/models": ["GET"],
    "/health": ["GET"],
    "/metrics": ["GET"],
    "/v1/models/{model}/starts/{start}": ["GET"],
    "/v1/sessions/{session_id}/snapshot": ["GET"],
    "/v1/sessions/{session_id}/recording": ["GET"],
    "/v1/videos": ["GET", "POST"],
    "/v1/videos/extensions": ["POST"],
    "/v1/videos/{video_id}": ["DELETE", "GET"],
    "/v1/videos/{video_id}/cancel": ["POST"],
    "/v1/videos/{video_id}/content": ["GET"],
    "/v1/videos/{video_id}/remix": ["POST"],
}


class Errors(logging.Handler):
    """Whatever is logged as an error: a server that refuses has none."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    limits = Limits(jobs=4, video_frames=20, idle_seconds=20, timeline=64, upload_seconds=1.0, upload_bytes=4 * 2**20)
    errors = Errors()
    loggers = [logging.getLogger(name) for name in ("", "uvicorn.error")]
    for logger in loggers:
        logger.addHandler(errors)
    with listening(application(limits, data=tmp_path_factory.mktemp("data"), seats=4)) as place:
        yield place
        models = httpx.get(f"http://{place}/v1/models").json()["data"]
        assert [model["free"] for model in models] == [4, 4]
    for logger in loggers:
        logger.removeHandler(errors)
    assert errors.said == []


@pytest.fixture(scope="module")
def known(address: str) -> str:
    """The id of a job that there is."""
    answer = httpx.post(f"http://{address}/v1/videos", json={"model": WORLD, "prompt": "left*2", **SMALL})
    found: str = answer.json()["id"]
    return found


def test_openapi_names_every_route_and_what_it_may_answer(address: str) -> None:
    schema = httpx.get(f"http://{address}/openapi.json").json()
    assert {path: sorted(method.upper() for method in methods) for path, methods in schema["paths"].items()} == PATHS
    for methods in schema["paths"].values():
        for operation in methods.values():
            assert {"200", "400", "404"} <= set(operation["responses"]) and "422" not in operation["responses"]
            assert operation["summary"] and operation["description"]
    body = schema["paths"]["/v1/videos"]["post"]["requestBody"]["content"]
    assert {"multipart/form-data", "application/json"} == set(body)
    assert body["multipart/form-data"]["schema"]["properties"]["input_reference"]["format"] == "binary"


@pytest.mark.parametrize("mode", [*GenerationMode], ids=lambda mode: mode.value)
def test_requests_of_all_kinds_are_answered_as_openapi_says(address: str, known: str, mode: GenerationMode) -> None:
    schema, seen = schemathesis.openapi.from_url(f"http://{address}/openapi.json"), Counter[int]()
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and operation.path not in TAKING:
            continue  # there is nothing in it that could be wrong

        @QUIET
        @given(case=operation.as_strategy(generation_mode=mode), there=st.booleans())
        def check(case: Any, there: bool) -> None:
            if there and "video_id" in case.path_parameters and case.method != "DELETE":
                case.path_parameters["video_id"] = known
            answer = case.call()
            seen[answer.status_code] += 1
            case.validate_response(answer, checks=CHECKS)
            if answer.status_code >= 400:
                error = answer.json()["error"]
                assert error["message"] and error["code"] and error["type"]

        check()
    wanted = {200, 404} if mode is GenerationMode.POSITIVE else {400}
    assert wanted <= set(seen) <= {200, 400, 404, 405, 413, 415, 429}, seen


TAKING = ("/v1/videos", "/v1/videos/extensions", "/v1/sessions/{session_id}/snapshot", "/v1/videos/{video_id}/content")

BOMBS = [
    "[" * 50_000,
    '{"a":' * 50_000,
    '{"type": "session.control", "seq": 1' + "0" * 5000 + "}",
    '{"type": "session.control", "seq": 1e999}',
    '{"type": "session.ack", "frame": -1}',
    '{"type": "session.start", "snapshot": {"shape": [4096, 1000000]}}',
    '{"type": "session.start", "snapshot": {"shape": [4, 193], "units": "' + "A" * 1000 + '"}}',
    '{"type": "session.ping", "event_id": "\\ud800"}',
    '{"\\ud800": 1, "type": "session.ping"}',
    '{"type": "session.rewind", "frame": 9223372036854775807}',
    '{"type": "session.start", "prompt": "' + "left " * 10_000 + '"}',
    "x" * 200_000,
    '{"type": "session.control", "seq": 5, "held": ' + json.dumps(["left"] * 33) + "}",
    "\x00",
    "null",
    "",
]
TYPES = (
    "start", "control", "ack", "update", "reset", "rewind", "snapshot", "ping", "stop", "interaction", "dance", "",
)  # fmt: skip
FIELDS = (
    "model", "start", "prompt", "seed", "schedule", "paused", "pace", "seq", "held", "pressed", "frame", "snapshot",
    "interaction", "num_frames",
)  # fmt: skip
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(0, 9),
        st.floats(allow_nan=False),
        st.text(max_size=9),
        st.sampled_from(["hall", "left", "raster", "diagonal:k=1", WORLD, VIDEO, "../../etc/passwd", "a stone maze"]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*FIELDS, "event", "x"]), inner),
    max_leaves=6,
)
MESSAGES = st.one_of(
    st.builds(
        lambda kind, fields: json.dumps({"type": f"session.{kind}", **fields}),
        st.sampled_from(TYPES),
        st.dictionaries(st.sampled_from([*FIELDS, "event_id", "update_id", "x"]), VALUES, max_size=3),
    ),
    st.sampled_from(
        [json.dumps({"type": f"session.{kind}"}) for kind in TYPES]
        + [json.dumps({"type": "session.control", "seq": 3, "held": ["left"], "pressed": ["attack"]})]
        + [json.dumps({"type": "session.interaction", "interaction": {"event": {"prompt": "a stone maze"}}})]
    ),
    st.sampled_from(BOMBS),
    st.text(max_size=20),
    st.binary(max_size=20),
)
START = {
    WORLD: json.dumps({"type": "session.start", "start": "hall", "pace": False}),
    VIDEO: json.dumps({"type": "session.start", "prompt": "a stone maze", "num_frames": 17}),
}
CODES = {
    "bad_json", "bad_snapshot", "bad_value", "event_id_conflict", "interaction_failed", "no_seat", "too_large",
    "unknown_field", "unknown_model", "unknown_start", "unknown_type", "wrong_order",
}  # fmt: skip
CLOSES = (1000, 1003, 1005, 1008, 1009, 1013)


async def _talk(address: str, model: str, messages: list[str | bytes]) -> tuple[Counter[str], int]:
    """Say all of this, then a word that is understood; what errors came, and how it ended."""
    codes: Counter[str] = Counter()
    async with connect(f"ws://{address}/v1/realtime/video?model={model}", max_size=None) as socket:

        async def hear() -> None:
            with suppress(ConnectionClosed):
                async for message in socket:
                    said = json.loads(message) if isinstance(message, str) else {}
                    if said.get("type") == "error":
                        assert said["message"] and said["code"] in CODES, said
                        codes[said["code"]] += 1

        hearing = asyncio.create_task(hear())
        with suppress(ConnectionClosed):
            for message in messages:
                await socket.send(message)
            await socket.send('{"type": "session.stop"}')
            await asyncio.wait_for(asyncio.shield(hearing), 20)
        await asyncio.wait_for(hearing, 20)
    assert socket.close_code is not None
    return codes, socket.close_code


@pytest.mark.parametrize("model", [WORLD, VIDEO])
def test_a_socket_that_is_spoken_to_at_random_refuses_and_lives(address: str, model: str) -> None:
    heard: Counter[str] = Counter()

    @settings(QUIET, max_examples=60)
    @given(began=st.booleans(), messages=st.lists(MESSAGES, max_size=8))
    def fuzz(began: bool, messages: list[str | bytes]) -> None:
        codes, closed = asyncio.run(_talk(address, model, [START[model], *messages] if began else messages))
        assert closed in CLOSES, closed
        heard.update(codes)

    fuzz()
    assert {"bad_json", "unknown_type", "unknown_field", "bad_value", "wrong_order"} <= set(heard), heard
    until = time.monotonic() + 20
    while httpx.get(f"http://{address}/health").json()["sessions"]:
        assert time.monotonic() < until


@pytest.mark.parametrize("text", BOMBS, ids=range(len(BOMBS)))
@pytest.mark.parametrize("began", [True, False])
def test_bombs_do_not_go_off(address: str, text: str, began: bool) -> None:
    codes, closed = asyncio.run(_talk(address, WORLD, [START[WORLD], text] if began else [text]))
    assert sum(codes.values()) >= 1 and closed in CLOSES


def _upload(address: str, length: int, sent: bytes) -> socket.socket:
    """A client that says how much it sends, and sends less."""
    host, port = address.split(":")
    client = socket.create_connection((host, int(port)), timeout=20)
    head = f"POST /v1/videos HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}"
    client.sendall(head.encode() + b"\r\n\r\n" + sent)
    return client


def test_who_sends_slowly_is_not_waited_for_and_who_leaves_is_forgotten(address: str) -> None:
    def jobs() -> list[str]:
        return [job["id"] for job in httpx.get(f"http://{address}/v1/videos").json()["data"]]

    before = jobs()
    with _upload(address, 1000, b'{"prompt":'):
        pass  # it leaves
    with _upload(address, 1000, b'{"prompt":') as slow:
        answer = slow.recv(2000).decode()
    assert answer.startswith("HTTP/1.1 408") and "too_slow" in answer
    assert jobs() == before


def _request(*parts: bytes, hold: asyncio.Event | None = None) -> Request:
    """A request whose last part comes when it is let go."""
    left = [*parts]

    async def receive() -> dict[str, Any]:
        if len(left) == 1 and hold is not None:
            await hold.wait()
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return Request({"type": "http", "headers": [(b"content-type", b"application/json")]}, receive)


def test_uploads_that_are_on_their_way_together_are_limited() -> None:
    async def uploads() -> None:
        bodies, hold = Bodies(Limits(upload_bytes=1000, start_bytes=1000, uploads=1)), asyncio.Event()
        first = asyncio.create_task(bodies.read(_request(b" " * 900, b"{}", hold=hold)))
        await asyncio.sleep(0.01)
        with pytest.raises(RefusedError, match="as many uploads as it can"):
            await bodies.read(_request(b" " * 900, b"{}"))
        hold.set()
        assert await first == await bodies.read(_request(b" " * 900, b"{}")) == ({}, None)

    asyncio.run(uploads())
