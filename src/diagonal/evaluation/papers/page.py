"""The tables of a paper as Markdown and as HTML: the paper's number, ours below it, and for each of ours its run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from diagonal.evaluation.papers import MINUS, Paper, Row, Table
from diagonal.evaluation.papers.measured import SPEEDS, Results

SMALL = {  # numbers of the small world, and their headings
    "forwards": "calls",
    "frechet_idm": "Frechet IDM ↓",
    "lpips_teacher": "LPIPS to the teacher ↓",
    "first_motion": "first motion as told ↑",
    "flow": "flow",
}
SMALL_WORLD = "the same question on the small world, doom-t2v, by numbers of our own"
EMPTY = "–"
HEAD = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>The papers' tables</title>
<style>body{font:14px/1.4 sans-serif;margin:2em;max-width:110em}table{border-collapse:collapse;margin:1em 0}
td,th{border:1px solid #bbb;padding:.2em .6em;text-align:left;vertical-align:top}.here{background:#eef6ee}
.none{color:#888}</style>
"""


@dataclass(slots=True)
class Block:
    """A table that is ready to be written: its lines of cells, and what stands below them."""

    title: str
    headings: list[str]
    lines: list[tuple[bool, list[str]]] = field(default_factory=list)  # whether they are ours
    below: list[str] = field(default_factory=list)
    filled: int = 0
    cells: int = 0


def blocks(paper: Paper, results: Results) -> Iterator[Block]:
    """Every table of a paper, and behind those that the small world asks too, its own."""
    for table in paper.tables:
        if table.rows:
            yield _block(paper, table, results)
        else:
            yield Block(f"{_title(table)}", [], below=[table.note])
        if table.small is not None:
            yield from _small(table, results)


def _title(table: Table) -> str:
    name = f"Table {table.number}" if table.number.isdecimal() else table.number
    return f"{name}: {table.caption}"


def _block(paper: Paper, table: Table, results: Results) -> Block:
    made = Block(_title(table), ["", "", *(column.heading for column in table.columns)])
    notes: dict[str, int] = {}
    missing: dict[tuple[str, str], list[str]] = {}  # headings, by row and why
    for row in table.rows:
        printed = ["" if one in ("/", MINUS) else one for one in row.printed]
        made.lines.append((False, [row.label, "paper", *printed]))
        made.lines.append((True, ["", "here", *_ours(table, row, results, made, (notes, missing))]))
    made.below = [table.note] if table.note else []
    alone = "" if not table.grid else " Ours count the decoding of tokens, without that of pixels."
    if any(column.source in SPEEDS for column in table.columns):
        made.below.append(f"Speeds of the paper: {paper.machine}; ours: the machine that each cell names.{alone}")
    made.below += [f"[{number}] {run}" for run, number in notes.items()]
    for (row_label, why), headings in missing.items():
        made.below.append(f"{EMPTY} {row_label}, {', '.join(headings)}: {why}")
    return made


def _ours(
    table: Table,
    row: Row,
    results: Results,
    made: Block,
    notes: tuple[dict[str, int], dict[tuple[str, str], list[str]]],
) -> Iterator[str]:
    runs, missing = notes
    for column in table.columns:
        made.cells += 1
        cell = results.cell(table, row, column.source) if column.source else None
        if cell is not None:
            made.filled += 1
            yield f"{cell.text} [{runs.setdefault(cell.run, len(runs) + 1)}]"
            continue
        missing.setdefault((row.label, _why(table, row, column.source)), []).append(column.heading.rstrip(" ↑↓"))
        yield EMPTY


def _why(table: Table, row: Row, source: str) -> str:
    """What an empty cell lacks."""
    if not row.model or not source:
        return row.missing or "nothing of ours is the same thing: the paper does not define it"
    if row.missing and source != "speedup":
        return row.missing
    if source in ("fps", "tokens_per_second", "latency"):
        how = f"--preset {row.preset}" if row.preset else f"--schedule {row.schedule}"
        digits = f" --schedule {row.schedule.removeprefix('steps=')}" if row.schedule.startswith("steps=") else ""
        frames = "" if row.preset else f" --frames {table.frames}"
        return f"no result of `diagonal bench --model {row.model} {how}{digits}{frames} --device cuda --dtype bfloat16`"
    if source == "speedup":
        return "needs the throughput of this row and of the first one, with pixels"
    if source.startswith("vbench:"):
        return (
            f"needs weights, `diagonal video --model {row.model} --preset {row.preset} --prompts VBench_full_info.json "
            "--each 5 --out DIR` and `diagonal evaluate DIR --vbench PYTHON --vbench-info VBench_full_info.json`"
        )
    metrics = ",".join(one.source for one in table.columns if one.source not in (*SPEEDS, "calls"))
    return (
        f"needs weights of {row.model}, and `diagonal evaluate --model {row.model} --weights W --data {table.data} "
        f"--clips 100 --frames {table.frames} --schedule {row.schedule} --metrics {metrics} --metric-weights FOLDER "
        "--out DIR`"
    )


def _small(table: Table, results: Results) -> Iterator[Block]:
    """Every run of the small world that asks the same."""
    runs = [(run, content) for run, content in results.small if content["table"] == table.small]
    for run, content in runs:
        yield _small_run(table, run, content)
    if not runs:
        command = f"`python benchmarks/distillation.py --table {table.small}`"
        yield Block(f"{_title(table)}; {SMALL_WORLD}", [], below=[f"{EMPTY} no result of {command}"])


def _small_run(table: Table, run: str, content: Mapping[str, Any]) -> Block:
    made = Block(f"{_title(table)}; {SMALL_WORLD}", [], below=[f"method {content['method']}", run])
    names = [name for name in SMALL if any(name in row for row in content["rows"])]
    if names:
        made.headings = ["", *(SMALL[name] for name in names)]
        made.lines = [
            (True, [row["label"], *(_small_cell(row.get(name)) for name in names)]) for row in content["rows"]
        ]
    elif content.get("long"):
        made.headings = ["", "seconds", "Frechet IDM ↓ of the first ten", "of the last ten"]
        made.lines = [(True, [one["label"], str(one["seconds"]), *_ends(one["curves"])]) for one in content["long"]]
    return made


def _small_cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{value['mean']:.3g} [{value['low']:.3g}, {value['high']:.3g}]"
    return EMPTY if value is None else f"{value}"


def _ends(curves: Mapping[str, Sequence[Any]]) -> list[str]:
    return [_small_cell(curves["frechet_idm"][place]) for place in (0, -1)]


def markdown(paper: Paper, made: Sequence[Block]) -> str:
    """A page."""
    lines = [f"# {paper.title}", ""]
    for block in made:
        lines += [f"## {block.title}", ""]
        if block.headings:
            lines += [_line(block.headings), "|---" * len(block.headings) + "|"]
            lines += [_line(cells) for _, cells in block.lines]
            lines.append("")
        lines += [f"- {one}" for one in block.below]
        lines.append("")
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def html(pages: Sequence[tuple[Paper, Sequence[Block]]]) -> str:
    """All papers in one page, which needs no other file."""
    parts = [HEAD]
    for paper, made in pages:
        parts.append(f"<h1>{escape(paper.title)}</h1>")
        for block in made:
            parts.append(f"<h2>{escape(block.title)}</h2>")
            if block.headings:
                parts.append("<table><tr>" + "".join(f"<th>{escape(one)}</th>" for one in block.headings) + "</tr>")
                parts += [_html_row(ours, cells) for ours, cells in block.lines]
                parts.append("</table>")
            parts.append("<ul>" + "".join(f"<li>{escape(one)}</li>" for one in block.below) + "</ul>")
    return "\n".join([*parts, "</html>\n"])


def _html_row(ours: bool, cells: Sequence[str]) -> str:
    inside = "".join(f'<td class="none">{one}</td>' if one == EMPTY else f"<td>{escape(one)}</td>" for one in cells)
    return f'<tr class="here">{inside}</tr>' if ours else f"<tr>{inside}</tr>"
