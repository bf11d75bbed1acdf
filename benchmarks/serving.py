"""What the server costs, and what it stands: the numbers of docs/serving.md.

    python benchmarks/serving.py load --out RESULT.json [--sessions 50 --seconds 180]
    python benchmarks/serving.py local --out RESULT.json [--rounds 8 --frames 40 --controls 10]

`load`: many sessions of `doom/tiny` on one server, each played as a page plays: images are acknowledged, a control
comes at a random time and the next one when it was seen. Memory is the server's resident set; its timelines are kept
short, so that they are full before memory is first looked at. `local`: one session of `doom`, as fast as it goes, by
`session.step` and through a server in turns, so that ratios mean something on a machine that is busy elsewhere too.
Both listen on 127.0.0.1, on any port that is free. `--out` keeps what the file has of the other one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from diagonal.media.files import atomic

TIMELINE = 32  # frames of a session under load that can be gone back to
WARM = 1 / 3  # share of the time of a load after which memory should stay as it is
HELD: tuple[tuple[str, ...], ...] = (("forward",), ("left",), (), ("forward", "right"), ("back",))
MIB = 2**20


@dataclass(frozen=True)
class Running:
    """A server in a process of its own."""

    address: str
    pid: int

    def memory(self) -> int:
        """Bytes of it that are in memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return 1024 * int(found[1])

    def processor(self) -> float:
        """Seconds of processors that it had."""
        ticks = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    def socket(self, model: str) -> str:
        """Where a model is played."""
        return f"{self.address.replace('http', 'ws', 1)}/v1/realtime/video?model={model}"


@contextmanager
def server(*command: str) -> Iterator[Running]:
    """Run a server until it says where it is, and end it afterwards."""
    environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "200"}
    with subprocess.Popen([sys.executable, *command], env=environment, text=True, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        said = ""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", said)):
            line = process.stderr.readline()
            if not line:
                raise RuntimeError(f"the server ended: {said}")
            said += line
        try:
            yield Running(found[0], process.pid)
        finally:
            process.terminate()
            process.communicate(timeout=60)


def serve(model: str, seats: int) -> None:
    """What `diagonal serve` does, with short timelines."""
    import diagonal
    from diagonal.server.app import create_app
    from diagonal.server.run import serve as run
    from diagonal.server.settings import Limits, Settings
    from diagonal.server.world_models import serve_world

    limits = Limits(timeline=TIMELINE)
    served = serve_world(diagonal.load(model), seats, limits)
    settings = Settings(port=0, seats=seats, limits=limits)
    run(create_app(settings, {model: served}), settings, lambda address: sys.stderr.write(f"{address}\n"))


@dataclass
class Player:
    """One who plays, and what was seen: `frames` counts images, `dropped` those that were not sent."""

    url: str
    start: dict[str, Any]
    frames: int = 0
    dropped: int = 0
    wrong: int = 0  # images that are neither the next frame nor after as many dropped ones as are told
    seq: int = 0
    sent: float | None = None  # when the control that is not seen yet was sent
    latencies: list[float] = field(default_factory=list)  # seconds from a control to the image that shows it
    _last: int | None = None
    _socket: ClientConnection | None = None

    async def join(self) -> None:
        """Take a seat."""
        self._socket = await connect(self.url, compression=None, max_size=None)
        await self.say("session.start", **self.start)
        assert json.loads(await self._socket.recv())["type"] == "session.started"

    async def leave(self) -> None:
        """Leave it."""
        assert self._socket is not None
        await self._socket.close()

    async def say(self, kind: str, **fields: Any) -> None:
        """Tell the server something."""
        assert self._socket is not None
        await self._socket.send(json.dumps({"type": kind, **fields}))

    async def control(self) -> None:
        """Hold something else."""
        self.seq += 1
        await self.say("session.control", seq=self.seq, held=HELD[self.seq % len(HELD)])
        self.sent = time.perf_counter()

    async def see(self) -> None:
        """The next image, acknowledged."""
        assert self._socket is not None
        while (message := json.loads(await self._socket.recv()))["type"] != "video.frame":
            assert message["type"] == "session.applied", message
        data = await self._socket.recv()
        at = time.perf_counter()
        await self.say("session.ack", frame=message["frame"])
        frame, dropped = message["frame"], message["dropped"]
        expected = frame if self._last is None else self._last + 1 + dropped - self.dropped
        self.wrong += frame != expected or len(data) != message["byte_length"]
        self._last, self.dropped, self.frames = frame, dropped, self.frames + 1
        if self.sent is not None and message["seq"] == self.seq:
            self.latencies.append(at - self.sent)
            self.sent = None

    async def play(self, until: float, chance: random.Random, least: int = 1) -> None:
        """See images until a time, and at least so many; tell something new some time after it was last seen."""
        controlling = asyncio.create_task(self._control_now_and_then(chance))
        await self.say("session.update", paused=False)
        while time.perf_counter() < until or self.frames < least:
            await self.see()
        controlling.cancel()

    async def _control_now_and_then(self, chance: random.Random) -> None:
        while True:
            await asyncio.sleep(0.5 + chance.random())
            if self.sent is None:
                await self.control()


async def crowd(
    running: Running, model: str, sessions: int, seconds: float, least: int = 1
) -> tuple[list[Player], list[int], float]:
    """Who played, the server's memory every half second, and the seconds of a processor that the players had."""
    start = {"start": "hall", "paused": True}
    players = [Player(running.socket(model), start | {"seed": seed}) for seed in range(sessions)]
    for player in players:
        await player.join()
    memory = list[int]()

    async def watch() -> None:
        while True:
            memory.append(running.memory())
            await asyncio.sleep(0.5)

    watching, own = asyncio.create_task(watch()), time.process_time()
    until = time.perf_counter() + seconds
    await asyncio.gather(*(player.play(until, random.Random(seed), least) for seed, player in enumerate(players)))
    watching.cancel()
    own = time.process_time() - own
    await asyncio.gather(*(player.leave() for player in players))
    return players, memory, own


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """50th, 95th and 99th percentile in milliseconds."""
    ordered = sorted(values)
    return {f"p{q}": round(1000 * ordered[min(len(ordered) - 1, len(ordered) * q // 100)], 1) for q in (50, 95, 99)}


def load(sessions: int = 50, seconds: float = 180.0, model: str = "doom/tiny") -> dict[str, Any]:
    """Many sessions at once."""
    with server(__file__, "serve", "--model", model, "--sessions", str(sessions)) as running:
        players, memory, own = asyncio.run(crowd(running, model, sessions, seconds))
    warm = memory[int(WARM * len(memory)) :]
    third = max(1, len(warm) // 3)
    before, after = statistics.median(warm[:third]), statistics.median(warm[-third:])
    frames = [player.frames for player in players]
    return {
        "model": model,
        "sessions": sessions,
        "seconds": seconds,
        "frames": sum(frames),
        "seconds_a_frame": seconds / statistics.median(frames),
        "frames_a_session": [min(frames), statistics.median(frames), max(frames)],
        "out_of_order": sum(player.wrong for player in players),
        "dropped": sum(player.dropped for player in players),
        "controls": sum(len(player.latencies) for player in players),
        "control_to_frame_ms": quantiles([one for player in players for one in player.latencies]),
        "memory_mib": {"first": memory[0] / MIB, "warm": before / MIB, "end": after / MIB, "most": max(memory) / MIB},
        "memory_growth": after / before - 1,
        "client_seconds": own,
        **_machine(),
    }


def local(rounds: int, frames: int, controls: int, model: str = "doom") -> dict[str, Any]:
    """`session.step` and the server in turns."""
    from diagonal.cli import load_world
    from diagonal.cli.options import Computing, WorldSource

    session = load_world(WorldSource(model=model), Computing()).play("lamps", seed=0)
    step: Callable[[], object] = lambda: session.step("forward")  # noqa: E731
    with server("-m", "diagonal", "serve", "--port", "0", "--model", model) as running:
        return {
            "model": model,
            "frames": frames,
            **asyncio.run(_turns(running, model, step, (rounds, frames, controls))),
            **_machine(),
        }


async def _turns(
    running: Running, model: str, step: Callable[[], object], sizes: tuple[int, int, int]
) -> dict[str, Any]:
    """Seconds a frame by the clock and of processors, both ways; how much longer than a frame a control waits."""
    rounds, frames, controls = sizes
    start = {"start": "lamps", "seed": 0, "pace": False, "paused": True, "format": "webp", "quality": 90}
    player, chance = Player(running.socket(model), start), random.Random(0)
    await player.join()
    alone, served, over = list[float](), list[float](), list[list[float]]()
    work_alone, work_served = list[float](), list[float]()
    for number in range(rounds + 1):  # the first makes ready what is made once
        began, worked = time.perf_counter(), time.process_time()
        for _ in range(frames):
            step()
        alone.append((time.perf_counter() - began) / frames)
        work_alone.append((time.process_time() - worked) / frames)
        await player.say("session.update", paused=False)
        for _ in range(3):  # images that waited
            await player.see()
        began, worked = time.perf_counter(), running.processor()
        for _ in range(frames):
            await player.see()
        served.append((time.perf_counter() - began) / frames)
        work_served.append((running.processor() - worked) / frames)
        player.latencies = []
        while len(player.latencies) < controls:
            await _at_random(player, chance, served[-1])
        over.append([one - served[-1] for one in player.latencies])
        await player.say("session.update", paused=True)
        sys.stdout.write(f"{number}: {1 / alone[-1]:.2f} FPS alone, {1 / served[-1]:.2f} served, ")
        sys.stdout.write(f"control to frame {quantiles(player.latencies)}\n")
    await player.leave()
    ratios = _ratios(alone, served)
    beyond = [one for part in over[1:] for one in part]
    return {
        "fps_alone": [1 / one for one in alone[1:]],
        "fps_served": [1 / one for one in served[1:]],
        "served_over_alone": statistics.median(ratios),
        "ratios": ratios,
        "processor_alone_over_served": statistics.median(_ratios(work_alone, work_served)),
        "processor_seconds": [statistics.median(work_alone[1:]), statistics.median(work_served[1:])],
        "out_of_order": player.wrong,
        "dropped": player.dropped,
        "controls": len(beyond),
        "beyond_one_frame_ms": quantiles(beyond),
    }


def _ratios(alone: Sequence[float], served: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(alone[1:], served[1:], strict=True)]


async def _at_random(player: Player, chance: random.Random, frame: float) -> None:
    """A control at any time of a frame, and images until it is seen."""
    seeing = asyncio.create_task(_until_seen(player))
    await asyncio.sleep(frame * (0.5 + 2 * chance.random()))
    await player.control()
    await seeing


async def _until_seen(player: Player) -> None:
    seen = len(player.latencies)
    while len(player.latencies) == seen:
        await player.see()


def _machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "load": os.getloadavg()[0], "command": " ".join(["python", *sys.argv])}


def table(found: dict[str, Any]) -> str:
    """What was measured, as lines."""
    shown = {name: value for name, value in found.items() if name not in ("ratios", "fps_alone", "fps_served")}
    return "\n".join(f"{name:20} {json.dumps(value)}" for name, value in shown.items()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("load", "local", "serve"))
    parser.add_argument("--model", help="default: doom/tiny under load, doom in local play")
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--frames", type=int, default=40, help="of a round, each way")
    parser.add_argument("--controls", type=int, default=10, help="of a round")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.what == "serve":
        serve(given.model, given.sessions)
        return
    if given.what == "load":
        found = load(given.sessions, given.seconds, given.model or "doom/tiny")
    else:
        found = local(given.rounds, given.frames, given.controls, given.model or "doom")
    sys.stdout.write(table(found))
    if given.out is not None:
        kept = json.loads(given.out.read_text()) if given.out.exists() else {}
        with atomic(given.out) as temporary:
            temporary.write_text(json.dumps(kept | {given.what: found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
