"""Controls between a socket and the thread of a world: what a frame is asked to show, and frames begun over."""

from __future__ import annotations

from collections.abc import Sequence

from diagonal.server.controls import Controls, Taken
from diagonal.server.player import Delivery
from diagonal.server.starts import starts_of
from diagonal.server.ticker import Joining, Ticker
from diagonal.worlds import vizdoom
from tests.server.conftest import tiny_world

KNOWN = ["forward", "back", "left", "right", "attack"]


def controls(held: Sequence[str] = (), pressed: Sequence[str] = ()) -> Controls:
    made = Controls(KNOWN, vizdoom.parse)
    made.feed(1, held, pressed, at=10.0)
    return made


def test_a_frame_that_was_not_made_gives_its_taps_back() -> None:
    made = controls(["forward"], ["attack"])
    first = made.take()
    assert (first.action, first.taps, first.received) == ("attack", ("attack",), 10.0)
    made.feed(2, ["left"], ["left"], at=11.0)
    made.give_back(first)
    assert made.take() == Taken("attack", 2, 10.0, ("attack",))  # the tap that was there first
    assert made.take() == Taken("left", 2, None, ("left",))
    assert made.take().action == "left"


def test_what_is_said_again_changes_nothing() -> None:
    made = controls(["forward"])
    first = made.take()
    assert not made.changed(first)
    made.feed(2, ["forward"], [], at=11.0)
    assert not made.changed(first)
    made.feed(3, ["forward", "left"], ["left"], at=12.0)
    assert made.changed(first)
    made.give_back(first)
    assert made.take() == Taken("forward+left", 3, 10.0, ("left",))


class Late(Controls):
    """A message comes when the thread looks for one for the n-th time: once after each model call, if at all."""

    def __init__(self, comes: int) -> None:
        super().__init__(KNOWN, vizdoom.parse)
        self.looks, self.comes = 0, comes

    def changed(self, taken: Taken) -> bool:
        self.looks += 1
        if self.looks == self.comes:
            self.feed(1, ["left"], [], at=5.0)
        return super().changed(taken)


def play(frames: int, *players: Controls) -> tuple[Ticker, list[str]]:
    """Some frames of `doom/tiny`, and the actions that the first player sees."""
    ticker, shown = Ticker(tiny_world(), 2, 100), list[Delivery]()
    begin = starts_of(ticker.world)["hall"]
    for made in players:
        joining = Joining(begin, 0, "diagonal:k=1", paced=False, paused=False, controls=made)
        ticker.join(joining, shown.append if made is players[0] else lambda delivery: None, lambda player: {})
    for _ in range(frames):
        ticker._tick(ticker._due())
    return ticker, [one.image.action for one in shown[1:] if one.image is not None]


def test_a_frame_is_begun_over_for_a_control_in_its_first_two_thirds() -> None:
    made = Late(comes=5)
    ticker, shown = play(3, made)
    assert shown == ["noop", "left", "left"]  # of the first frame nobody knows yet how many calls it takes
    assert ticker.metrics.superseded == 1 and ticker.metrics.frames["diagonal:k=1"] == 3
    assert made.looks == 5 + 2 * 27 // 3  # begun over once, and looked for in the first two thirds alone


def test_nobody_waits_for_a_frame_that_others_begin_over() -> None:
    made = Late(comes=1)
    ticker, _ = play(4, made, Controls(KNOWN, vizdoom.parse))
    assert made.looks == ticker.metrics.superseded == 0
