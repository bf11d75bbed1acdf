"""`diagonal verify`: what videos say of who made them, and whether they were changed since."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer
from rich.table import Table
from rich.text import Text

from diagonal.cli import app, out, print_json
from diagonal.cli.options import Json, flat

if TYPE_CHECKING:
    from diagonal.media.provenance.verify import Seen, Verdict


@dataclass(frozen=True, kw_only=True)
class Looked:
    """What is looked at."""

    panel: ClassVar[str] = "Files"

    files: Annotated[list[Path], typer.Argument(help="Videos.")]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Whom to trust, and how it is said."""

    panel: ClassVar[str] = "Judging"

    trust: Annotated[
        list[Path] | None,
        typer.Option(help="Certificate (PEM) to trust, with all that it issued; may be repeated."),
    ] = None
    as_json: Json = False


@app.command()
@flat
def verify(looked: Looked, judged: Judged) -> None:
    """Say what credentials and watermark tell of videos. Exit code 0: all are as they were signed; 1: one was changed;
    3: one has no credentials; 4: with --trust, one was signed by somebody else."""
    from diagonal.media.provenance import credentials, watermark
    from diagonal.media.provenance.verify import verify as look
    from diagonal.media.provenance.verify import worst

    credentials.check_installed()
    watermark.check_installed()
    trust = "".join(credentials.anchors(path) for path in judged.trust or ())
    verdicts = [look(path, trust) for path in looked.files]
    if judged.as_json:
        print_json({"files": [verdict.as_json() for verdict in verdicts]})
    else:
        _print(verdicts)
    raise typer.Exit(worst(verdicts, bool(judged.trust)))


def _print(verdicts: list[Verdict]) -> None:
    table = Table("file", "credentials", "signed by", "made with", "model", "watermark", box=None)
    for column in table.columns:
        column.overflow = "fold"
    for verdict in verdicts:
        found = verdict.credentials
        model = str(found.statement.get("model", ""))
        cells = verdict.path, found.state, found.signer, found.generator, model, _watermark(verdict.watermark)
        table.add_row(*(Text(plain(cell)) for cell in cells))
    out.print(table)
    for verdict in verdicts:
        for line in (*verdict.credentials.problems, *_remarks(verdict)):
            out.print(plain(f"{verdict.path}: {line}"), markup=False)


def _watermark(seen: Seen) -> str:
    return f"{seen.family}, run {seen.run:03x}" if seen.run is not None else seen.state


def _remarks(verdict: Verdict) -> list[str]:
    """What else is to be said, of several things that do not fit."""
    from diagonal.media.provenance.credentials import INVALID, NOT_PRESENT, VALID

    state, remarks = verdict.credentials.state, []
    if state == INVALID:
        remarks.append("the file is not as it was signed: believe nothing that it says")
    if state == VALID:
        remarks.append("as it was signed, by somebody whom nothing here vouches for (--trust)")
    if state == NOT_PRESENT and verdict.watermark.run is not None:
        remarks.append("no credentials, but a watermark: they were taken away, or never written")
    if verdict.agrees is False:
        remarks.append("the watermark is not the one that the credentials speak of")
    if verdict.watermark.why:
        remarks.append(f"watermark: {verdict.watermark.why}")
    return remarks


def plain(text: str) -> str:
    """A text of a file, for a terminal: what could steer it is left out."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
