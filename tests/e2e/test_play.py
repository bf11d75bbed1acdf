"""`diagonal play`: along scripts and replays, and by keys in a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import diagonal
from diagonal import Snapshot, World
from diagonal.cli.console import BEGIN, END, ENTER, EXACT_OFF, EXACT_ON, LEAVE
from diagonal.cli.game import ACT, BRANCH, RESTART, RETURN, SCHEDULE, Move, Replay
from diagonal.cli.generate import Look
from diagonal.cli.play import Film
from diagonal.media import video
from diagonal.media.provenance.writing import UNMARKED
from tests.e2e.conftest import ENVIRONMENT, call, numbers_of
from tests.signers import ORIGIN

pytestmark = pytest.mark.usefixtures("forked")
TINY = ("--model", "doom/tiny")
Play = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def world() -> World:
    """A small world with random weights."""
    return diagonal.load("doom/tiny", dtype=torch.float32)


@pytest.fixture(scope="module")
def play(world: World, tmp_path_factory: pytest.TempPathFactory) -> Play:
    """What `play --json` prints in a folder, with the weights of `world`."""
    weights = world.save_pretrained(tmp_path_factory.mktemp("weights"))

    def run(folder: Path, *arguments: str) -> dict[str, Any]:
        return numbers_of(call(folder, "play", *arguments, "--weights", str(weights), "--dtype", "float32", "--json"))

    return run


def newest(path: Path) -> Tensor:
    """The frames that a snapshot knows, as tokens."""
    return Snapshot.load(path).units_TU


def test_a_script_plays_the_frames_of_the_library(tmp_path: Path, world: World, play: Play) -> None:
    how = (
        "--start",
        "gate",
        "--schedule",
        "diagonal:k=2",
        "--seed",
        "7",
        "--temperature",
        "0.5",
        "--context",
        "refill",
    )
    numbers = play(tmp_path, *TINY, *how, "--script", "forward*3,left*2", "--save", "end.json", "--out", "play.mp4")
    sampling = replace(world.variant.sampling, temperature=0.5)
    session = world.play("gate", schedule="diagonal:k=2", seed=7, sampling=sampling, context="refill")
    frames = [session.step(action).frame for action in ["forward"] * 3 + ["left"] * 2]
    assert torch.equal(newest(tmp_path / "end.json"), session.snapshot().units_TU)
    written = video.read(tmp_path / "play.mp4")
    assert written.shape == (5, 288, 384, 3)  # enlarged to be seen
    np.testing.assert_allclose(written[:, 1::3, 1::3].mean((1, 2)), np.stack(frames).mean((1, 2)), atol=6)
    assert (numbers["frames"], numbers["frame"], numbers["schedule"]) == (5, 8, "diagonal:k=2")
    assert (numbers["seed"], numbers["context"], numbers["out"]) == (7, "refill", "play.mp4")


def test_the_first_start_view_and_the_models_sampling_are_the_defaults(
    tmp_path: Path, world: World, play: Play
) -> None:
    play(tmp_path, *TINY, "--script", "forward*2", "--save", "end.json")
    session = world.play("hall")
    for _ in range(2):
        session.step("forward")
    saved = Snapshot.load(tmp_path / "end.json")
    assert torch.equal(saved.units_TU, session.snapshot().units_TU) and saved.sampling == session.sampling


def test_a_replay_plays_again_to_the_same_frames(tmp_path: Path, play: Play) -> None:
    begin = ("--start", "lamps", "--seed", "3", "--script", "forward*2,right")
    first = play(tmp_path, *TINY, *begin, "--replay", "replay.json", "--save", "first.json")
    again = play(tmp_path, "--script", "replay.json", "--save", "again.json", "--replay", "2.json")
    assert (tmp_path / "first.json").read_text() == (tmp_path / "again.json").read_text()
    assert (tmp_path / "replay.json").read_text() == (tmp_path / "2.json").read_text()
    assert (first["seed"], again["seed"], again["model"]) == (3, 3, "doom/tiny")
    replay = Replay.load(tmp_path / "replay.json")
    assert [move.value for move in replay.moves] == ["forward", "forward", "right"]


def test_a_session_is_gone_on_with_and_under_another_schedule(tmp_path: Path, world: World, play: Play) -> None:
    play(tmp_path, *TINY, "--script", "forward*2", "--save", "here.json")
    how = ("--resume", "here.json", "--schedule", "raster", "--temperature", "0")
    numbers = play(tmp_path, *how, "--script", "left*2", "--save", "there.json")
    session = world.play("hall")
    actions = ["forward", "forward", "left", "left"]
    for index, action in enumerate(actions):
        if index == 2:
            session.update(schedule="raster", sampling=replace(session.sampling, temperature=0))
        session.step(action)
    assert torch.equal(newest(tmp_path / "there.json"), session.snapshot().units_TU)
    assert (numbers["frames"], numbers["frame"], numbers["calls_per_frame"]) == (2, 7, 12 * 16)


def test_branches_are_returned_to_and_a_game_begins_again(tmp_path: Path, world: World, play: Play) -> None:
    """Where a replay is stopped, its session is the one that the library leads to."""
    turns = [Move(ACT, "forward"), Move(BRANCH), Move(ACT, "left"), Move(RETURN), Move(ACT, "right"), Move(RETURN)]
    turns += [Move(ACT, "right"), Move(RESTART), Move(SCHEDULE, "raster"), Move(ACT, "back")]
    Replay(world.play("hall", seed=2).snapshot(), turns).save(tmp_path / "turns.json")
    ends = [["forward"], ["forward", "left"], ["forward", "right"], ["forward", "right"], ["back"]]
    for frames, actions in enumerate(ends, 1):
        how = ("--frames", str(frames), "--save", "end.json", "--out", "play.mp4")
        numbers = play(tmp_path, "--script", "turns.json", *how)
        session = world.play("hall", seed=2, schedule="raster" if actions == ["back"] else "diagonal:k=1")
        for action in actions:
            session.step(action)
        assert torch.equal(newest(tmp_path / "end.json"), session.snapshot().units_TU)
        assert (numbers["frames"], numbers["frame"]) == (frames, 3 + len(actions))
        assert len(video.read(tmp_path / "play.mp4")) == frames


def test_the_summary_has_its_numbers(tmp_path: Path, play: Play) -> None:
    numbers = play(tmp_path, *TINY, "--script", "noop*3")
    assert numbers["calls"] == 3 * 27 and numbers["fps"] == pytest.approx(3 / numbers["seconds"])
    assert 0 < numbers["ms_per_frame"] <= numbers["ms_per_frame_p95"]
    assert numbers["key_to_frame_ms"] is None and "out" not in numbers and list(tmp_path.iterdir()) == []
    text = call(tmp_path, "play", *TINY, "--script", "noop*3", "--frames", "2").stdout
    assert text.split()[:6] == ["frames", "FPS", "ms", "per", "frame", "p95"]
    assert text.splitlines()[1].split()[0] == "2" and "▀" not in text


def test_a_film_has_the_mark_of_its_model_and_begins_with_its_first_frame(tmp_path: Path) -> None:
    frames, path = np.full((2, 96, 128, 3), 90, np.uint8), tmp_path / "marked.mp4"
    with ExitStack() as stack:
        film = Film(stack, str(path), Look(2, "generated by WHAM", 10), UNMARKED, ORIGIN)
        assert list(tmp_path.iterdir()) == []
        film.add(frames[:1])
        film.add(frames[1:])
    written = video.read(path).astype(int)
    assert written.shape == (2, 192, 256, 3)
    far = np.abs(written - 90).mean((0, 3))
    assert far[-12:, :40].mean() > 20 > 5 > far[:96].mean()


def test_frames_are_drawn_where_it_is_asked_for(tmp_path: Path) -> None:
    for form, mark, count in (("blocks", "diagonal:k=1  27 calls", 2), ("sixel", "\x1bP", 3)):
        done = call(tmp_path, "play", *TINY, "--script", "forward*2", "--draw", form, "--fps", "1000")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(mark) == count  # the first view, which has no numbers yet, and two frames
        assert "\x1b[?" not in done.stdout  # it is no terminal


# By keys


class Terminal:
    """A pseudo-terminal with a command in it."""

    def __init__(self, folder: Path, *arguments: str, answer: bytes = b"\x1b[?62;22c") -> None:
        self.screen, self.side = pty.openpty()
        fcntl.ioctl(self.side, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 80, 0, 0))
        self.before, self.text, self.answer = termios.tcgetattr(self.side), bytearray(), answer
        command = [sys.executable, "-m", "diagonal", "play", *arguments]
        environment = ENVIRONMENT | {"COLORTERM": "truecolor", "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=self.side, stdout=self.side, stderr=self.side
        )

    def wait(self, word: bytes, after: int = 0) -> int:
        """Read until this was written behind a place; the place behind it."""
        until = time.monotonic() + 90
        while word not in self.text[after:] and time.monotonic() < until:
            self.read()
        assert word in self.text[after:], bytes(self.text[-2000:])
        return self.text.index(word, after) + len(word)

    def read(self) -> None:
        """Take what was written meanwhile, and answer what a terminal is asked."""
        if select.select([self.screen], [], [], 0.1)[0]:
            part = os.read(self.screen, 1 << 16)
            self.text += part
            if b"\x1b[c" in part:
                self.press(self.answer)

    def press(self, keys: bytes) -> None:
        """What a terminal sends."""
        os.write(self.screen, keys)

    def end(self) -> int:
        """Wait for the end; the terminal must be as it was."""
        while self.process.poll() is None or select.select([self.screen], [], [], 0)[0]:
            self.read()
        assert termios.tcgetattr(self.side) == self.before
        assert self.text.count(ENTER) == self.text.count(LEAVE) == 1
        assert self.text.rindex(LEAVE) > self.text.rindex(BEGIN)
        return int(self.process.returncode)

    def close(self) -> None:
        """End what is left of it."""
        self.process.kill()
        self.process.wait()
        os.close(self.side)
        os.close(self.screen)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Begins `diagonal play`, and waits for its first frames."""
    opened: list[Terminal] = []

    def begin(*arguments: str, answer: bytes = b"\x1b[?62;22c") -> Terminal:
        opened.append(Terminal(tmp_path, *TINY, *arguments, answer=answer))
        opened[0].wait(END, opened[0].wait(END))
        return opened[0]

    yield begin
    for one in opened:
        one.close()


def test_a_world_is_played_by_keys_and_the_terminal_is_left_as_it_was(
    tmp_path: Path, terminal: Callable[..., Terminal]
) -> None:
    console = terminal("--replay", "replay.json", "--out", "play.mp4", "--fps", "20")
    place = len(console.text)
    walked, turned = (b"w", b"mforward "), (b"\x1b[D", b"mleft ")
    for keys, word in (walked, (b"", b"mnoop "), turned, (b"3", b"raster  192"), (b"p", b"mpaused ")):
        console.press(keys)  # a key counts as held for a while: the next one is pressed when it does no more
        place = console.wait(word, place)
    console.press(b"q")
    assert console.end() == 0
    assert console.text.count(BEGIN) == console.text.count(END) - 1 and "▀".encode() in console.text
    moves = Replay.load(tmp_path / "replay.json").moves
    assert {Move(ACT, "forward"), Move(ACT, "left"), Move(SCHEDULE, "raster")} <= set(moves)
    assert len(video.read(tmp_path / "play.mp4")) == sum(move.kind == ACT for move in moves)
    assert b"key to frame" in console.text.rpartition(LEAVE)[2]


@pytest.mark.parametrize(("leave", "code"), [(b"\x03", 0), (b"\x1b", 0), (signal.SIGTERM, 143)])
def test_it_is_left_clean_by_whatever_ends_it(
    tmp_path: Path, terminal: Callable[..., Terminal], leave: bytes | signal.Signals, code: int
) -> None:
    sixel = leave == b"\x03"
    console = terminal("--out", "play.mp4", answer=b"\x1b[?62;4c" if sixel else b"\x1b[?1u\x1b[?62c")
    if isinstance(leave, bytes):
        console.press(leave)
    else:
        console.process.send_signal(leave)
    assert console.end() == code
    assert (b"\x1bP0;1q" in console.text) == sixel
    assert console.text.count(ENTER + EXACT_ON) == console.text.count(EXACT_OFF + LEAVE) == (not sixel)
    assert [path.name for path in tmp_path.iterdir()] == (["play.mp4"] if code == 0 else [])
