"""How measured students are shown: on the terminal, in documents, as JSON and as pictures.

A row is a dict of a label, counts and Intervals; a row of a long video has `curves` instead (evaluation/drift.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from diagonal.evaluation import report
from diagonal.evaluation.clips import evenly
from diagonal.evaluation.drift import WINDOW, Curves
from diagonal.evaluation.statistics import Interval
from diagonal.media.draw import Panel, Point
from diagonal.media.video import write_picture

if TYPE_CHECKING:
    from rich.table import Table

Row = dict[str, Any]
# What is shown of a row, if it has it; on the terminal one group at a time.
GROUPS = {
    "quality": ("forwards", "frechet_idm", "frechet_idm_teacher", "lpips_teacher"),
    "text": ("scenario", "first_motion", "motions", "things_f1"),
    "motion": ("flow", "flow_distance", "flow_distance_teacher"),
    "looks": ("sharpness", "saturation", "colour_spread"),
    "speed": ("fps", "first_frame_ms", "cpu_fps", "cpu_first_frame_ms"),
}
ENDS = (WINDOW, 60, 120, 300)  # seconds; the ten before each are shown of a long video


def terminal(rows: Sequence[Row]) -> Iterator[Table]:
    """Means with half of their intervals, a table for each group."""
    from rich.table import Table

    for group, names in GROUPS.items():
        known = [name for name in names if any(name in row for row in rows)]
        if known:
            shown = Table(group, *known)
            for row in rows:
                shown.add_row(row["label"], *(cell(row.get(name)) for name in known))
            yield shown


def markdown(rows: Sequence[Row]) -> str:
    """The same as one table for documents, with whole intervals."""
    every = [name for group in GROUPS.values() for name in group]
    names = [name for name in every if any(name in row for row in rows)]
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for row in rows:
        values = [row.get(name) for name in names]
        cells = [str(one) if isinstance(one, Interval) else cell(one) for one in values]
        lines.append(f"| {row['label']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def long_table(rows: Sequence[Row]) -> Table:
    """Every curve in the ten seconds before each of ENDS."""
    from rich.table import Table

    ends = [end for end in ENDS if end <= rows[0]["seconds"]]
    shown = Table("", "forwards", "number", *(f"{end - WINDOW}-{end} s" for end in ends), title="Drift")
    for row in rows:
        for name, curve in row["curves"].items():
            values = [span(curve, name, end) for end in ends]
            shown.add_row(row["label"], str(row["forwards"]), name, *(f"{value:.4g}" for value in values))
    return shown


def span(curve: Sequence[Interval], name: str, end: int) -> float:
    """The mean of the ten seconds that end there."""
    if name == "frechet_idm":
        return curve[end // WINDOW - 1].mean
    return sum(one.mean for one in curve[end - WINDOW : end]) / WINDOW


def cell(value: Any) -> str:
    """A number, as short as it can be read."""
    if isinstance(value, Interval):
        return f"{value.mean:.3g} ±{(value.high - value.low) / 2:.2g}"
    return "" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def point(x: float, value: Interval, label: str = "") -> Point:
    """A number with its interval, at a place."""
    return Point(x, value.mean, value.low, value.high, label)


def frontier(points: Sequence[Point]) -> list[Point]:
    """Those than which no other is lower without lying further right, from the left; without labels."""
    best: list[Point] = []
    for one in sorted(points, key=lambda one: (one.x, one.y)):
        if not best or one.y < best[-1].y:
            best.append(Point(one.x, one.y))
    return best


def curves(long: Sequence[Row]) -> list[Panel]:
    """A panel for every number of long videos, with a curve for each of them. Of numbers for every second, one
    of WINDOW seconds is shown."""
    panels = []
    for name in long[0]["curves"]:
        every = 1 if name == "frechet_idm" else WINDOW
        lines = {
            row["label"]: [
                point(WINDOW * (i + 1), one) for i, one in enumerate(row["curves"][name][every - 1 :: every])
            ]
            for row in long
        }
        panels.append(Panel("seconds", name, lines))
    return panels


def sheet(videos: Sequence[Tensor], path: Path, frames: int = 10) -> None:
    """Frames of the same few prompts for every row: all rows of a prompt, then the next prompt."""
    times = evenly(videos[0].shape[1], frames).tolist()
    strips = [torch.cat(list(clip[times]), -1) for clips in zip(*videos, strict=True) for clip in clips]
    write_picture(path, torch.cat(strips, -2).permute(1, 2, 0).contiguous().numpy())


def plain(row: Row) -> Row:
    """A row as JSON takes it."""
    if "curves" in row:
        found: Curves = row["curves"]
        row = row | {"curves": {name: [report.plain({"": one})[""] for one in curve] for name, curve in found.items()}}
    return report.plain(row)
