"""The tables of the two papers as they are printed, and what was measured here for each of their cells.

The papers' numbers are facts of theirs, for comparison; every number of ours is read from a file of results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MINUS = "-"  # in a printed row: the paper leaves this cell empty


@dataclass(frozen=True, slots=True)
class Column:
    """What is printed above a column, and what of ours belongs below it.

    `source` is `fps`, `tokens_per_second`, `calls`, `latency`, `speedup`, the name of a metric, or `vbench:` and one of
    its totals; empty: nothing of ours is the same thing.
    """

    heading: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A printed row: who, and the paper's numbers in the order of the columns."""

    label: str
    model: str  # ours; empty: not in the library
    schedule: str  # as --schedule takes it
    printed: tuple[str, ...]
    preset: str = ""  # of diffusion models
    missing: str = ""  # why nothing of ours can be in this row


@dataclass(frozen=True, slots=True)
class Table:
    """A printed table or figure."""

    number: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    grid: str = ""  # new frames x rows x columns of tokens, from which steps are counted
    frames: int = 0  # new ones, of a video
    data: str = ""  # which the name of the folder of clips must hold
    note: str = ""
    small: int | None = None  # the table of benchmarks/distillation.py that asks the same of the small world


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper and its tables."""

    key: str
    title: str
    machine: str  # on which the paper measured speed
    tables: tuple[Table, ...]


def rows(text: str, models: dict[str, str], schedules: dict[str, str], columns: Sequence[Column]) -> tuple[Row, ...]:
    """Rows of a printed table, one a line: `model | algorithm | numbers`."""
    found = []
    for line in text.strip().splitlines():
        model, algorithm, numbers = (part.strip() for part in line.split("|"))
        printed = tuple(numbers.split())
        assert len(printed) == len(columns), line
        missing = "" if model in models else f"{model} is not in the library"
        label = f"{model} {algorithm}".strip()
        found.append(Row(label, models.get(model, ""), schedules.get(algorithm, algorithm), printed, missing=missing))
    return tuple(found)
