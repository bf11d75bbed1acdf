from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagonal.planning.denoising import is_steps, names, parse, spec
from diagonal.planning.denoising.diagonal import Diagonal
from diagonal.planning.denoising.even import Even
from diagonal.planning.denoising.explicit import Explicit
from diagonal.planning.denoising.noise import FlowTable

steps = st.text("123456789", min_size=1, max_size=12)
END = 357.1428527832031  # what the table makes of 100 with a shift of 5


# The noise table


@given(st.floats(0.1, 50), st.floats(0, 1000))
def test_the_nearest_entry_is_found_for_any_timestep(shift: float, t: float) -> None:
    table = FlowTable(shift)
    distance = np.abs(table.timesteps - np.float32(t))
    assert distance[(table.sigmas == np.float32(table.sigma(t))).argmax()] == distance.min()


@given(st.floats(0.1, 50), st.integers(1, 1000))
def test_a_shift_keeps_the_noise_the_clean_end_and_the_formula(shift: float, index: int) -> None:
    table = FlowTable(shift)
    assert table.warp([1000, 0]) == (1000.0, 0.0) and table.sigma(1000) == 1
    line = index / 1000
    assert table.warp([index])[0] == pytest.approx(1000 * shift * line / (1 + (shift - 1) * line), rel=1e-5)


def test_without_a_shift_a_step_is_its_timestep() -> None:
    assert FlowTable(1).warp([1000, 757, 1]) == pytest.approx([1000, 757, 1])
    assert FlowTable(1, steps=4).sigmas.tolist() == [1, 0.75, 0.5, 0.25]


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        FlowTable(5).sigmas[0] = 0


@pytest.mark.parametrize("t", [-1, 1000.5, float("nan")])
def test_timesteps_outside_of_the_table_are_refused(t: float) -> None:
    with pytest.raises(ValueError, match=r"must be 0 \(clean\) to 1000"):
        FlowTable(5).sigma(t)
    with pytest.raises(ValueError, match=r"must be 0 \(clean\) to 1000"):
        FlowTable(5).warp([1001])


# Step strings


@given(steps)
def test_digits_alone_are_diagonal_steps(text: str) -> None:
    schedule = parse(text)
    assert schedule == Diagonal(text) and is_steps(text) and not is_steps(spec(schedule))
    for chunk in range(len(text) + 3):
        levels = schedule.levels(chunk)
        assert len(levels) == int(text[min(chunk, len(text) - 1)])
        assert levels[0] == 1000
        assert all(high > low for high, low in pairwise(levels))
        assert len(levels) == 1 or int(levels[-1]) == 357
        assert schedule.context_level(chunk) == (END if len(levels) == 1 else None)


@given(steps, st.sampled_from(["clean", "last", "t20", "20"]), st.sampled_from([1.0, 3.0, 5.0, 8.0]))
def test_even_steps_start_at_the_noise_and_fall(text: str, context: str, shift: float) -> None:
    schedule = Even(text, context, shift)
    assert parse(spec(schedule)) == schedule
    expected = {"clean": 0.0, "last": None, "t20": 20.0, "20": FlowTable(shift).warp([20])[0]}[context]
    for chunk in range(len(text) + 3):
        levels = schedule.levels(chunk)
        assert len(levels) == int(text[min(chunk, len(text) - 1)])
        assert levels[0] == 1000
        assert all(high > low for high, low in pairwise(levels))
        assert schedule.context_level(chunk) == expected


@given(st.lists(st.lists(st.integers(1, 1000), min_size=1, max_size=6, unique=True), min_size=1, max_size=4))
def test_explicit_lists_are_run_as_they_are_written(lists: list[list[int]]) -> None:
    lists = [sorted(one, reverse=True) for one in lists]
    after = Explicit("/".join("-".join(f"t{level}" for level in one) for one in lists), shift=8.0)
    before = Explicit("/".join("-".join(map(str, one)) for one in lists), shift=8.0)
    assert parse(spec(after)) == after and parse(spec(before)) == before
    for chunk in range(len(lists) + 2):
        one = lists[min(chunk, len(lists) - 1)]
        assert after.levels(chunk) == tuple(map(float, one))
        assert before.levels(chunk) == FlowTable(8).warp(one)
        assert after.context_level(chunk) == before.context_level(chunk) == 0.0


def test_the_lists_of_the_released_code() -> None:
    schedule = parse("4322222")
    assert schedule.levels(0) == (1000, 933, 733, 357)
    assert schedule.levels(1) == (1000, 933, 357)
    assert all(schedule.levels(chunk) == (1000, END) for chunk in range(2, 40))
    assert sum(len(schedule.levels(chunk)) for chunk in range(7)) == 17


def test_five_steps_put_a_level_between_the_last_two() -> None:
    schedule = parse("5432222")
    assert schedule.levels(0) == (1000, 933, 733, 545, 357)
    assert schedule.levels(1) == parse("4").levels(0)
    assert sum(len(schedule.levels(chunk)) for chunk in range(7)) == 20


def test_the_papers_100_has_both_readings_and_clean_is_a_third() -> None:
    before, after, clean = (parse(f"diagonal:steps=42,context={one}") for one in ("100", "t100", "clean"))
    assert before.levels(1) == (1000, END) and before.levels(0)[-1] == 357
    assert after.levels(1) == (1000, 100) and after.levels(0) == (1000, 933, 733, 100)
    assert clean.levels(0) == before.levels(0) and clean.levels(1) == before.levels(1)
    assert [one.context_level(0) for one in (before, after, clean)] == [None, None, 0]
    assert parse("diagonal:steps=2,shift=8").levels(0) == (1000, 470.5882263183594)


def test_a_context_that_the_last_step_already_leaves_needs_no_call() -> None:
    assert parse("explicit:lists=1000-500-100,context=100").context_level(0) is None
    assert parse("explicit:lists=1000-500-100,context=50").context_level(0) == FlowTable(5).warp([50])[0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "unknown schedule ''"),
        ("4032", "digits of 1 to 9"),
        ("0", "digits of 1 to 9"),
        ("4,3,2", "unknown schedule '4,3,2'"),
        ("diagonal:steps=-1", "digits of 1 to 9"),
        ("diagonal:steps=", "digits of 1 to 9"),
        ("even:steps=4.5", "digits of 1 to 9"),
        ("diagonal:context=0", "stay above 0"),
        ("diagonal:context=t0,steps=1", "stay above 0"),
        ("diagonal:context=t740", "must fall"),
        ("diagonal:context=t1000,steps=2", "must fall"),
        ("diagonal:context=1001", "must be 0"),
        ("diagonal:context=t1001", "t0 to t1000"),
        ("diagonal:context=dirty", "'dirty' is not understood"),
        ("diagonal:context=last", "'last' is not understood"),
        ("even:context=10.5", "whole step before the shift"),
        ("even:depth=2", "even takes steps=..., context=..., shift=..."),
        ("explicit:lists=1000-1000", "must fall"),
        ("explicit:lists=500-750", "must fall"),
        ("explicit:lists=1000-0", "stay above 0"),
        ("explicit:lists=1000//500", "'' is not understood"),
        ("explicit:lists=1000-nan", "'nan' is not understood"),
        ("explicit:lists=t5000", "t0 to t1000"),
        ("teacher:steps=0", "must be 1 to 1000"),
        ("teacher:steps=1001", "must be 1 to 1000"),
        ("teacher:steps=many", "must be a whole number"),
        ("even:shift=five", "must be a number"),
        ("noise", f"known: {', '.join(names())}"),
    ],
)
def test_what_cannot_be_run_is_refused_with_what_is_allowed(text: str, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert why in str(caught.value)


def test_chunks_are_counted_from_zero() -> None:
    for schedule in (parse("42"), parse("even"), parse("explicit")):
        with pytest.raises(ValueError, match="counted from 0"):
            schedule.levels(-1)


def test_steps_that_cycle_begin_again_where_others_repeat_their_last() -> None:
    once, again = Diagonal("431"), Diagonal("431", cycle=True)
    assert [len(once.levels(chunk)) for chunk in range(7)] == [4, 3, 1, 1, 1, 1, 1]
    assert [len(again.levels(chunk)) for chunk in range(7)] == [4, 3, 1, 4, 3, 1, 4]
    # The call that a chunk of one step needs for the cache comes along with it.
    assert [again.context_level(chunk) is None for chunk in range(6)] == [True, True, False] * 2
    assert parse(spec(again)) == again and "cycle" not in spec(once)
