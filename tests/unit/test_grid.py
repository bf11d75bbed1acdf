from __future__ import annotations

import numpy as np
import pytest

from diagonal import Grid, Layout


def test_a_grid_is_read_as_people_write_it() -> None:
    assert Grid.parse(" 3x40X64 ") == Grid(3, 40, 64)
    assert str(Grid(3, 40, 64)) == "3x40x64"
    assert Grid(3, 40, 64).tokens == 7680


@pytest.mark.parametrize("text", ["", "3x40", "3x40x64x2", "axbxc", "3x-1x4", "3.5x2x2", "9999999x1x1"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="3x40x64"):
        Grid.parse(text)


@pytest.mark.parametrize("sides", [(0, 1, 1), (1, 0, 1), (1, 1, -2)])
def test_an_empty_side_is_refused(sides: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Grid(*sides)


def test_positions_count_prefix_frames_and_suffixes_in_order() -> None:
    layout = Layout(Grid(2, 2, 3), prefix=4, suffix=5)
    assert layout.unit == 11
    assert layout.length == 4 + 2 * 11
    assert layout.positions()[0].ravel().tolist() == list(range(4, 10))
    assert layout.positions()[1].ravel().tolist() == list(range(15, 21))
    assert layout.after(0) == slice(10, 15)
    everything = [*range(4), *np.r_[layout.frame(0), layout.after(0), layout.frame(1), layout.after(1)]]
    assert everything == list(range(layout.length))


def test_mineworld_fills_its_window_exactly() -> None:
    assert Layout(Grid(16, 14, 24), suffix=11).length == 5552
    assert Layout(Grid(32, 14, 24), suffix=11).length == 11104


def test_negative_surroundings_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        Layout(Grid(1, 1, 1), prefix=-1)
