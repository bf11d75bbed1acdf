"""What is tried on a local Ray cluster, which is started once: python -m tests.scale.on_a_cluster FOLDER

A process of its own, so that neither Ray's threads nor its warnings meet other tests. Cases run in the order in which
they stand here; what came of each is printed as one line of JSON.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as open_socket

SEATS, EVERY, PATIENCE = 2, 4, 90.0
CASES: dict[str, Callable[[Cluster], None]] = {}


def case(function: Callable[[Cluster], None]) -> Callable[[Cluster], None]:
    CASES[function.__name__] = function
    return function


class Cluster:
    """Two replicas of a world with random weights, the same in each process."""

    def __init__(self, folder: Path, ray: Any) -> None:
        from diagonal.scale.serving import Replicas, config_of

        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.folder, self.ray, self.store = folder, ray, folder / "sessions"
        args = {"models": ["doom/tiny"], "weights": "random", "seats": SEATS, "unsigned": True}
        args |= {"dtype": "float32", "snapshots": str(self.store), "snapshot_every": EVERY}
        self.config = config_of(args, Replicas(count=2, cpus=0.2), "127.0.0.1", self.port)

    def deploy(self, **changes: Any) -> None:
        from diagonal.scale.serving import deploy

        (application,) = self.config["applications"]
        application["args"] |= {"version": changes.pop("version", "1")}
        application["deployments"][0] |= changes
        deploy(self.config)

    def health(self, session: str | None = None) -> dict[str, Any]:
        headers = {} if session is None else {"x-session-id": session}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/health", headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    @contextmanager
    def join(self, session: str | None = None) -> Iterator[Player]:
        headers = {} if session is None else {"x-session-id": session}
        address = f"ws://127.0.0.1:{self.port}/v1/realtime/video"
        with open_socket(address, additional_headers=headers, max_size=None, compression=None) as found:
            yield Player(found)

    def resumed(self, session: str) -> Player:
        """Take a session up, as the page does: again and again until there is a seat."""
        address, deadline = f"ws://127.0.0.1:{self.port}/v1/realtime/video", time.monotonic() + PATIENCE
        while True:
            try:
                player = Player(open_socket(address, max_size=None, compression=None).__enter__())
                player.say("session.start", resume=session, format="webp", quality=85, paused=True)
                started = player.hear()
                if started["type"] == "session.started":
                    player.started = started
                    return player
                assert started["code"] == "no_seat", started
            except (ConnectionClosed, OSError):
                pass
            assert time.monotonic() < deadline, "nobody took the session up"
            time.sleep(0.5)

    def is_empty(self) -> bool:
        """Whether no replica has a session."""
        return not any(self.health(f"key-{number}")["sessions"] for number in range(16))

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, "it took too long"
            time.sleep(0.1)


class Player:
    """Speaks as the page does."""

    def __init__(self, found: ClientConnection) -> None:
        self.socket, self.started, self.images = found, dict[str, Any](), dict[int, bytes]()

    def say(self, kind: str, **fields: Any) -> None:
        self.socket.send(json.dumps({"type": kind, **fields}))

    def hear(self, seconds: float = PATIENCE) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.socket.recv(timeout=seconds))
        if message["type"] == "video.frame":
            image = self.socket.recv(timeout=seconds)
            assert isinstance(image, bytes)
            self.images[message["frame"]] = image
        return message

    def start(self, **fields: Any) -> None:
        """Every frame turns right: the control is there before the first one is made."""
        self.say("session.start", start="hall", seed=3, format="webp", quality=85, paused=True, **fields)
        self.started = self.hear()
        assert self.started["type"] == "session.started", self.started
        self.go()

    def go(self) -> None:
        self.say("session.control", seq=1, held=["right"])
        self.say("session.update", paused=False)

    def play(self, until: int) -> None:
        while max(self.images, default=0) < until:
            message = self.hear()
            if message["type"] == "video.frame":
                self.say("session.ack", frame=message["frame"])

    def to_the_end(self) -> tuple[dict[str, Any], int]:
        """The last message but frames, and the code that the socket was closed with."""
        last: dict[str, Any] = {}
        try:
            while True:
                message = self.hear()
                if message["type"] != "video.frame":
                    last = message
                    continue
                with suppress(ConnectionClosed):  # what came before the end is still to be heard
                    self.say("session.ack", frame=message["frame"])
        except ConnectionClosed as closed:
            return last, closed.rcvd.code if closed.rcvd else 1006


def reference(frames: int) -> dict[int, bytes]:
    """What the library makes of the same moves, in one process and undisturbed."""
    import diagonal
    from diagonal.server.images import encode

    session = diagonal.load("doom/tiny", "random").play("hall", seed=3)
    images = {session.index: encode(session.view(), "webp", 85)}
    while session.index < frames:
        piece = session.step("right")
        images[piece.index] = encode(piece.frame, "webp", 85)
    return images


def check_images(images: dict[int, bytes]) -> None:
    expected = reference(max(images))
    wrong = [frame for frame, image in images.items() if expected[frame] != image]
    assert not wrong, f"frames {wrong} of {sorted(images)} differ from an undisturbed session's"


@case
def a_session_plays_and_a_header_leads_to_its_replica(cluster: Cluster) -> None:
    tags = {cluster.health(f"key-{number}")["replica"] for number in range(16)}
    assert len(tags) == 2
    for key in ("key-1", "key-2", "key-3"):
        here = cluster.health(key)
        with cluster.join(key) as player:
            player.start()
            player.play(8)
            assert cluster.health(key)["replica"] == here["replica"]
            assert cluster.health(key)["sessions"] == here["sessions"] + 1
            check_images(player.images)
            player.say("session.stop")
            assert player.to_the_end()[1] == 1000
        cluster.until(cluster.is_empty)


@case
def the_seat_after_the_last_is_refused_in_words(cluster: Cluster) -> None:
    players = [cluster.join() for _ in range(2 * SEATS)]
    opened = [player.__enter__() for player in players]
    for player in opened:
        player.start()
    with cluster.join() as late:
        late.say("session.start")
        refused, code = late.to_the_end()
        assert refused["code"] == "no_seat" and f"all {SEATS} seats" in refused["message"] and code == 1013
    for player, context in zip(opened, players, strict=True):
        player.say("session.stop")
        player.to_the_end()
        context.__exit__(None, None, None)
    cluster.until(cluster.is_empty)


@case
def a_slow_client_gets_few_images_and_takes_no_memory(cluster: Cluster) -> None:
    """Serve never makes a sender wait, so the server has to count what is not acknowledged."""
    with cluster.join("slow") as slow:
        slow.start(pace=False)
        pid = _process_of(cluster, "slow")
        while len(slow.images) < 2:
            slow.hear()
        before = _resident(pid)
        time.sleep(2)
        slow.say("session.ping")
        while slow.hear()["type"] != "session.pong":
            pass
        assert len(slow.images) == 2, "images came that nobody acknowledged"
        assert _resident(pid) < before + 32 * 2**20
        slow.say("session.ack", frame=max(slow.images))
        message = slow.hear()
        while message["type"] != "video.frame":
            message = slow.hear()
        assert message["dropped"] > 2


@case
def a_recording_is_made_where_the_session_is_whoever_is_asked(cluster: Cluster) -> None:
    with cluster.join() as player:
        player.start()
        player.play(6)
        address = f"http://127.0.0.1:{cluster.port}/v1/sessions/{player.started['session_id']}"
        for key in ("key-1", "key-2", "key-3", "key-4"):
            for what, begins in (("snapshot", b'{"format": "diagonal session"'), ("recording", b"\0\0\0")):
                request = urllib.request.Request(f"{address}/{what}", headers={"x-session-id": key})
                with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                    assert answer.read(64).startswith(begins)


@case
def a_session_survives_its_replica_and_the_same_frames_follow(cluster: Cluster) -> None:
    key = "key-1"
    tag = cluster.health(key)["replica"]
    with cluster.join(key) as player, cluster.join(_key_of_another(cluster, tag)) as other:
        player.start()
        other.start()
        player.play(18)
        cluster.ray.kill(cluster.ray.get_actor(f"SERVE_REPLICA::diagonal#worlds#{tag}", namespace="serve"))
        assert player.to_the_end()[1] in (1006, 1011, 1012)
        again = cluster.resumed(player.started["session_id"])
        seen, begun = dict(player.images), again.started["frame"]
        assert max(seen) - 2 * EVERY <= begun <= max(seen) + EVERY
        again.go()
        again.play(begun + 12)
        shared = again.images.keys() & seen.keys()
        assert all(again.images[frame] == seen[frame] for frame in shared)
        check_images(seen | again.images)
        other.play(max(other.images, default=3) + 4)  # who was elsewhere noticed nothing
        check_images(other.images)
        again.socket.close()


@case
def an_update_hands_every_session_over_where_it_stands(cluster: Cluster) -> None:
    cluster.until(cluster.is_empty)
    players = [cluster.join() for _ in range(2)]
    opened = [player.__enter__() for player in players]
    for player in opened:
        player.start()
        player.play(6)
    ends: dict[int, tuple[dict[str, Any], int]] = {}
    threads = [
        threading.Thread(target=lambda number=number, player=player: ends.update({number: player.to_the_end()}))
        for number, player in enumerate(opened)
    ]
    for thread in threads:
        thread.start()
    cluster.deploy(version="2", num_replicas=1)
    for thread in threads:
        thread.join(PATIENCE)
    for number, player in enumerate(opened):
        last, code = ends[number]
        assert (last["type"], last["resume"], code) == ("session.closing", player.started["session_id"], 1012), last
        again = cluster.resumed(last["resume"])
        assert again.started["frame"] == last["snapshot"]["frame"] >= max(player.images)
        again.go()
        again.play(again.started["frame"] + 4)
        check_images(player.images | again.images)
        again.socket.close()


@case
def eight_clips_over_two_actors_are_those_of_a_loop_and_a_second_run_makes_what_is_missing(cluster: Cluster) -> None:
    from ray import serve

    from diagonal.scale.pool import each

    serve.shutdown()
    loop, spread = cluster.folder / "loop", cluster.folder / "spread"
    making, videos = _making(loop), _planned()
    do = making()
    for video in videos:
        do(video)
    dying = Dying(_making(spread), videos[1].name, cluster.folder / "died")
    first = list(each(cluster.ray, _two(), dying, videos[:5]))  # as if it was ended before the other three
    assert dying.marker.exists() and len(first) == 5 and all(one.error is None for one in first)
    there = {path: path.stat().st_mtime_ns for path in spread.glob("[!.]*.mp4")}
    assert {path.stem for path in there} == {video.name for video in videos[:5]}

    from diagonal.evaluation.prompted import made

    missing = [video for video in videos if video.name not in made(spread, videos)]
    bad, others = missing[0], missing[1:]
    assert missing == videos[5:]
    (spread / f"{bad.name}.mp4").mkdir()  # one fails, and the others are there
    rest = {one.item.name: one.error for one in each(cluster.ray, _two(), _making(spread), missing)}
    assert "it is a folder" in str(rest.pop(bad.name)) and rest == dict.fromkeys(one.name for one in others)
    noted = {spread / f"{video.name}.mp4" for video in videos if video not in missing}
    assert all(path.stat().st_mtime_ns == there[path] for path in noted)
    for video in videos:
        same = (loop / f"{video.name}.mp4").read_bytes()
        assert video == bad or (spread / f"{video.name}.mp4").read_bytes() == same, video
    assert made(spread, videos) >= {video.name for video in videos} - {bad.name}


@dataclass(frozen=True)
class Dying:
    """Like `making`, but the process ends in the middle of one item, the first time that it is begun."""

    making: Any
    name: str
    marker: Path

    def __call__(self) -> Callable[[Any], Any]:
        make = self.making()

        def do(video: Any) -> Any:
            if video.name == self.name and not self.marker.exists():
                self.marker.touch()
                os._exit(1)
            return make(video)

        return do


def _two() -> Any:
    from diagonal.scale.pool import Actors

    return Actors(count=2, gpus=0, cpus=0.2)


def _planned() -> list[Any]:
    from diagonal.evaluation.prompted import planned

    return planned([f"animal number {number}" for number in range(8)], 1, 0)


def _making(out: Path) -> Any:
    """Videos of a tiny model, as `diagonal video --prompts` makes them."""
    from diagonal.cli.options import Computing
    from diagonal.cli.signing import Watermarking
    from diagonal.cli.video_prompts import Making
    from diagonal.generation.components import Weights
    from diagonal.generation.request import Request

    out.mkdir(parents=True, exist_ok=True)
    return Making(
        name="wan/tiny",
        source=Weights("random"),
        computing=Computing(dtype="float32"),
        request=Request(prompt="an animal", num_frames=9, height=32, width=48),
        scale=1,
        signing=Watermarking(unsigned=True, watermark=False),
        out=out,
    )


def _key_of_another(cluster: Cluster, tag: str) -> str:
    return next(key for number in range(64) if cluster.health(key := f"other-{number}")["replica"] != tag)


def _process_of(cluster: Cluster, key: str) -> int:
    """The process of a replica: the one that Ray has named so and that has the most of what grows."""
    replica = cluster.ray.get_actor(
        f"SERVE_REPLICA::diagonal#worlds#{cluster.health(key)['replica']}", namespace="serve"
    )
    return int(cluster.ray.get(replica.__ray_call__.remote(lambda _: os.getpid())))


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(folder: Path) -> None:
    import torch

    from diagonal.scale.cluster import connect

    torch.set_num_threads(1)
    outcome, seconds = dict[str, str](), dict[str, float]()
    try:
        ray = connect(None)
        cluster = Cluster(folder, ray)
        cluster.deploy()
        for name, function in CASES.items():
            began = time.monotonic()
            try:
                function(cluster)
                outcome[name] = "done"
            except Exception:
                outcome[name] = traceback.format_exc()
            seconds[name] = round(time.monotonic() - began, 1)
    except Exception:
        outcome |= dict.fromkeys(CASES.keys() - outcome.keys(), f"the cluster did not start: {traceback.format_exc()}")
    # Before Ray ends: threads of its own that are late end the whole process.
    sys.stdout.write("\n" + json.dumps({"outcome": outcome, "seconds": seconds}) + "\n")
    sys.stdout.flush()
    from ray import serve

    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
