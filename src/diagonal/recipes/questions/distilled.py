"""Question 8: Diagonal Distillation with the recipe of today. The tables are those of `benchmarks/distillation.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagonal.evaluation.statistics import Interval
from diagonal.recipes.questions.jobs import Job, Numbers, Setting

SCRIPT = Path("benchmarks") / "distillation.py"
STAGES = "stages"
SHOWN = ("frechet_idm", "first_motion", "flow", "flow_distance", "lpips_teacher")


@dataclass(frozen=True, slots=True)
class Size:
    """Which tables, with which training seeds, and the command's sizes."""

    recipe: str
    tables: tuple[tuple[int, tuple[int | None, ...]], ...]  # number; seeds, where None is the recipe's own
    options: tuple[str, ...]
    minutes: float  # of a table; the stages before take three times as long


SIZES = {
    "smoke": Size("smoke", ((2, (None,)),), ("--clips", "2", "--batch", "2", "--train-steps", "1"), 1.0),
    "cpu": Size("smoke", ((1, (None,)), (2, (None, 1))), ("--clips", "4", "--batch", "4"), 5.0),
    "full": Size("full", ((1, (None, 6, 7)), (2, (None, 6, 7)), (4, (None,)), (5, (None,)), (6, (None,))), (), 12.0),
}


@dataclass(frozen=True)
class Distilled:
    """Tables 1 and 2 with several training seeds, 4, 5, and 6: contexts and flow weights as wide as in Figure 5."""

    setting: Setting
    asked = "What of Diagonal Distillation holds with the recipe of today, and with other training seeds?"

    @property
    def size(self) -> Size:
        return SIZES[self.setting.size]

    def jobs(self) -> list[Job]:
        made = [Job(STAGES, 3 * self.size.minutes, self._stages)]
        for number, seeds in self.size.tables:
            made += [self._table(number, seed) for seed in seeds]
        return made

    def rows(self) -> list[Numbers]:
        """The rows of every table that is there, with the numbers that it has."""
        found = []
        for number, seeds in self.size.tables:
            for seed in seeds:
                result = self._table(number, seed).result(self.setting.work) or {"rows": []}
                for row in result["rows"]:
                    about: Numbers = {"table": number, "seed": "recipe's" if seed is None else seed}
                    about |= {"": row["label"], "calls": row.get("forwards")}
                    found.append(about | {name: _interval(row[name]) for name in SHOWN if name in row})
        return found

    @property
    def _work(self) -> Path:
        return self.setting.work / "doom-t2v"

    def _stages(self, _: Path) -> Numbers:
        name = "doom" if self.size.recipe == "full" else f"doom:{self.size.recipe}"
        _run(["-m", "diagonal", "distill", "--recipe", name, "--out", str(self._work), *self._where()])
        return {"recipe": name}

    def _table(self, number: int, seed: int | None) -> Job:
        name = f"table-{number}" + ("" if seed is None else f"-seed-{seed}")

        def measure(folder: Path) -> Numbers:
            recipe = "doom_t2v" if self.size.recipe == "full" else f"doom_t2v:{self.size.recipe}"
            out = folder / "table.json"
            command = [str(SCRIPT), "--recipe", recipe, "--work", str(self._work), "--table", str(number)]
            command += ["--out", str(out), *self._where(), *self.size.options]
            _run([*command, *([] if seed is None else ["--seed", str(seed)])])
            numbers: Numbers = json.loads(out.read_text())
            return numbers

        return Job(name, self.size.minutes, measure, (STAGES,))

    def _where(self) -> list[str]:
        lpips = self.setting.lpips
        return ["--device", self.setting.device, *([] if lpips is None else ["--lpips", str(lpips)])]


def _run(arguments: Sequence[str]) -> None:
    """A command of Python's in a process of its own; what it says is said."""
    done = subprocess.run([sys.executable, *arguments], stdout=sys.stderr)
    if done.returncode:
        raise ValueError(f"{' '.join(arguments)} ended with {done.returncode}; what it said stands above")


def _interval(value: Any) -> Any:
    return Interval(**value) if isinstance(value, dict) else value
