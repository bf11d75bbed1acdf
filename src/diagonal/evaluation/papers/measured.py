"""What was measured here, found in files of results: `diagonal bench`, `evaluate` and `sweep`, and the small world's.

Of several files that have the same cell the newest counts, by the date in its name, and of those of a day the one that
lies highest: folders inside are experiments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from diagonal.evaluation.papers import Row, Table
from diagonal.evaluation.score_tables import short
from diagonal.evaluation.statistics import Interval
from diagonal.planning.decoding import parse
from diagonal.planning.grid import Grid, Layout
from diagonal.planning.plan import make_plan

DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
SPEEDS = ("fps", "tokens_per_second", "latency", "speedup")


@dataclass(frozen=True, slots=True)
class Cell:
    """A number of ours, and where it comes from."""

    text: str
    run: str  # file and command; or how it is counted
    value: float


@dataclass(slots=True)
class Results:
    """All files of results, the newest first."""

    benches: list[tuple[str, dict[str, Any], dict[str, Any]]] = field(default_factory=list)  # run, file, case
    scores: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    small: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)  # JSON files of other kinds

    @classmethod
    def of(cls, places: Sequence[Path]) -> Results:
        """The results in folders, however deep, and in single files."""
        found = cls()
        for path in sorted(_files(places), key=_age, reverse=True):
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
            except (ValueError, UnicodeDecodeError) as error:
                raise ValueError(f"{path} is no JSON: {error}; mend it or take it out of --results") from error
            found._add(path, content if isinstance(content, dict) else {})
        return found

    def _add(self, path: Path, content: dict[str, Any]) -> None:
        run = f"{path}: `{content['command']}`" if content.get("command") else str(path)
        if content.get("kind") == "bench":
            self.benches += [(run, content, case) for case in content["cases"]]
        elif isinstance(content.get("scores"), list) and "folders" in content:
            self.scores.append((run, content))
        elif isinstance(content.get("table"), int) and "rows" in content:
            self.small.append((run, content))
        else:
            self.others.append(path)

    def cell(self, table: Table, row: Row, source: str) -> Cell | None:
        """Ours of a printed cell; None: it was not measured."""
        if not row.model or (row.missing and source not in ("calls", *SPEEDS)):
            return None
        if source == "calls":
            return _counted(table, row)
        if source == "speedup":
            return self._speedup(table, row)
        if source in SPEEDS:
            return self._speed(table, row, source)
        if source.startswith("vbench:"):
            return self._vbench(row, source.removeprefix("vbench:"))
        return self._quality(table, row, source)

    def _speed(self, table: Table, row: Row, source: str) -> Cell | None:
        cases = [(run, case) for run, _, case in self.benches if _same(case, row)]
        exact = [one for one in cases if one[1]["frames"] == table.frames]
        # Frames of pixels, where they were decoded too; of token worlds, as the papers count, tokens alone.
        shown = [one for one in exact or cases if "decoder" in one[1] and one[1]["fps_with_tokenizer"] is not None]
        if not (shown or exact or cases):
            return None
        run, case = (shown or exact or cases)[0]
        names = {"fps": "fps_with_tokenizer" if shown else "fps", "latency": "first_frame_ms"}
        value = case[names.get(source, source)] / (1000 if source == "latency" else 1)
        told = [] if case["frames"] == table.frames else [f"{case['frames']} frames"]
        told += ["derived"] if case.get("derived") else []
        told += ["latents alone"] if "decoder" in case and not shown else []
        told += ["random weights"] if case["weights"] == "random" else []
        return Cell(f"{_digits(value)} ({case['device']}; {', '.join(told)})", run, value)

    def _speedup(self, table: Table, row: Row) -> Cell | None:
        own, first = self._speed(table, row, "fps"), self._speed(table, table.rows[0], "fps")
        if own is None or first is None or "latents alone" in own.text + first.text:
            return None
        return Cell(f"{own.value / first.value:.1f}x", f"{own.run}; against {first.run}", own.value / first.value)

    def _quality(self, table: Table, row: Row, metric: str) -> Cell | None:
        for run, content in self.scores:
            made = content.get("run", {})
            if made.get("model") != row.model or _plain(table.data) not in _plain(str(made.get("data", ""))):
                continue
            folders = [
                name for name, one in content["speed"].items() if _as_spec(one["schedule"]) == _as_spec(row.schedule)
            ]
            for score in content["scores"]:
                if score["metric"].partition(":")[0] == metric and score["folder"] in folders:
                    value = Interval(**score["value"])
                    random = ", random weights" if made.get("trained") == "random" else ""
                    name = f"{score['metric']}, {score['clips']} clips{random}"
                    return Cell(f"{short(value)} ({name})", run, value.mean)
        return None

    def _vbench(self, row: Row, total: str) -> Cell | None:
        for run, content in self.scores:
            for name, found in content.get("vbench", {}).items():
                made = content["folders"][name].get("run", {})
                same = made.get("model") == row.model and made.get("preset") == row.preset
                if same and _digits_of(row) in made.get("schedule", "") and found.get("totals"):
                    value = 100 * found["totals"][total]
                    return Cell(f"{value:.2f}", f"{run}, {name}", value)
        return None


def _files(places: Sequence[Path]) -> Iterator[Path]:
    for place in places:
        if place.is_dir():
            yield from (path for path in place.rglob("*.json") if "kept" not in path.parts)
        elif place.is_file():
            yield place
        else:
            raise FileNotFoundError(f"--results {place} does not exist; name files or folders of results")


def _age(path: Path) -> tuple[str, int, str]:
    dates = DATE.findall(str(path))
    return (dates[-1] if dates else "", -len(path.parts), str(path))


def _same(case: dict[str, Any], row: Row) -> bool:
    """Whether a case is of the model and the schedule of a row, in ordinary numbers."""
    if case["model"] != row.model or case["dtype"] != "bfloat16" or case.get("quantize", "none") != "none":
        return False
    if row.preset:
        return bool(case.get("preset") == row.preset and _digits_of(row) in case["schedule"])
    return bool(_as_spec(case["schedule"]) == _as_spec(row.schedule) and case.get("batch", 1) == 1)


def _plain(name: str) -> str:
    """Letters and digits alone."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _as_spec(schedule: str) -> str:
    return str(parse(schedule))


def _digits_of(row: Row) -> str:
    """What the name of a denoising schedule must hold, to its end."""
    return f"{row.schedule}," if row.schedule else ""


def _counted(table: Table, row: Row) -> Cell | None:
    """Steps of a plan need no run."""
    if not table.grid:
        return None
    steps = _steps(table.grid, row.schedule)
    run = f"counted: `diagonal plan --grid {table.grid} --schedule {row.schedule}`"
    return Cell(f"{steps / 1000:.3g}", run, steps / 1000)


@cache
def _steps(grid: str, schedule: str) -> int:
    return len(make_plan(Layout(Grid.parse(grid), prefix=1), schedule).steps)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
