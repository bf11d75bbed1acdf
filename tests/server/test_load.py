"""A server over TCP: many at once, clients that do not read or vanish, more than there are seats, and its end."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from benchmarks.serving import Player, Running, crowd, quantiles
from diagonal.generation.snapshot import Snapshot
from diagonal.server import sockets, world_socket
from diagonal.server.settings import Limits
from tests.server.conftest import Listen

WORLD, VIDEO = "doom/tiny", "doom-t2v/tiny"
PROMPT = "walking forward through a brick corridor"


def health(running: Running) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{running.address}/health").json()
    return found


async def free_within(running: Running, seconds: float) -> None:
    """All seats are free before so many seconds are over."""
    until = time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=running.address) as client:
        while (await client.get("/health")).json()["sessions"]:
            assert time.monotonic() < until, f"a seat is taken still, {seconds:g} seconds later"
            await asyncio.sleep(0.02)


@asynccontextmanager
async def deaf(running: Running, model: str, **start: Any) -> AsyncIterator[ClientConnection]:
    """A client that says what it wants and then reads nothing, with a small buffer for what it does not read."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", int(running.address.rpartition(":")[2])))
    client = await connect(running.socket(model), sock=raw, compression=None, ping_interval=None, max_queue=1)
    await client.send(json.dumps({"type": "session.start", **start}))
    try:
        yield client
    finally:
        client.transport.abort()


def test_many_play_at_once_and_each_sees_all_of_its_frames(listen: Listen) -> None:
    running = listen(seats=8)
    players, memory, _ = asyncio.run(crowd(running, WORLD, 8, 2.0, least=6))
    assert sum(player.wrong for player in players) == 0
    answered = quantiles([seconds for player in players for seconds in player.latencies])
    assert 0 < answered["p50"] <= answered["p95"] <= answered["p99"]
    assert len(memory) >= 2 and health(running)["sessions"] == 0


def test_the_example_of_the_documents_plays(listen: Listen, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```py\n(.*?)```", page, flags=re.DOTALL)
    assert len(code.splitlines()) <= 25
    code = code.replace("ws://127.0.0.1:8000/v1/realtime/video?model=doom", listen().socket(WORLD))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "session.started" in done.stdout and "'what': 'control', 'seq': 1" in done.stdout
    frames = sorted(tmp_path.glob("frame*.jpg"))
    assert len(frames) == 20 and all(frame.read_bytes()[:2] == b"\xff\xd8" for frame in frames)


def test_messages_are_not_compressed(listen: Listen) -> None:
    async def offered() -> str | None:
        async with connect(listen().socket(WORLD), compression="deflate") as client:
            assert client.response is not None
            return client.response.headers.get("Sec-WebSocket-Extensions")

    assert asyncio.run(offered()) is None


def test_who_stops_reading_costs_others_nothing_and_loses_the_seat(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reads nothing and asks for more and more answers, one shows nothing of an endless video."""
    for module in (sockets, world_socket):
        monkeypatch.setattr(module, "FAREWELL", 0.2)
    running = listen(Limits(idle_seconds=3.0, stall_seconds=0.5))

    async def scenario() -> None:
        player = Player(running.socket(WORLD), {"start": "hall", "paused": True})
        await player.join()
        endless = {"prompt": PROMPT, "extra_params": {"acknowledge": True}}
        async with deaf(running, WORLD) as one, deaf(running, VIDEO, **endless):
            asking = asyncio.create_task(_ask_forever(one))
            await player.play(time.perf_counter() + 1.5, random.Random(0), least=8)
            asking.cancel()
            assert not player.wrong and player.frames >= player.dropped
            await player.leave()
            await free_within(running, 10.0)

    asyncio.run(scenario())


def test_a_close_that_cannot_be_sent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "FAREWELL", 0.05)

    class Full:
        """A socket whose buffers are full."""

        async def send_json(self, message: dict[str, Any]) -> None:
            await asyncio.Event().wait()

    async def close() -> None:
        await asyncio.wait_for(sockets.farewell(Full(), 1008, {"code": "no_seat"}), 5)  # type: ignore[arg-type]

    asyncio.run(close())


async def _ask_forever(client: ClientConnection) -> None:
    with suppress(ConnectionClosed):
        while True:
            for _ in range(100):
                await client.send(json.dumps({"type": "session.ping"}))
            await asyncio.sleep(0.02)


def test_two_hundred_beyond_the_seats_are_told_so(listen: Listen) -> None:
    running = listen(seats=2)

    async def refused() -> tuple[str, str, int | None]:
        async with connect(running.socket(WORLD), compression=None, open_timeout=60) as client:
            await client.send(json.dumps({"type": "session.start"}))
            error = json.loads(await client.recv())
            with pytest.raises(ConnectionClosed):
                await client.recv()
            return error["code"], error["message"], client.close_code

    async def scenario() -> None:
        players = [Player(running.socket(WORLD), {"paused": True}) for _ in range(2)]
        for player in players:
            await player.join()
        playing = [asyncio.create_task(player.play(0.0, random.Random(0), least=10)) for player in players]
        answers = await asyncio.gather(*(refused() for _ in range(200)))
        assert set(answers) == {("no_seat", "all 2 seats of doom/tiny are taken; try again later", 1013)}
        await asyncio.gather(*playing)
        assert not any(player.wrong for player in players)
        await asyncio.gather(*(player.leave() for player in players))

    asyncio.run(scenario())
    assert f'diagonal_refused_total{{model="{WORLD}"}} 200' in httpx.get(f"{running.address}/metrics").text


@pytest.mark.parametrize("model", [WORLD, VIDEO])
def test_who_vanishes_leaves_the_seat_within_a_second(listen: Listen, model: str) -> None:
    running = listen(seats=1)
    start = {"pace": False} if model == WORLD else {"prompt": PROMPT}

    async def scenario() -> None:
        client = await connect(running.socket(model), compression=None)
        await client.send(json.dumps({"type": "session.start", **start}))
        await client.recv()
        assert health(running)["sessions"] == 1
        client.transport.abort()
        await free_within(running, 1.0)

    asyncio.run(scenario())


def test_a_server_that_is_told_to_end_tells_clients_and_keeps_sessions(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "diagonal", "serve", "--port", "0", "--data", str(tmp_path), "--unsigned"]
    command += ["--model", WORLD, "--model", VIDEO]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "200"}) as process:
        assert process.stderr is not None
        said = ""
        while not (found := re.search(r"http://\S+", said)):
            said += process.stderr.readline()
        running = Running(found[0], process.pid)
        closings = asyncio.run(_until_it_ends(running, process))
        assert process.wait(20) == 0
        assert "Traceback" not in process.stderr.read()
    told = {one["session_id"]: one["snapshot"] for one in closings if "session_id" in one}
    assert len(closings) == 4 and len(told) == 3 and all(one["reason"] == "the server stops" for one in closings)
    kept = {path.stem: Snapshot.load(path).as_json() for path in (tmp_path / "sessions").iterdir()}
    assert kept == told
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]  # names of files half written


async def _until_it_ends(running: Running, process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Three who play and one who watches; gives what each was told last, with the session that it was."""
    starts = [(WORLD, {"seed": seed}) for seed in range(3)] + [(VIDEO, {"prompt": PROMPT})]
    clients = []
    for model, start in starts:
        client = await connect(running.socket(model), compression=None, max_size=None)
        await client.send(json.dumps({"type": "session.start", **start}))
        clients.append((client, json.loads(await client.recv())))
    await asyncio.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    return await asyncio.gather(*(_last_words(*one) for one in clients))


async def _last_words(client: ClientConnection, started: dict[str, Any]) -> dict[str, Any]:
    last: dict[str, Any] = {}
    with pytest.raises(ConnectionClosed):
        while True:
            message = await client.recv()
            last = json.loads(message) if isinstance(message, str) else last
    assert client.close_code == 1012 and last["type"] == "session.closing"
    return last | {name: started[name] for name in ("session_id",) if name in started}
