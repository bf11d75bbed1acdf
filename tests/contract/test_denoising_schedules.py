"""What every denoising schedule must keep, found by looking into schedules/denoising: a new file is tested by being
there."""

from __future__ import annotations

import dataclasses
import importlib
from itertools import pairwise
from typing import Any

import pytest

from diagonal.planning.denoising import names, parse, spec


def _kind(name: str) -> Any:
    return vars(importlib.import_module(f"diagonal.planning.denoising.{name}"))[name.capitalize()]


@pytest.mark.parametrize("name", names())
def test_a_schedule_is_a_frozen_dataclass_named_like_its_file(name: str) -> None:
    assert dataclasses.is_dataclass(_kind(name))
    assert _kind(name).__dataclass_params__.frozen
    assert _kind(name).__doc__


@pytest.mark.parametrize("shift", [1.0, 3.5, 5.0, 8.0])
@pytest.mark.parametrize("name", names())
def test_a_schedule_gives_every_chunk_falling_levels_and_its_text_gives_it_back(name: str, shift: float) -> None:
    schedule = _kind(name)(shift=shift)
    assert parse(spec(schedule)) == schedule
    assert schedule.shift == shift
    for chunk in (0, 1, 2, 6, 7, 1000):
        levels = schedule.levels(chunk)
        assert levels[0] == 1000 and levels[-1] > 0
        assert all(type(level) is float for level in levels)
        assert all(high > low for high, low in pairwise(levels))
        context = schedule.context_level(chunk)
        assert context is None or (type(context) is float and 0 <= context < levels[-1])
    assert schedule.levels(1000) == schedule.levels(1001)


@pytest.mark.parametrize("shift", ["0", "-1", "nan", "1e5"])
@pytest.mark.parametrize("name", names())
def test_a_shift_that_is_no_positive_number_is_refused(name: str, shift: str) -> None:
    with pytest.raises(ValueError, match="must be a number"):
        parse(f"{name}:shift={shift}")


@pytest.mark.parametrize("lag", [0, 1, 7, None])
@pytest.mark.parametrize("name", names())
def test_every_schedule_takes_a_lag_which_changes_no_level(name: str, lag: int | None) -> None:
    schedule, plain = _kind(name)(lag=lag), _kind(name)()
    assert parse(spec(schedule)).lag == schedule.lag == lag
    assert [schedule.levels(chunk) for chunk in range(9)] == [plain.levels(chunk) for chunk in range(9)]
    assert [schedule.context_level(chunk) for chunk in range(9)] == [plain.context_level(chunk) for chunk in range(9)]
