"""`diagonal report`: the tables of the two papers as they are printed, filled with what was measured here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer
from rich.table import Table

from diagonal.cli import app, out, print_json
from diagonal.cli.options import Json, flat

PAPERS = ("diagonal-decoding", "diagonal-distillation")


@dataclass(frozen=True, kw_only=True)
class Reported:
    """Which results fill which tables."""

    panel: ClassVar[str] = "Report"

    results: Annotated[
        list[Path], typer.Option(help="Files or folders of results: of bench, evaluate, sweep; may be repeated.")
    ]
    out_path: Annotated[Path, typer.Option("--out", help="Folder for a page of each paper, and report.html.")]
    paper: Annotated[str | None, typer.Option(help=f"{' or '.join(PAPERS)}. Default: both.")] = None
    as_json: Json = False

    def __post_init__(self) -> None:
        if self.paper not in (None, *PAPERS):
            raise ValueError(f"--paper {self.paper} is not known; known: {', '.join(PAPERS)}")


@app.command()
@flat
def report(reported: Reported) -> None:
    """The papers' tables with their numbers and ours; every cell of ours names its run, an empty one what it lacks."""
    import importlib

    from diagonal.evaluation.papers.measured import Results
    from diagonal.evaluation.papers.page import blocks, html, markdown
    from diagonal.media.files import atomic

    results = Results.of(reported.results)
    names = [reported.paper] if reported.paper else list(PAPERS)
    found = [importlib.import_module(f"diagonal.evaluation.papers.{name.replace('-', '_')}").PAPER for name in names]
    pages = [(paper, list(blocks(paper, results))) for paper in found]
    reported.out_path.mkdir(parents=True, exist_ok=True)
    texts = {f"{paper.key}.md": markdown(paper, made) for paper, made in pages} | {"report.html": html(pages)}
    for name, text in texts.items():
        with atomic(reported.out_path / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    filled = {
        paper.key: {block.title: [block.filled, block.cells] for block in made if block.cells} for paper, made in pages
    }
    if reported.as_json:
        print_json({"out": str(reported.out_path), "filled": filled, "others": [str(path) for path in results.others]})
        return
    table = Table("", "measured", "cells", box=None, padding=(0, 2, 0, 0))
    for titles in filled.values():
        for title, (some, every) in titles.items():
            table.add_row(title, str(some), str(every))
    out.print(table)
    out.print(f"{', '.join(texts)} in {reported.out_path}", markup=False)
