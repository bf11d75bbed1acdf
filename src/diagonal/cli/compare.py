"""`diagonal compare`: a blind comparison of two runs by people, as a page that works from a file; and its votes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from rich.table import Table

from diagonal.cli import app, out, print_json, progress_bar
from diagonal.cli.options import Json, flat, given, refuse

DEFAULT = "overall,picture,motion"


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What is compared."""

    panel: ClassVar[str] = "Runs"

    folders: Annotated[
        list[Path] | None, typer.Argument(help="Two folders of videos with the same names, from any program.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What voters are shown."""

    panel: ClassVar[str] = "Making the page"

    out_path: Annotated[
        Path | None, typer.Option("--out", help="Folder for page/, which voters get, and key.json, which they do not.")
    ] = None
    questions: Annotated[
        str | None, typer.Option(help=f"Of overall, picture, motion, control, by commas. Default: {DEFAULT}.")
    ] = None
    count: Annotated[int | None, typer.Option(min=1, help="Pairs, drawn from all. Default: all.")] = None
    twice: Annotated[int | None, typer.Option(min=0, help="Pairs that come twice. Default: a fifth.")] = None
    seed: Annotated[int | None, typer.Option(min=0, help="Of sides and order. Default: drawn, and in the key.")] = None


@dataclass(frozen=True, kw_only=True)
class Voted:
    """What voters said."""

    panel: ClassVar[str] = "Counting votes"

    pairs: Annotated[Path | None, typer.Option(help="The folder that --out named, with the key.")] = None
    votes: Annotated[list[Path] | None, typer.Option(help="A file of votes; may be repeated, one a voter.")] = None


@dataclass(frozen=True, kw_only=True)
class Printed:
    """How the result is shown."""

    panel: ClassVar[str] = "Output"

    as_json: Json = False


@app.command()
@flat
def compare(runs: Runs, shown: Shown, voted: Voted, printed: Printed) -> None:
    """Make a page on which people compare two runs without knowing which is which; count their votes."""
    if voted.votes or voted.pairs:
        refuse(given(runs, shown), "--votes")
        _count(voted, printed.as_json)
        return
    if len(runs.folders or ()) != 2 or shown.out_path is None:
        raise ValueError("give two folders of videos and --out; or --pairs and --votes, to count what voters said")
    _make(runs.folders or [], shown, shown.out_path, printed.as_json)


def _make(runs: Sequence[Path], shown: Shown, folder: Path, as_json: bool) -> None:
    import secrets

    from diagonal.evaluation.pairs import KEY, PAGE, plan_study, write

    first, second = runs
    seed = secrets.randbelow(2**32) if shown.seed is None else shown.seed
    questions = [part.strip() for part in (shown.questions or DEFAULT).split(",")]
    study = plan_study(first, second, questions, (shown.count, shown.twice), seed)
    with progress_bar("trials") as progress:
        task = progress.add_task("encoding", total=len(study.trials), note="")
        for name in write(study, folder):
            progress.update(task, advance=1, note=name)
    again = sum(trial.again for trial in study.trials)
    page, key = folder / PAGE / "index.html", folder / KEY
    if as_json:
        print_json({"study": study.name, "trials": len(study.trials), "twice": again, "page": str(page)})
        return
    out.print(f"{len(study.trials)} trials, {again} of them pairs that come twice; {len(questions)} questions each")
    out.print(f"page for voters, opened in a browser as it is: {page}", markup=False)
    out.print(f"key, to be kept from them: {key}", markup=False)


def _count(voted: Voted, as_json: bool) -> None:
    from diagonal.evaluation.votes import merge, read_key, read_votes
    from diagonal.media.files import atomic

    if voted.pairs is None or not voted.votes:
        raise ValueError("--pairs, the folder with the key, and --votes, what voters saved, belong together; give both")
    key = read_key(voted.pairs)
    found = merge(read_votes(voted.votes, key), key)
    with atomic(voted.pairs / "result.json") as temporary:
        temporary.write_text(json.dumps(found, indent=1) + "\n")
    if as_json:
        print_json(found)
    else:
        _print(found, voted.pairs)


def _print(found: Mapping[str, Any], folder: Path) -> None:
    a, b = (found[side] for side in "ab")
    table = Table("question", f"{a} wins", "ties", f"{b} wins", f"{a} of decided", f"{a}, ties half", box=None)
    for name, one in found["questions"].items():
        rate = "" if one["win_rate"] is None else _interval(one["win_rate"])
        table.add_row(name, f"{one['a']}", f"{one['tie']}", f"{one['b']}", rate, _interval(one["score"]))
    out.print(table)
    out.print("")
    for name, one in found["voters"].items():
        missing = "" if one["votes"] == one["asked"] else f" of {one['asked']}: not finished"
        out.print(f"{name}: {one['votes']} votes{missing}", markup=False)
    for label, part in (("the same said of pairs that came twice", "same_again"), ("left, of decided votes", "left")):
        if found[part] is not None:
            out.print(f"{label}: {_interval(found[part])} of {found[part]['of']}", markup=False)
    between = found["between_voters"]
    if between is not None:
        kappa = "" if between["kappa"] is None else f", kappa {between['kappa']:.2f}"
        out.print(f"two voters say the same: {between['rate']:.0%} of {between['of']}{kappa}", markup=False)
    out.print("intervals are 95 %: Wilson's; with ties half, over pairs", markup=False)
    out.print(f"result.json in {folder}", markup=False)


def _interval(one: Mapping[str, float]) -> str:
    return f"{one['mean']:.0%} [{one['low']:.0%}, {one['high']:.0%}]"
