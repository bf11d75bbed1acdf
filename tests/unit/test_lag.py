"""Which chunk is in which call: the formula, the pipelines of the published models, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest

from diagonal.planning.denoising import parse
from diagonal.planning.lag import Sees, calls_between, iterations, most_together
from tests.conftest import golden_json
from tests.wan import Steps

MAGI = golden_json("magi/schedule.json")["tables"]


@dataclass(frozen=True)
class Dispatch:
    """A recorded pass of MAGI's sampler."""

    chunks: list[int]
    steps: list[int]
    clean: int | None
    ranges: list[list[int]]


def recorded(table: dict[str, Any]) -> list[Dispatch]:
    rows = [row for row in table["rows"] if isinstance(row, list)]
    return [Dispatch(row[3], row[4], row[5], row[6]) for row in rows]


@pytest.mark.parametrize("table", MAGI, ids=lambda t: f"{t['num_steps']}-{t['window_size']}-{t['prefix_latents']}")
def test_a_lag_of_steps_over_window_is_the_pipeline_of_magi(table: dict[str, Any]) -> None:
    """Step s of chunk c in dispatch (c - prefix) x lag + s, the clean chunk in front, and who sees whom."""
    steps, prefix = table["num_steps"], table["prefix_latents"] // 6
    levels = tuple(1000 * (1 - t) for t in table["t"][:-1])
    schedule = Steps((levels,), context=0.0, lag=steps // table["window_size"])
    made = list(iterations(schedule, table["chunks"] - prefix, Sees((5, 4, 3, 2), context_reach=1)))
    assert len(made) == table["dispatches"]
    for one, row in zip(made, recorded(table), strict=True):
        moving = [part for part in one.parts if part.moves]
        assert [part.chunk + prefix for part in moving] == row.chunks
        assert [part.step for part in moving] == row.steps
        assert [part.level for part in moving] == [levels[step] for step in row.steps]
        shown = [part for part in one.parts if not part.moves]
        assert [part.chunk + prefix for part in shown] == ([] if row.clean is None else [row.clean])
        assert one.parts[: len(shown)] == tuple(shown) and all(part.level == 0.0 for part in shown)
        ends = [part.chunk + prefix + 1 for part in one.parts]
        seen = [[max(0, end - (part.reach or end)), end] for part, end in zip(one.parts, ends, strict=True)]
        assert seen == row.ranges
    handed = [[chunk, index + 1] for index, one in enumerate(made) for chunk in one.finished]
    assert handed == table["emitted"]


@pytest.mark.parametrize(
    ("steps", "lag", "calls"), [(30, 5, 50), (50, 5, 70), (30, 30, 150), (30, 99, 150), (30, 0, 30)]
)
def test_iterations_are_counted_by_the_formula(steps: int, lag: int, calls: int) -> None:
    """SkyReels: 25 latent frames in 5 chunks."""
    schedule = parse(f"forcing:steps={steps},lag={lag}")
    made = list(iterations(schedule, 5))
    assert len(made) == calls == steps + 4 * min(lag, steps)
    for index, one in enumerate(made):
        for part in one.parts:
            assert part.step == index - part.chunk * min(lag, steps)
            assert part.level == ((*schedule.levels(part.chunk), 0.0)[part.step])
            assert part.moves == (part.step < steps)
    assert sum(part.moves for one in made for part in one.parts) == 5 * steps
    shown = [part.chunk for one in made for part in one.parts if not part.moves]
    assert shown == ([] if lag == 0 else [0, 1, 2, 3])  # the last one is seen by nobody
    assert [chunk for one in made for chunk in one.finished] == [0, 1, 2, 3, 4]


def test_the_timetable_of_skyreels_is_its_published_one() -> None:
    """Index of every chunk: 0 is not begun, 31 is done."""
    made = list(iterations(parse("forcing:steps=30,lag=5"), 5, Sees(whole=True)))
    rows = {
        0: [1, 0, 0, 0, 0],
        4: [5, 0, 0, 0, 0],
        5: [6, 1, 0, 0, 0],
        20: [21, 16, 11, 6, 1],
        30: [31, 26, 21, 16, 11],
        35: [31, 31, 26, 21, 16],
        49: [31, 31, 31, 31, 30],
    }
    for index, row in rows.items():
        assert [part.step + 1 for part in made[index].parts] == row
        assert [part.level for part in made[index].parts if part.step == 30] == [0.0] * row.count(31)
    assert len(made) == 50


@pytest.mark.parametrize(
    ("schedule", "calls"),
    [
        ("4322222", [4, 3, 2, 2, 2]),
        ("even:steps=4", [5] * 5),
        ("explicit:lists=1000-500/1000,context=last", [2] + [1] * 4),
    ],
)
def test_without_a_lag_chunks_follow_one_another(schedule: str, calls: list[int]) -> None:
    made = list(iterations(parse(schedule), 5))
    assert all(len(one.parts) == 1 for one in made)
    assert [one.parts[0].chunk for one in made] == [chunk for chunk, count in enumerate(calls) for _ in range(count)]
    assert calls_between(parse(schedule), 5) == calls and most_together(parse(schedule), 5) == 1


@pytest.mark.parametrize("lag", [1, 2, 3, 4])
def test_chunks_of_fewer_steps_never_overtake(lag: int) -> None:
    schedule = parse(f"diagonal:steps=5432221111,lag={lag},context=clean")
    made = list(iterations(schedule, 10))
    assert [chunk for one in made for chunk in one.finished] == list(range(10))
    for chunk in range(10):
        steps = [part.step for one in made for part in one.parts if part.chunk == chunk and part.moves]
        assert steps == list(range(len(schedule.levels(chunk))))
    assert (
        sum(calls_between(schedule, 10)) == len(made) < sum(calls_between(parse("diagonal:steps=5432221111"), 10)) + 10
    )


def test_4322222_with_a_lag_of_one_takes_a_call_a_chunk() -> None:
    assert calls_between(parse("4322222"), 7) == [4, 3, 2, 2, 2, 2, 2]
    assert calls_between(parse("diagonal:lag=1"), 7) == [4, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("schedule", ["4322222", "diagonal:lag=1", "forcing:lag=5", "even:steps=4,lag=9"])
def test_a_video_without_end_begins_like_any_other(schedule: str) -> None:
    endless, twenty = iterations(parse(schedule), None), list(iterations(parse(schedule), 20))
    for one, other in zip(islice(endless, 20), twenty[:20], strict=True):
        assert one == other


@pytest.mark.parametrize("name", ["diagonal", "even", "explicit", "teacher", "forcing"])
@pytest.mark.parametrize("lag", [-1, 1001])
def test_a_lag_that_is_none_is_refused(name: str, lag: int) -> None:
    with pytest.raises(ValueError, match="the lag must be 0 to 1000 iterations"):
        parse(f"{name}:lag={lag}")


def test_what_has_no_end_or_sees_less_than_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="give its length"):
        iterations(parse("forcing:lag=0"), None)
    with pytest.raises(ValueError, match="give its length"):
        iterations(parse("forcing"), None, Sees(whole=True))
    with pytest.raises(ValueError, match="1 or more"):
        Sees((3, 0))
    with pytest.raises(ValueError, match="one of the two"):
        Sees((3,), whole=True)
