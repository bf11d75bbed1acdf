from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagonal import Diagonal, Grid, Layout, Raster, Window, make_plan
from diagonal.planning.decoding import parse, spec
from diagonal.planning.grid import IntArray

grids = st.builds(Grid, st.integers(1, 4), st.integers(1, 6), st.integers(1, 7))
COSMOS = Grid(3, 40, 64)  # 24 frames of 640x1024 after 9: three latent frames
WHAM = Grid(1, 18, 30)
MCAR = Grid(15, 14, 24)

# Every (k, d) row of the paper's tables, and the steps that its equations 3 and 5 give.
PAPER = [
    *[(COSMOS, 4, 20, 260), (COSMOS, 2, 40, 222), (COSMOS, 2, 10, 162), (COSMOS, 1, 40, 183), (COSMOS, 1, 1, 105)],
    *[(COSMOS, 1, 2, 107), (COSMOS, 1, 3, 109), (COSMOS, 1, 5, 113), (COSMOS, 1, 9, 121)],  # Table 7
    *[(COSMOS, 2, 4, 150), (COSMOS, 2, 6, 154), (COSMOS, 2, 18, 178)],
    *[(COSMOS, 4, 8, 236), (COSMOS, 4, 12, 244), (COSMOS, 4, 36, 292)],
    *[(WHAM, 1, None, 47), (WHAM, 2, None, 64)],  # Table 2, per frame
    *[(MCAR, 2, None, 750), (MCAR, 4, None, 1140)],  # Tables 3, 10, 11
]


@pytest.mark.parametrize(("grid", "k", "d", "steps"), PAPER)
def test_the_papers_rows_take_the_steps_of_its_equations(grid: Grid, k: int, d: int | None, steps: int) -> None:
    schedule = Diagonal(k, d)
    assert schedule.steps(grid) == steps
    assert len(make_plan(Layout(grid, prefix=1), schedule).steps) == steps


def test_zipar_on_cosmos_takes_309_steps_in_the_papers_table_4() -> None:
    assert len(make_plan(Layout(COSMOS, prefix=1), Window(1, overlap_first_row=True)).steps) == 309
    assert len(make_plan(Layout(COSMOS, prefix=1), Raster()).steps) == 7680


@given(grids, st.integers(1, 12), st.data())
def test_diagonal_steps_follow_equation_5(grid: Grid, k: int, data: st.DataObject) -> None:
    whole = (grid.rows - 1) * min(k, grid.cols) + grid.cols
    d = data.draw(st.none() | st.integers(1, whole))
    times = Diagonal(k, d).times(grid)
    assert times.max() + 1 == Diagonal(k, d).steps(grid) == (grid.frames - 1) * (d or whole) + whole


@given(grids, st.integers(1, 12))
def test_d_of_a_whole_frame_is_the_spatial_schedule(grid: Grid, k: int) -> None:
    whole = Diagonal(k).frame_steps(grid)
    np.testing.assert_array_equal(Diagonal(k, whole).times(grid), Diagonal(k).times(grid))


@given(grids, st.integers(1, 12))
def test_the_window_takes_the_published_and_the_ideal_number_of_steps(grid: Grid, s: int) -> None:
    h, w, window = grid.rows, grid.cols, min(s, grid.cols)
    published = 2 * w + (h - 2) * window if h > 1 else w
    assert _steps(Window(s).times(grid)) == grid.frames * published
    assert _steps(Window(s, overlap_first_row=True).times(grid)) == grid.frames * (w + (h - 1) * window)


@given(grids, st.integers(1, 12))
def test_the_ideal_window_is_the_spatial_diagonal(grid: Grid, s: int) -> None:
    window = min(s, grid.cols)
    np.testing.assert_array_equal(Window(s, overlap_first_row=True).times(grid), Diagonal(window).times(grid))


@given(grids, st.integers(0, 5))
def test_a_window_or_lag_as_wide_as_the_row_is_raster(grid: Grid, more: int) -> None:
    raster = Raster().times(grid)
    for schedule in (Diagonal(grid.cols + more), Window(grid.cols + more), Window(grid.cols + more, True)):
        np.testing.assert_array_equal(_ranks(schedule.times(grid)), raster)


def _ranks(times: IntArray) -> IntArray:
    return np.unique(times, return_inverse=True)[1].reshape(times.shape)


def _steps(times: IntArray) -> int:
    return len(np.unique(times))


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("raster", Raster()),
        ("diagonal", Diagonal(1)),
        ("diagonal:k=2,d=10", Diagonal(2, 10)),
        (" diagonal: k=2, d=10 ", Diagonal(2, 10)),
        ("window:s=8", Window(8)),
        ("window:s=8,overlap_first_row=true", Window(8, True)),
    ],
)
def test_a_schedule_is_named_by_its_module_and_fields(text: str, schedule: object) -> None:
    assert parse(text) == schedule
    assert parse(spec(parse(text))) == schedule


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("spiral", "known: diagonal, lossless, raster, window"),
        ("", "known: diagonal"),
        ("diagonal:q=1", "takes k=..., d=..."),
        ("diagonal:k", "takes k=..., d=..."),
        ("diagonal:k=one", "whole number"),
        ("diagonal:k=1.5", "whole number"),
        ("diagonal:k=99999999999", "whole number"),
        ("diagonal:k=--5", "whole number"),
        ("diagonal:k=1,k=3", "twice"),
        ("diagonal:k=0", "at least 1"),
        ("diagonal:k=-3", "at least 1"),
        ("diagonal:d=0", "at least 1"),
        ("raster:k=1", "no fields"),
        ("window", "lacks s"),
        ("window:s=0", "at least 1"),
        ("window:s=2,overlap_first_row=3", "true or false"),
        ("os.path", "unknown schedule"),
    ],
)
def test_a_wrong_schedule_says_what_is_allowed(text: str, word: str) -> None:
    with pytest.raises(ValueError, match=word.replace(".", r"\.")):
        parse(text)


def test_d_beyond_the_frame_says_its_range() -> None:
    with pytest.raises(ValueError, match="1 to 14"):
        Diagonal(2, 15).times(Grid(2, 5, 6))
