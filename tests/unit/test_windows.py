"""Windows of lossless calls: how wide they are chosen, what they feed, and what they settle."""

from __future__ import annotations

import pytest
import torch

from diagonal.engine.kernels import reference, select
from diagonal.engine.kernels.cpu import library, steps
from diagonal.engine.kernels.live import LiveWindow
from diagonal.planning.decoding import parse, spec
from diagonal.planning.grid import Grid, Layout
from diagonal.planning.plan import make_plan
from diagonal.planning.windows import WIDTHS, WindowRule
from tests.live import Ring, frame_of, step_tensors
from tests.unit.test_live_step import cell

RINGS = [Ring(0, 6, 30), Ring(5, 40, 4), Ring(3, 13, 1), Ring(0, 2, 64)]


def window_of(ring: Ring, batch: int, suffix: int = 1, chooses: bool = False) -> LiveWindow:
    """Samples anywhere in their frames; the first is at its begin, the last is done."""
    last = ring.unit - suffix - 1
    next_B = torch.randint(-suffix - 1, last + 1, (batch,))
    next_B[0], next_B[-1] = -suffix - 1, last
    return LiveWindow(next_B, -suffix if chooses else 0, last)


@pytest.mark.parametrize("ring", RINGS, ids=str)
@pytest.mark.parametrize("chooses", [False, True])
def test_a_window_feeds_cells_in_order_and_samples_the_ones_behind_them(ring: Ring, chooses: bool) -> None:
    torch.manual_seed(ring.unit)
    frame, window = frame_of(ring, batch=5), window_of(ring, 5, chooses=chooses)
    tokens = torch.randint(1000, (7, frame.unused + 1))
    made = reference.live_window(frame, window, tokens, 4)
    for b in range(5):
        row, start = tokens[frame.rows_B[b]], int(window.next_B[b])
        numbers = [start + s if start + s < window.last else start for s in range(4)]
        assert made.seen.slots_S[b].tolist() == numbers
        assert made.slots_BS[b].tolist() == [cell(frame, b, n) for n in numbers]
        assert made.tokens_BS[b].tolist() == [int(row[cell(frame, b, n)]) for n in numbers]
        assert made.positions_BS[b].tolist() == [int(frame.position_B[b]) + n for n in numbers]
        sampled = [start + s < window.last and start + s + 1 >= window.first for s in range(4)]
        written = [cell(frame, b, n + 1) if yes else frame.unused for n, yes in zip(numbers, sampled, strict=True)]
        assert made.write_BS[b].tolist() == written
        assert made.noise_BS[b].tolist() == [int(frame.video_B[b]) + n + 1 for n in numbers]
        mask, own = made.seen.of(b).mask(), int(frame.own_B[b])
        for s, n in enumerate(numbers):  # of its own frame a query sees the cells up to its own
            assert mask[s, own : own + ring.unit].tolist() == [other <= n for other in range(ring.unit)]


@pytest.mark.parametrize("ring", RINGS, ids=str)
@pytest.mark.parametrize(("batch", "inputs"), [(2, 1), (5, 12)])
def test_both_twins_make_the_same_windows_and_settle_them_alike(ring: Ring, batch: int, inputs: int) -> None:
    if not library.available():
        pytest.skip("needs a C++ compiler")
    torch.manual_seed(ring.unit)
    frame, window = frame_of(ring, batch), window_of(ring, batch)
    other = LiveWindow(window.next_B.clone(), window.first, window.last)
    tokens = torch.randint(3, (batch + 4, frame.unused + 2))[:, : frame.unused + 1]
    found, wanted = (
        steps.live_window(frame, window, tokens, inputs),
        reference.live_window(frame, other, tokens, inputs),
    )
    for one, two in zip(step_tensors(found), step_tensors(wanted), strict=True):
        assert one.dtype == two.dtype and torch.equal(one, two)
    drawn = torch.randint(3, found.write_BS.shape)
    tokens[frame.rows_B[:, None], found.write_BS] = drawn
    steps.settle(frame, window, found, tokens)
    reference.settle(frame, other, wanted, tokens)
    assert torch.equal(window.next_B, other.next_B)


def test_a_window_moves_behind_the_first_token_that_differs() -> None:
    """The one that differs is right too: it was sampled behind right ones."""
    frame = frame_of(Ring(0, 20, 3), batch=1)
    window, tokens = LiveWindow(torch.tensor([3]), 0, 18), torch.arange(frame.unused + 1).repeat(3, 1)
    for changed, moved in ((4, 1), (5, 2), (7, 4), (8, 5), (9, 5)):
        window.next_B.fill_(3)
        made = select.live_window(frame, window, tokens, 5)
        after = tokens.clone()
        after[frame.rows_B, frame.own_B + changed] += 1
        select.settle(frame, window, made, after)
        assert window.next_B.tolist() == [3 + moved]
    window.next_B.fill_(16)
    select.settle(frame, window, select.live_window(frame, window, tokens, 5), tokens)
    assert window.next_B.tolist() == [18]  # no further than the frame


def test_the_widest_window_is_chosen_where_inputs_are_free_and_narrow_ones_where_they_are_not() -> None:
    def settled(cost: float, power: float) -> int:
        rule = WindowRule(None, cost)
        for _ in range(400):
            window = rule.choose(192)
            rule.note(window, max(1, round(window**power)))
        return rule.choose(192)

    assert settled(0.0, 0.5) == 192
    assert settled(1.0, 0.9) == 1
    assert settled(0.17, 0.5) in (4, 5, 6)
    widths = [settled(0.02, power) for power in (0.2, 0.5, 0.8)]
    assert widths == sorted(widths) and widths[0] < widths[-1] and set(widths) <= set(WIDTHS)


def test_a_window_that_was_asked_for_stays_but_ends_with_the_frame() -> None:
    rule = WindowRule(7)
    rule.note(7, 7)
    assert [rule.choose(left) for left in (100, 7, 3, 1)] == [7, 7, 3, 1]
    assert WindowRule(None, 0.0).choose(5) == 5
    with pytest.raises(ValueError, match="0 to 1"):
        WindowRule(None, 1.5)


def test_what_was_seen_can_be_forgotten() -> None:
    rule = WindowRule(None, 0.05)
    first = rule.choose(100)
    for _ in range(100):
        rule.note(64, 60)
    assert rule.choose(100) > first
    rule.forget()
    assert rule.choose(100) == first


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lossless:window=0", "window=0 given; it must be at least 1"),
        ("lossless:draft=next_frame", "it must be one of previous_frame, above, repeat, diagonal"),
        ("lossless:rule=greedy", "it must be one of equal, sjd, coupled, gumbel"),
        ("lossless:draft=diagonal,d=10", "lossless takes window"),
    ],
)
def test_what_is_no_lossless_schedule_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_its_plan_is_that_of_raster_and_its_text_gives_it_back() -> None:
    layout = Layout(Grid(3, 3, 4), suffix=2)
    plan, raster = (make_plan(layout, schedule, known=1) for schedule in ("lossless", "raster"))
    assert [step.write.tolist() for step in plan.steps] == [step.write.tolist() for step in raster.steps]
    for text in ("lossless", "lossless:window=64,draft=previous_frame", "lossless:draft=above,rule=sjd"):
        assert spec(parse(text)) == text


def test_a_draft_from_a_frame_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="previous_frame needs a known frame; use above"):
        make_plan(Layout(Grid(3, 3, 4), prefix=1), "lossless:draft=previous_frame")
    assert make_plan(Layout(Grid(3, 3, 4), prefix=1), "lossless").tokens == 36
