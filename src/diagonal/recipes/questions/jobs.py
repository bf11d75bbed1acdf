"""What a question is made of: jobs whose results are kept, and a table that is made of those that are there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from diagonal.evaluation.statistics import Interval
from diagonal.media.files import atomic

SIZES = ("smoke", "cpu", "full")
Numbers = dict[str, Any]  # as JSON takes them


@dataclass(frozen=True, slots=True)
class Setting:
    """How large, where, and with what."""

    size: str  # one of SIZES
    work: Path  # recordings, checkpoints and finished jobs
    device: str = "cpu"
    lpips: Path | None = None  # weights of LPIPS; None: it is left out
    workers: int = 1  # processes that record

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise ValueError(f"size {self.size!r} is not known; known: {', '.join(SIZES)}")


@dataclass(frozen=True, slots=True)
class Job:
    """A part of a question: what it takes, and what must be there before. `run` is given a folder of its own, and what
    it returns is kept."""

    name: str
    minutes: float  # predicted: of one core at the sizes smoke and cpu, of one H200 at full
    run: Callable[[Path], Numbers]
    needs: tuple[str, ...] = ()

    def folder(self, work: Path) -> Path:
        return work / "jobs" / self.name

    def result(self, work: Path) -> Numbers | None:
        """What a finished job said; None: it has not finished."""
        path = self.folder(work) / "result.json"
        if not path.exists():
            return None
        numbers: Numbers = json.loads(path.read_text())
        return numbers

    def finish(self, work: Path) -> Numbers:
        """Run it, unless that was done, and keep what it says."""
        folder = self.folder(work)
        folder.mkdir(parents=True, exist_ok=True)
        found = self.result(work)
        if found is None:
            found = self.run(folder)
            with atomic(folder / "result.json") as temporary:
                temporary.write_text(json.dumps(found) + "\n")
        return found


class Question(Protocol):
    """One of the papers' open questions at one size."""

    @property
    def asked(self) -> str:
        """In one sentence."""
        ...

    def jobs(self) -> list[Job]:
        """All of it, each after what it needs."""
        ...

    def rows(self) -> list[Numbers]:
        """The rows of its table, as far as its jobs are done: numbers, texts and intervals by column."""
        ...


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as Markdown; columns are in the order in which they first appear."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    lines += ["| " + " | ".join(_cell(row.get(name)) for name in names) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    """A number, or a mean with its interval; nothing where there is none."""
    if isinstance(value, Interval):
        digits = 1 if abs(value.mean) >= 10 else 3
        return f"{value.mean:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
