"""What every schedule must keep, found by looking into schedules/decoding: a new file is tested by being there."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
from typing import Any, cast

import numpy as np
import pytest

from diagonal import Grid, Layout, make_plan
from diagonal.planning.decoding import Schedule, names, parse, spec
from diagonal.planning.decoding.lossless import DRAFTS, RULES

WORDS: dict[str, tuple[object, ...]] = {"draft": (None, *DRAFTS), "rule": (None, *RULES)}
SWITCH: dict[str, tuple[object, ...]] = {"bool": (False, True)}


def _kind(name: str) -> Any:
    return vars(importlib.import_module(f"diagonal.planning.decoding.{name}"))[name.capitalize()]


def _examples() -> list[Schedule]:
    """Every schedule with every number field at 1, 2 and 5, every switch on and off, and every word."""
    examples = []
    for name in names():
        fields = dataclasses.fields(_kind(name))
        choices = [WORDS.get(field.name) or SWITCH.get(str(field.type), (1, 2, 5)) for field in fields]
        for values in itertools.product(*choices):
            examples.append(cast(Schedule, _kind(name)(*values)))
    return examples


GRIDS = [Grid(1, 1, 1), Grid(3, 1, 5), Grid(2, 5, 1), Grid(3, 4, 6), Grid(2, 6, 4)]


@pytest.mark.parametrize("name", names())
def test_a_schedule_is_a_frozen_dataclass_named_like_its_file(name: str) -> None:
    assert dataclasses.is_dataclass(_kind(name))
    assert _kind(name).__dataclass_params__.frozen
    assert _kind(name).__doc__


@pytest.mark.parametrize("schedule", _examples(), ids=spec)
def test_a_schedule_orders_any_grid_and_its_text_gives_it_back(schedule: Schedule) -> None:
    assert parse(spec(schedule)) == schedule
    for grid in GRIDS:
        try:
            times = schedule.times(grid)
        except ValueError as error:  # a field that does not fit the grid must say its range
            assert "must be" in str(error)
            continue
        assert times.shape == (grid.frames, grid.rows, grid.cols)
        assert np.issubdtype(times.dtype, np.integer)
        assert (times[:, :, 1:] > times[:, :, :-1]).all()
        assert (times[:, 1:] > times[:, :-1]).all()
        assert (times[1:] > times[:-1]).all()
        try:
            plan = make_plan(Layout(grid, prefix=1), schedule)
        except ValueError as error:  # one that begins with a frame that is given
            assert "needs a known frame" in str(error)
            continue
        assert plan.tokens == grid.tokens
        assert len(plan.steps) <= grid.tokens
