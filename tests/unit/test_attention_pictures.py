"""Pictures of who attends to whom: the colours are those that the masks and maps say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diagonal.media import attention
from diagonal.media.attention import DECODED, GIVEN, KINDS, LATER, MASKED, STAND_IN
from diagonal.media.draw import PAPER
from diagonal.planning.grid import Grid, Layout
from diagonal.planning.plan import make_plan

LAYOUT = Layout(Grid(2, 3, 4), suffix=1)


def test_a_mask_says_of_every_pair_what_the_plan_does() -> None:
    plan = make_plan(LAYOUT, "diagonal:k=1", known=1)
    kinds, order = attention.mask_of(plan)
    entries, visible = plan.entries, plan.entries.visible()[np.ix_(order, order)]
    position, stand_in = entries.position[order], (entries.read != entries.position)[order]
    assert (np.diff(position) >= 0).all() and not (stand_in[:-1] & ~stand_in[1:] & (np.diff(position) == 0)).any()
    assert np.array_equal(visible, np.isin(kinds, [GIVEN, DECODED, STAND_IN]))
    assert np.array_equal((kinds == STAND_IN).any(0), stand_in)
    assert np.array_equal((kinds == GIVEN).any(0), position < LAYOUT.frame(1).start)
    missing = (position[None] <= position[:, None]) & ~visible & ~stand_in
    assert np.array_equal(kinds == MASKED, missing) and missing.any()
    assert (kinds[np.triu_indices(len(kinds), 2)] == LATER).all()


def test_under_raster_nothing_is_masked_and_nothing_stands_in() -> None:
    kinds, _ = attention.mask_of(make_plan(LAYOUT, "raster", known=1))
    assert set(np.unique(kinds)) == {GIVEN, DECODED, LATER}
    assert np.array_equal(kinds != LATER, np.tri(len(kinds), dtype=bool))


def test_the_mask_is_drawn_in_the_colours_of_its_legend(tmp_path: Path) -> None:
    plan = make_plan(LAYOUT, "diagonal:k=1", known=1)
    attention.save_mask(plan, tmp_path / "mask.png", "a mask")
    with Image.open(tmp_path / "mask.png") as image:
        pixels = np.asarray(image)
    kinds, _ = attention.mask_of(plan)
    top, left = 48 + attention.STRIP + 4, attention.EDGE + attention.STRIP + 4
    cell = 18
    inside = pixels[top + cell // 2 :: cell, left + cell // 2 :: cell][: len(kinds), : len(kinds)]
    assert np.array_equal(inside, np.array(list(KINDS.values()))[kinds])


def test_a_mask_that_nobody_could_read_is_refused(tmp_path: Path) -> None:
    plan = make_plan(Layout(Grid(3, 12, 16), prefix=1), "diagonal:k=1")
    with pytest.raises(ValueError, match="up to 512 can be read: take a smaller --grid"):
        attention.save_mask(plan, tmp_path / "mask.png", "a mask")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("scale", [1, 30])
def test_a_map_is_bright_where_attention_is_and_empty_where_none_can_be(tmp_path: Path, scale: int) -> None:
    """Large maps are made smaller; what is bright in one place stays bright."""
    rows, first = 12 * scale, 10
    cells = np.arange(rows) + 40 * scale
    layers = np.zeros((2, rows, 52 * scale), np.float32)
    for row, cell in enumerate(cells):
        layers[:, row, :cell] = 1e-4
        layers[:, row, cell - 16] = 0.9
    where = attention.Diagonals(cells, first, {"frame 0": 0, "frame 1": int(cells[0])}, {"above": 16})
    attention.save_map(list(layers), where, tmp_path / "map.png", "a map")
    with Image.open(tmp_path / "map.png") as image:
        pixels = np.asarray(image)
    wide = 52 * scale - first
    factor = min(6, attention.WIDE // wide) or 1 / -(-wide // attention.WIDE)

    def at(row: int, key: int) -> tuple[int, ...]:
        y, x = attention.TOP + int((row + 0.5) * factor), attention.EDGE + int((key - first + 0.5) * factor)
        return tuple(pixels[y, x].tolist())

    for row in (1, rows - 1):
        bright, dark = at(row, int(cells[row]) - 16), at(row, first)
        assert sum(bright) > 400 > sum(dark) and at(row, int(cells[row]) + int(2 / factor)) == PAPER
