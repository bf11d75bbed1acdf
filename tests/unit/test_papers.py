"""The step counts of docs/papers are computed, not remembered."""

from __future__ import annotations

import re
from pathlib import Path

from diagonal import Grid, Layout, make_plan

PAPERS = Path(__file__).parents[2] / "docs" / "papers"


def _rows(page: str, columns: int) -> list[list[str]]:
    lines = [line for line in (PAPERS / page).read_text().splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [row for row in rows if len(row) == columns]


def _steps(grid: str, schedule: str) -> int:
    return len(make_plan(Layout(Grid.parse(grid), prefix=1), schedule).steps)


def _agrees(steps: int, printed: str) -> bool:
    """Whether the thousands that the paper prints are these steps, rounded or cut off to the printed digits."""
    unit = 10.0 ** (3 - len(printed.partition(".")[2]))
    return abs(steps - 1000 * float(printed)) <= unit / 2 or 0 <= steps - 1000 * float(printed) < unit


def test_every_row_of_diagonal_decoding_has_the_steps_of_its_plan() -> None:
    rows = [row for row in _rows("diagonal-decoding.md", 7) if re.fullmatch(r"\d+x\d+x\d+", row[2])]
    diagonal = [row for row in rows if row[3].startswith("k=")]
    assert len(diagonal) == 49 and len(rows) == 54
    for table, model, grid, name, steps, printed, verdict in rows:
        schedule = "diagonal:" + re.sub(r", d=\d+ \(s_spa\)|\s", "", name) if name.startswith("k=") else name.strip("`")
        assert _steps(grid, schedule) == int(steps), (table, model, name)
        assert verdict == ("agree" if _agrees(int(steps), printed) else "DISAGREE"), (table, model, name)


def test_every_nfe_of_diagonal_distillation_is_twice_the_steps_and_no_count_of_calls() -> None:
    rows = [row for row in _rows("diagonal-distillation.md", 6) if re.fullmatch(r"\d{7}", row[0])]
    assert len(rows) == 7
    for digits, steps, noised, clean, nfe, ratio in rows:
        assert int(steps) == int(noised) == sum(int(digit) for digit in digits)
        assert int(clean.split()[0]) == int(noised) + len(digits)
        assert not ratio or int(nfe) == int(ratio) * int(steps)
