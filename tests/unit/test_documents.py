"""What stands in the documents is made from what was measured: the tables of both pages, the moving picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

from benchmarks import picture, table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.parametrize(
    ("page", "name", "make"),
    [
        ("docs/performance.md", "bench", lambda: table.markdown(table.read(RESULTS))),
        ("README.md", "summary", lambda: table.summary(RESULTS)),
    ],
)
def test_the_tables_of_the_pages_are_those_of_the_results(page: str, name: str, make) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert f"<!-- {name} -->\n{make()}\n<!-- /{name} -->" in text


def test_a_summary_has_a_row_for_every_model_and_marks_what_is_derived() -> None:
    heading, _, *rows = table.summary(RESULTS).splitlines()
    assert all(row.count("|") == heading.count("|") for row in rows)
    assert [row.split("`")[1] for row in rows][:3] == ["doom", "cosmos/4b", "cosmos/12b"]
    derived = [row for row in rows if "`mcar/" in row or "`cosmos/" in row or "`wham/" in row]
    assert all(row.count(table.STAR) == 2 for row in derived) and len(derived) == 6


def test_the_pace_of_the_picture_is_that_of_the_demo_in_the_readme() -> None:
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    for schedule, seconds in picture.pace().items():
        row = next(line for line in shown.splitlines() if line.startswith(f"{schedule} "))
        assert f"{seconds * 1000:.0f}" in row.split() or f"{int(seconds * 1000)}" in row.split()


def test_the_picture_moves_and_is_small() -> None:
    file = ROOT / "docs" / "demo.webp"
    assert file.stat().st_size <= 3 * 2**20
    with Image.open(file) as image:
        assert sum(1 for _ in ImageSequence.Iterator(image)) > 100 and image.width > 600


def test_cells_appear_in_the_order_of_the_schedule_and_then_the_clip_plays() -> None:
    frames = np.stack([np.full((4, 6, 3), value, np.uint8) for value in (100, 200)])
    steps = np.array([[0, 1, 2], [1, 2, 3]])
    panel = picture.Panel("diagonal:k=1", np.full((4, 6, 3), 10, np.uint8), frames, steps, frame_seconds=4.0)
    assert (panel.calls, panel.seconds) == (4, 8.0)
    first = panel.picture(2.0, fps=1)  # two of four calls: the cells of steps 0 and 1
    assert (first[..., 0] == 100).tolist() == [[True] * 4 + [False] * 2] * 2 + [[True] * 2 + [False] * 4] * 2
    assert int(first[3, 5, 0]) == int(10 * picture.DIM)
    assert (panel.picture(5.0, fps=1)[0, 0, 0], panel.made(100.0)) == (200, 8)
    assert [int(panel.picture(8.0 + second, fps=1)[0, 0, 0]) for second in range(3)] == [100, 200, 100]
