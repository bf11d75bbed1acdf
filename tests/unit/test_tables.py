"""How measured students are shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from diagonal.evaluation import report, tables
from diagonal.evaluation.statistics import Interval
from diagonal.media.draw import Point

ROWS = [
    {"label": "real", "scenario": Interval(0.98, 0.96, 1.0), "frechet_idm": Interval(1.5, 1.25, 1.75)},
    {"label": "ours", "spec": "x", "forwards": 17, "scenario": Interval(0.5, 0.4, 0.6), "fps": 31.04},
]
LONG = {
    "label": "ours",
    "forwards": 400,
    "seconds": 60,
    "curves": {
        "frechet_idm": [Interval(float(n), n - 0.5, n + 0.5) for n in range(6)],
        "flow": [Interval(float(n), 0.0, 99.0) for n in range(60)],
    },
}


def test_documents_get_whole_intervals_and_only_columns_that_there_are() -> None:
    assert tables.markdown(ROWS).splitlines() == [
        "| | forwards | frechet_idm | scenario | fps |",
        "|---|---|---|---|---|",
        "| real |  | 1.500 [1.250, 1.750] | 0.980 [0.960, 1.000] |  |",
        "| ours | 17 |  | 0.500 [0.400, 0.600] | 31.0 |",
    ]


def test_the_terminal_gets_a_table_for_each_group_that_has_numbers() -> None:
    shown = list(tables.terminal(ROWS))
    assert [[column.header for column in one.columns] for one in shown] == [
        ["quality", "forwards", "frechet_idm"],
        ["text", "scenario"],
        ["speed", "fps"],
    ]
    assert list(shown[1].columns[1].cells) == ["0.98 ±0.02", "0.5 ±0.1"]


def test_long_videos_are_shown_at_the_ends_of_minutes() -> None:
    shown = tables.long_table([LONG])
    assert [column.header for column in shown.columns][3:] == ["0-10 s", "50-60 s"]
    assert [list(column.cells) for column in shown.columns][2:] == [
        ["frechet_idm", "flow"],
        ["0", "4.5"],
        ["5", "54.5"],
    ]


def test_rows_become_json_with_their_curves() -> None:
    read = json.loads(report.as_json({"rows": [tables.plain(row) for row in (*ROWS, LONG)]}))["rows"]
    assert read[0]["scenario"] == {"mean": 0.98, "low": 0.96, "high": 1.0}
    assert read[2]["curves"]["frechet_idm"][3] == {"mean": 3.0, "low": 2.5, "high": 3.5}


def test_the_frontier_leaves_out_what_costs_more_for_no_better() -> None:
    points = [Point(17, 5.0), Point(16, 7.0), Point(24, 5.5), Point(28, 4.0), Point(16, 6.0)]
    assert tables.frontier(points) == [Point(16, 6.0), Point(17, 5.0), Point(28, 4.0)]


def test_curves_have_a_point_for_every_ten_seconds() -> None:
    first, second = tables.curves([LONG])
    assert [[point.x for point in panel.curves["ours"]] for panel in (first, second)] == [[10, 20, 30, 40, 50, 60]] * 2
    assert first.curves["ours"][1] == Point(20, 1.0, 0.5, 1.5)
    assert second.curves["ours"][1] == Point(20, 19.0, 0.0, 99.0)  # the twentieth second


def test_a_sheet_has_all_rows_of_a_prompt_one_above_the_other(tmp_path: Path) -> None:
    videos = [torch.full((2, 5, 3, 8, 6), value, dtype=torch.uint8) for value in (50, 200)]
    tables.sheet(videos, tmp_path / "clips.png", frames=3)
    picture = np.asarray(Image.open(tmp_path / "clips.png"))
    assert picture.shape == (4 * 8, 3 * 6, 3)
    assert picture[::8, 0, 0].tolist() == [50, 200, 50, 200]
