"""Options as dataclasses: what typer is told of them, and what is known of those that were given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import pytest
import typer
from typer.testing import CliRunner

from diagonal.cli.options import Fitting, RowStarts, chosen, flat, given, refuse
from diagonal.planning.plan import Order, StandIn


@dataclass(frozen=True, kw_only=True)
class Place:
    panel: ClassVar[str] = "Where"

    out_path: Annotated[Path, typer.Option("--out", "--to", help="A folder.")]
    depth: Annotated[int | None, typer.Option(min=1, help="How deep.")] = None


@dataclass(frozen=True, kw_only=True)
class Colours:
    panel: ClassVar[str] = "Look"

    colour: Annotated[list[str] | None, typer.Option(help="May be repeated.")] = None
    red: Annotated[bool, typer.Option("--red", help="A flag.")] = False
    soft: Annotated[bool | None, typer.Option("--soft/--hard", help="One of two.")] = None
    best_of: Annotated[int, typer.Option(help="With a default.")] = 3


def run(*arguments: str) -> tuple[list[Place | Colours], str]:
    """The groups that a command got, and what it printed."""
    got: list[Place | Colours] = []
    app = typer.Typer()

    @app.command()
    @flat
    def draw(place: Place, colours: Colours) -> None:
        """Draw something."""
        got.extend([place, colours])

    done = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"}).invoke(app, [*arguments])
    return got, done.output


def test_a_command_gets_its_groups_filled() -> None:
    got, _ = run("--to", "x", "--colour", "a", "--colour", "b", "--hard", "--best-of", "4")
    assert got == [Place(out_path=Path("x")), Colours(colour=["a", "b"], soft=False, best_of=4)]
    got, _ = run("--out", "y", "--depth", "2", "--red")
    assert got == [Place(out_path=Path("y"), depth=2), Colours(red=True)]


def test_what_is_missing_or_wrong_is_said() -> None:
    assert "Missing option" in run()[1] and not run()[0]
    assert "--depth" in run("--out", "x", "--depth", "0")[1]


def test_help_shows_the_groups_with_their_headings() -> None:
    _, text = run("--help")
    assert "Draw something." in text
    where, look = text.index("─ Where ─"), text.index("─ Look ─")
    assert where < text.index("--out") < text.index("--depth") < look < text.index("--best-of")
    assert "[default: 3]" in text and "[required]" in text


def test_options_that_were_given_are_known_by_what_was_typed() -> None:
    assert given(Place(out_path=Path("x")), Colours()) == {"out_path": "--out"}
    every = given(Colours(colour=["a"], red=True, soft=False, best_of=4))
    assert every == {"colour": "--colour", "red": "--red", "soft": "--soft", "best_of": "--best-of"}
    with pytest.raises(ValueError, match="--red, --best-of cannot go with stone; leave it out"):
        refuse({"red": "--red", "best_of": "--best-of"}, "stone")
    refuse({}, "stone")


def test_what_was_not_given_is_left_to_the_library() -> None:
    assert chosen(Colours(red=True), "colour", "red", "soft") == {"red": True}
    assert RowStarts().order(None) == Order.of("diagonal:k=1")
    assert RowStarts(stand_in=StandIn.ABOVE, refeed=False).order("raster").stand_in is StandIn.ABOVE
    with pytest.raises(ValueError, match="--resize and --crop both fit"):
        Fitting(resize=True, crop=True)
