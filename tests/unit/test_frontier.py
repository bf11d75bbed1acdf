"""Which schedules are worth having, where the answer is known beforehand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from diagonal.evaluation.frontier import Axis, Measured, calls, choose, draw, frame_rate, pareto
from diagonal.evaluation.metrics import Better
from diagonal.evaluation.statistics import Interval


def measured(schedule: str, fps: float, quality: float) -> Measured:
    steps = 100 / fps
    return Measured(
        schedule,
        Interval(steps, steps, steps),
        Interval(fps, 0.9 * fps, 1.1 * fps),
        Interval(quality, quality, quality),
    )


SOME = [measured("raster", 1, 30), measured("good", 4, 29), measured("bad", 3, 28), measured("fast", 9, 20)]


def names(found: list[Measured]) -> list[str]:
    return [one.schedule for one in found]


def test_the_frontier_leaves_out_what_is_slower_and_worse():
    assert names(pareto(SOME, Better.HIGHER)) == ["fast", "good", "raster"]


def test_where_less_is_better_the_frontier_is_another_one():
    assert names(pareto(SOME, Better.LOWER)) == ["fast"]


def test_of_two_as_fast_the_better_one_is_on_the_frontier():
    assert names(pareto([measured("a", 2, 1), measured("b", 2, 3)], Better.HIGHER)) == ["b"]


@pytest.mark.parametrize(("fps", "expected"), [(0.5, "raster"), (1, "good"), (2, "good"), (8, "fast")])
def test_the_best_that_is_surely_fast_enough_is_chosen(fps: float, expected: str):
    assert choose(SOME, Better.HIGHER, fps).schedule == expected


def test_a_rate_that_none_reaches_is_refused_with_the_fastest():
    with pytest.raises(ValueError, match=r"no schedule reaches 9 FPS: the fastest, fast, makes 9\.00 \[8\.10, 9\.90\]"):
        choose(SOME, Better.HIGHER, 9)


def test_a_description_has_no_frontier():
    with pytest.raises(ValueError, match="more, or less, is better"):
        pareto(SOME, Better.NEITHER)


def test_rates_are_of_all_videos_together():
    taken = {"one": {"calls": 10, "seconds": 1.0, "frames": 4}, "two": {"calls": 20, "seconds": 3.0, "frames": 4}}
    rate = frame_rate(taken)
    assert rate.mean == pytest.approx(2) and rate.low <= 2 <= rate.high
    assert calls(taken).mean == 15 and calls({"one": taken["one"]}) == Interval(10, 10, 10)


def test_where_calls_are_speed_fewer_are_faster():
    slow_calls = replace(SOME[1], fps=Interval(99, 98, 100))
    assert names(pareto([SOME[0], slow_calls, SOME[3]], Better.HIGHER, Axis.CALLS)) == ["fast", "good", "raster"]
    assert names(pareto([SOME[0], slow_calls, SOME[3]], Better.HIGHER)) == ["good", "raster"]


def test_the_picture_is_drawn(tmp_path: Path):
    for axes in (list(Axis), [Axis.CALLS]):
        draw(SOME, "psnr", Better.HIGHER, tmp_path / "sweep.png", axes)
        with Image.open(tmp_path / "sweep.png") as picture:
            assert picture.width == 560 * len(axes)
