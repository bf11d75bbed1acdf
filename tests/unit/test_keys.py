"""Keys: bytes to events, held keys as state, what a player does, all under a clock of the test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagonal.cli.game import ACT, BRANCH, RESTART, SCHEDULE, Move, middle_and_late
from diagonal.cli.keys import COMMANDS, HELD, TURNS, Event, Held, Kind, Meter, Player, decode
from diagonal.planning.decoding import parse as parse_schedule
from diagonal.worlds import vizdoom, vpt, xbox
from diagonal.worlds.pace import Pace
from diagonal.worlds.script import together

UP = Kind.UP
WORLDS = (vizdoom, vpt, xbox)


# Bytes


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"w", ["w"]),
        (b"W ", ["w", "space"]),
        (b"\x1b[A\x1b[B\x1bOC\x1bOD", ["up", "down", "right", "left"]),
        (b"\x03", ["ctrl-c"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[?62;4;22c\x1b[?0uw", ["w"]),  # a late answer is no key
        (b"\x1b[3~\x1b[Hw", ["w"]),
        ("äw".encode(), ["w"]),
        (b"\x1b[97u\x1b[99;5u\x1b[27u\x1b[32u\x1b[57441;2u", ["a", "ctrl-c", "escape", "space"]),
    ],
)
def test_bytes_are_keys(data: bytes, keys: list[str]) -> None:
    assert decode(data) == ([Event(key) for key in keys], b"")


def test_some_terminals_tell_what_happened() -> None:
    events, _ = decode(b"\x1b[119;1:1u\x1b[119;1:2u\x1b[119;1:3u\x1b[1;1:3A\x1b[65;2u")
    assert events == [Event("w"), Event("w"), Event("w", UP), Event("up", UP), Event("a")]


@given(st.integers(1, 20))
def test_sequences_that_arrive_in_parts_are_the_same_keys(cut: int) -> None:
    data = b"w\x1b[A\x1bOD\x1b[119;1:3u\x1b[97us"
    first, rest = decode(data[:cut], whole=False)
    second, nothing = decode(rest + data[cut:], whole=False)
    assert first + second == decode(data)[0] and nothing == b""


def test_an_escape_waits_for_what_may_follow() -> None:
    assert decode(b"a\x1b", whole=False) == ([Event("a")], b"\x1b")
    assert decode(b"\x1b", whole=True) == ([Event("escape")], b"")


# Held keys


def test_a_key_is_held_until_shortly_after_its_last_repeat() -> None:
    held = Held()
    assert held.feed(Event("w"), 0.0)
    for repeat in range(1, 11):
        assert not held.feed(Event("w"), 0.1 * repeat)
        assert held.take(0.1 * repeat + 0.05) == ["w"]
    assert held.take(1.0 + HELD - 0.01) == ["w"]
    assert held.take(1.0 + HELD) == []
    assert held.feed(Event("w"), 2.0)


@given(
    st.lists(st.tuples(st.sampled_from("wasd"), st.floats(0, 3)), max_size=12),
    st.integers(1, 8),
    st.sampled_from([0, 1]),
)
def test_no_tap_is_lost_and_each_acts_on_the_next_frame(taps: list[tuple[str, float]], fps: int, exact: bool) -> None:
    held, waiting = Held(exact), sorted(taps, key=lambda tap: tap[1])
    for frame in range(1, 4 * fps + 1):
        now, due = frame / fps, set()
        while waiting and waiting[0][1] < now:
            key, at = waiting.pop(0)
            held.feed(Event(key), at)
            if exact:
                held.feed(Event(key, UP), at)
            due.add(key)
        taken = held.take(now)
        assert due <= set(taken) and (not exact or due == set(taken))
    assert held.take(99.0) == []


def test_keys_are_held_together_though_the_last_one_alone_repeats() -> None:
    held = Held()
    for repeat in range(5):
        held.feed(Event("w"), 0.1 * repeat)
    for repeat in range(5, 15):
        held.feed(Event("a"), 0.1 * repeat)
        assert held.take(0.1 * repeat + 0.05) == ["w", "a"]
    assert held.take(1.41 + HELD) == []


def test_a_tap_is_not_held_on_by_another_key() -> None:
    held = Held()
    held.feed(Event("w"), 0.0)
    for repeat in range(1, 10):
        held.feed(Event("a"), 0.1 * repeat)
    held.take(0.9)
    assert held.take(0.95) == ["a"]


def test_where_the_terminal_tells_a_key_is_held_until_it_goes_up() -> None:
    held = Held(exact=True)
    assert held.feed(Event("w"), 0.0) and not held.feed(Event("w"), 0.3)
    held.feed(Event("a"), 0.4)
    assert held.take(50.0) == ["w", "a"]
    held.feed(Event("w", UP), 50.1)
    assert held.take(60.0) == ["a"]
    held.release()
    assert held.take(60.0) == []


# Actions


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__name__.rpartition(".")[2])
def test_every_key_of_every_world_is_a_part_of_an_action_and_no_command(world: Any) -> None:
    for key, part in world.CONTROLS.items():
        assert len(world.parse(part)) == 1 and world.parse(part) != [world.NOOP]
        assert key not in COMMANDS


@pytest.mark.parametrize(
    ("world", "parts", "action"),
    [
        (vizdoom, [], "noop"),
        (vizdoom, ["forward", "left"], "forward+left"),
        (vizdoom, ["left", "right"], "right"),  # the newest, where there is no action of both
        (vizdoom, ["forward", "attack"], "attack"),
        (vizdoom, ["attack", "forward", "right"], "forward+right"),
        (vpt, ["forward", "jump", "yaw=15"], "forward+jump+yaw=15"),
        (xbox, ["x1=1", "b0"], "x1=1+b0"),
    ],
)
def test_an_action_holds_what_it_can_the_newest_first(world: Any, parts: list[str], action: str) -> None:
    text = together(parts, world.parse)
    assert text == action and len(world.parse(text)) == 1


def test_of_two_turns_of_the_camera_the_newer_one_holds() -> None:
    assert vpt.parse(together(["yaw=15", "yaw=-15"], vpt.parse))[0].yaw == -15
    assert xbox.parse(together(["x1=1", "x1=-1"], xbox.parse)) == xbox.parse("x1=-1")


def test_schedules_of_keys_are_schedules() -> None:
    for move in TURNS.values():
        if move.kind == SCHEDULE:
            parse_schedule(move.value)


# The player


class Time:
    """A clock that goes on when somebody waits, and presses keys at their time."""

    def __init__(self, presses: Sequence[tuple[float, str]]) -> None:
        self.now, self.presses = 0.0, list(presses)

    def __call__(self) -> float:
        return self.now

    def read(self, seconds: float | None) -> list[tuple[Event, float]]:
        until = float("inf") if seconds is None else self.now + seconds
        if not self.presses or self.presses[0][0] > until:
            assert until < float("inf"), "waits for ever"
            self.now = until
            return []
        at, key = self.presses.pop(0)
        self.now = max(self.now, at)
        return [(Event(key), at)]


def player(
    presses: Sequence[tuple[float, str]], fps: float = 10, step: float = 0.0
) -> tuple[Iterator[Move | None], Player]:
    """The moves of one who presses keys, while each frame takes `step` seconds."""
    clock = Time(presses)
    made = Player(clock, Held(), vizdoom, Pace(fps, clock), Meter(), clock)

    def moves() -> Iterator[Move | None]:
        for move in made.moves():
            yield move
            clock.now += step

    return moves(), made


def test_frames_come_at_their_pace_and_keys_act_on_the_next_one() -> None:
    moves, made = player([(0.12, "w"), (0.55, "space"), (0.71, "q")])
    values = [move.value for move in moves if move is not None]
    assert values == ["noop", "noop", "forward", "forward", "noop", "noop", "attack", "attack"]
    assert made.meter.fps == pytest.approx(10)
    assert made.meter.answers == pytest.approx([80, 50])


def test_a_slow_world_answers_as_soon_as_it_can() -> None:
    moves, made = player([(0.1, "a"), (1.2, "q")], step=0.5)
    assert [move.value for move in moves if move is not None] == ["noop", "left", "noop"]
    assert made.meter.answers == pytest.approx([900])
    assert made.meter.fps == pytest.approx(2)


def test_turns_come_between_frames_and_pause_stops_them() -> None:
    keys = [(0.01, "b"), (0.02, "3"), (0.05, "p"), (3.0, "w"), (5.0, "r"), (9.0, "p"), (9.05, "escape")]
    moves, _ = player(keys)
    made = list(moves)
    assert made[:5] == [Move(ACT, "noop"), Move(BRANCH), Move(SCHEDULE, "raster"), None, Move(RESTART)]
    assert made[5:] == [None, Move(ACT, "noop")]


def test_a_second_of_silence_is_no_reason_to_hurry() -> None:
    clock = Time([])
    pace = Pace(10, clock)
    pace.begin()
    clock.now = 5.0
    pace.begin()
    assert 0 < pace.left() <= 0.1


def test_a_percentile_is_one_of_the_values() -> None:
    assert middle_and_late([]) == (None, None)
    assert middle_and_late([3.0]) == (3.0, 3.0)
    assert middle_and_late([float(value) for value in range(1, 101)]) == (50.5, 95.0)
