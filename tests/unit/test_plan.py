"""Properties of plans, for every schedule, layout, stand-in and re-feeding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagonal import Diagonal, Grid, Layout, Order, Plan, Raster, StandIn, Window, make_plan
from diagonal.planning.grid import IntArray
from diagonal.planning.plan import NEVER, NONE


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, Order]:
    known = draw(st.integers(0, 2))
    new = draw(st.integers(1, 3))
    grid = Grid(known + new, draw(st.integers(1, 4)), draw(st.integers(1, 5)))
    layout = Layout(grid, draw(st.integers(0 if known else 1, 2)), draw(st.integers(0, 3)))
    k = draw(st.integers(1, 7))
    whole = Diagonal(k).frame_steps(grid)
    schedule = draw(
        st.one_of(
            st.just(Raster()),
            st.builds(Diagonal, st.just(k), st.none() | st.integers(1, whole)),
            st.builds(Window, st.integers(1, 7), st.booleans()),
        )
    )
    stand_in = draw(st.sampled_from([StandIn.PREVIOUS_FRAME, StandIn.ABOVE, *[StandIn.PROMPT_FRAME] * (known > 0)]))
    order = Order(schedule, stand_in, draw(st.booleans()))
    # Actions that the model chooses itself need frames one after the other.
    apart = isinstance(schedule, Raster | Window) or schedule.d in (None, whole)
    acts = draw(st.integers(max(0, known - 1), grid.frames)) if apart else None
    return make_plan(layout, order, known, acts), order


def unknown(plan: Plan) -> IntArray:
    """Positions that a plan decodes: the cells of new frames, and the actions that are not given."""
    layout, grid = plan.layout, plan.layout.grid
    actions = [np.arange(layout.length)[layout.after(frame)] for frame in range(plan.acts, grid.frames - 1)]
    return np.sort(np.concatenate([layout.positions()[plan.known :].ravel(), *actions]))


@given(plans())
def test_every_unknown_cell_is_written_exactly_once(made: tuple[Plan, Order]) -> None:
    plan, _ = made
    written = np.concatenate([step.write[step.write != NONE] for step in plan.steps])
    np.testing.assert_array_equal(np.sort(written), unknown(plan))
    assert all(len(step.read) == len(step.slot) == len(step.write) > 0 for step in plan.steps)
    assert all((step.write != NONE).any() for step in plan.steps)


@given(plans())
def test_every_read_exists_when_it_is_read(made: tuple[Plan, Order]) -> None:
    plan, _ = made
    exists = np.ones(plan.layout.length, dtype=bool)
    exists[unknown(plan)] = False
    for step in plan.steps:
        assert exists[step.read].all()
        exists[step.write[step.write != NONE]] = True
    assert exists.all()


@given(plans())
def test_a_cell_is_predicted_from_the_position_before_it(made: tuple[Plan, Order]) -> None:
    plan, _ = made
    for step in plan.steps:
        predicts = step.write != NONE
        np.testing.assert_array_equal(step.slot[predicts] + 1, step.write[predicts])
        assert len(np.unique(step.slot)) == len(step.slot)


@given(plans())
def test_only_stand_ins_take_a_place_that_is_not_their_own(made: tuple[Plan, Order]) -> None:
    """And only where the true token is not decoded yet."""
    plan, _ = made
    known_at = _known_at(plan)
    entries = plan.entries
    moved = entries.read != entries.position
    assert (known_at[entries.position[moved]] >= entries.fed[moved]).all()
    assert (known_at[entries.position[~moved]] < entries.fed[~moved]).all()
    assert (entries.until[~moved] == NEVER).all()
    assert (np.diff(moved.astype(int)) >= 0).all()  # stand-ins come last


@given(plans())
def test_with_refeeding_an_input_sees_every_earlier_token_that_is_known(made: tuple[Plan, Order]) -> None:
    plan, order = made
    entries, known_at = plan.entries, _known_at(plan)
    true = entries.read == entries.position
    visible = entries.visible() & true
    for query in range(len(entries)):
        seen = entries.position[visible[query]]
        assert len(np.unique(seen)) == len(seen)  # no true token is fed twice
        before = np.arange(entries.position[query] + 1)
        known = before[known_at[before] < entries.fed[query]]
        if order.refeed:
            np.testing.assert_array_equal(np.sort(seen), known)
        else:
            assert set(seen) <= set(known)


@given(plans())
def test_a_stand_in_is_replaced_in_the_step_after_the_true_token_is_decoded(made: tuple[Plan, Order]) -> None:
    plan, order = made
    known_at, entries = _known_at(plan), plan.entries
    moved = entries.read != entries.position
    expected = known_at[entries.position[moved]] + 1 if order.refeed else np.full(moved.sum(), NEVER)
    np.testing.assert_array_equal(entries.until[moved], expected)


@given(plans())
def test_the_mask_shows_exactly_what_a_cache_would_hold(made: tuple[Plan, Order]) -> None:
    """Play the plan on a cache of entry numbers, and compare with the training mask row by row."""
    plan, _ = made
    number = {(int(p), int(f)): e for e, (p, f) in enumerate(zip(plan.entries.position, plan.entries.fed, strict=True))}
    cache = np.full(plan.layout.length, NONE)
    seen = np.zeros((len(plan.entries), len(plan.entries)), dtype=bool)
    for index, step in enumerate(plan.steps):
        rows = [number[int(slot), index] for slot in step.slot]
        cache[step.slot] = rows
        for row, slot in zip(rows, step.slot, strict=True):
            held = cache[: slot + 1]
            seen[row, held[held != NONE]] = True
    np.testing.assert_array_equal(plan.entries.visible(), seen)


@given(plans(), st.integers(1, 9))
def test_padding_adds_idle_entries_that_nobody_sees(made: tuple[Plan, Order], multiple: int) -> None:
    entries = made[0].entries
    padded = entries.padded(multiple)
    size, whole = len(entries), padded.visible()
    assert len(padded) % multiple == 0 and len(padded) - size < multiple
    np.testing.assert_array_equal(whole[:size, :size], entries.visible())
    assert not whole[:size, size:].any() and whole.any(axis=1).all()
    assert (padded.write[size:] == NONE).all() and (padded.position < made[0].layout.length).all()


@given(plans())
def test_first_fed_tells_which_slots_hold_anything(made: tuple[Plan, Order]) -> None:
    plan, _ = made
    written = np.zeros(plan.layout.length, dtype=bool)
    for index, step in enumerate(plan.steps):
        written[step.slot] = True
        np.testing.assert_array_equal(plan.first_fed <= index, written)


@given(plans())
def test_neighbours_come_first(made: tuple[Plan, Order]) -> None:
    """Left, above up to column j+k-1, and the same cell of the frame before."""
    plan, order = made
    times = plan.times
    assert (times[:, :, 1:] > times[:, :, :-1]).all()
    assert (times[1:] > times[:-1]).all()
    match order.schedule:
        case Diagonal(k=k) | Window(s=k):
            lead = min(k, times.shape[2])
        case _:
            lead = times.shape[2]
    for j in range(times.shape[2]):
        ahead = min(j + lead - 1, times.shape[2] - 1)
        assert (times[:, 1:, j] > times[:, :-1, ahead]).all()


@given(plans())
def test_frames_complete_in_order_and_the_last_with_the_last_step(made: tuple[Plan, Order]) -> None:
    plan, _ = made
    assert (np.diff(plan.completed) > 0).all()
    assert plan.completed[-1] == len(plan.steps) - 1
    assert plan.decoded.sum() == plan.tokens
    assert plan.speedup == pytest.approx(plan.tokens / len(plan.steps))


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2))
def test_raster_needs_no_stand_in_and_feeds_every_token_once(frames: int, rows: int, cols: int, suffix: int) -> None:
    layout = Layout(Grid(frames, rows, cols), prefix=1, suffix=suffix)
    entries = make_plan(layout, "raster").entries
    np.testing.assert_array_equal(entries.read, entries.position)
    np.testing.assert_array_equal(entries.position, np.arange(layout.length - suffix - 1))
    np.testing.assert_array_equal(entries.visible(), np.tri(len(entries), dtype=bool))


def _known_at(plan: Plan) -> IntArray:
    """The step that decodes each position, NONE for given ones."""
    known_at = np.full(plan.layout.length, NONE)
    known_at[plan.layout.positions()[plan.known :]] = plan.times
    return known_at


@dataclass(frozen=True)
class _Example:
    policy: StandIn
    reads: list[int]


# A frame of 3x4 after one known frame of 3x4, one action token each: cells 0-11, action 12, cells 13-24.
# Rows 1 and 2 of the new frame start at positions 17 and 21.
@pytest.mark.parametrize(
    "example",
    [
        _Example(StandIn.PREVIOUS_FRAME, [4, 8]),  # their own cells in the known frame
        _Example(StandIn.ABOVE, [14, 18]),  # with k=2, the second token of the row above
        _Example(StandIn.PROMPT_FRAME, [3, 7]),  # the predecessor's cell in frame 0
    ],
)
def test_each_policy_stands_in_with_its_own_token(example: _Example) -> None:
    plan = make_plan(Layout(Grid(2, 3, 4), suffix=1), Order(Diagonal(2), example.policy), known=1)
    moved = plan.entries.read != plan.entries.position
    assert plan.entries.read[moved].tolist() == example.reads
    assert plan.entries.position[moved].tolist() == [16, 20]
    assert plan.entries.write[moved].tolist() == [17, 21]


def test_without_a_previous_frame_the_row_above_stands_in() -> None:
    plan = make_plan(Layout(Grid(1, 3, 4), prefix=1), Diagonal(2))
    moved = plan.entries.read != plan.entries.position
    assert plan.entries.read[moved].tolist() == [2, 6]


def test_the_first_row_of_a_frame_takes_the_frame_before_where_nothing_is_above() -> None:
    plan = make_plan(Layout(Grid(2, 2, 3), prefix=1), Order(Diagonal(1, 1), StandIn.ABOVE))
    moved = plan.entries.read != plan.entries.position
    starts = dict(zip(plan.entries.write[moved].tolist(), plan.entries.read[moved].tolist(), strict=True))
    assert starts[7] == 1  # cell (1, 0, 0) from cell (0, 0, 0)


def test_actions_are_fed_in_the_step_that_starts_the_next_frame() -> None:
    layout = Layout(Grid(3, 4, 6), suffix=3)
    for schedule, start in ((Diagonal(1), 9), (Diagonal(1, 4), 4)):
        plan = make_plan(layout, schedule, known=1)
        assert plan.times[1].min() == start
        action = set(range(*layout.after(1).indices(layout.length)))
        assert action <= set(plan.steps[start].slot.tolist())


def test_the_prompt_is_fed_in_the_first_step() -> None:
    layout = Layout(Grid(4, 2, 3), prefix=2, suffix=1)
    plan = make_plan(layout, "diagonal:k=1", known=2)
    assert plan.steps[0].slot.tolist() == list(range(layout.frame(2).start))


class _Backwards:
    """A schedule that decodes the last cell first: nothing can stand in for its start."""

    def times(self, grid: Grid) -> IntArray:
        return np.arange(grid.tokens)[::-1].reshape(grid.frames, grid.rows, grid.cols)


class _Flat:
    def times(self, grid: Grid) -> IntArray:
        return np.zeros(grid.tokens, dtype=np.int64)


def test_impossible_plans_are_refused_with_the_reason() -> None:
    layout = Layout(Grid(2, 2, 3))
    with pytest.raises(ValueError, match="nothing comes before"):
        make_plan(layout, "raster")
    with pytest.raises(ValueError, match="0 to 1 can be"):
        make_plan(layout, "raster", known=2)
    with pytest.raises(ValueError, match="needs a known frame"):
        make_plan(Layout(Grid(2, 2, 3), prefix=1), Order(Diagonal(1), StandIn.PROMPT_FRAME))
    with pytest.raises(ValueError, match="no stand-in"):
        make_plan(Layout(Grid(1, 2, 3), prefix=1), _Backwards())
    with pytest.raises(ValueError, match="gave times of shape"):
        make_plan(layout, _Flat(), known=1)
