"""docs/evaluation.md says what the code says: its tables are made of it, its tests and commands exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from benchmarks import metrics as page
from diagonal.cli import COMMANDS, app
from diagonal.evaluation import metrics

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "make"), [("metrics", page.table), ("files", page.files)])
def test_the_tables_are_those_of_the_code(name: str, make) -> None:
    """Made again by: python -m benchmarks.metrics --into docs/evaluation.md"""
    assert f"<!-- {name} -->\n{make()}\n<!-- /{name} -->" in TEXT


def test_every_file_has_one_place_where_it_is_published() -> None:
    found: dict[str, set[str]] = {}
    for name in metrics.names():
        about = metrics.find(name)[0].about
        for variant in about.variants or ("",):
            for file in about.needs(variant):
                found.setdefault(file.name, set()).add(file.where)
    assert all(len(places) == 1 for places in found.values()), found


def test_tests_that_are_named_exist() -> None:
    named = set(re.findall(r"tests/\w+/\w+\.py", TEXT))
    assert len(named) >= 6 and all((ROOT / name).is_file() for name in named)


def test_options_of_the_commands_exist() -> None:
    import importlib

    for name in COMMANDS:
        importlib.import_module(f"diagonal.cli.{name}")
    commands = vars(typer.main.get_command(app))["commands"]
    block = re.search(r"```bash\n(.*?)```", TEXT, flags=re.DOTALL)
    assert block is not None
    lines = [line for line in block[1].replace("\\\n", " ").splitlines() if line.startswith("diagonal ")]
    assert len(lines) == 6
    for line in lines:
        _, command, *arguments = shlex.split(line)
        known = {option for one in commands[command].params for option in one.opts}
        assert {argument for argument in arguments if argument.startswith("--")} <= known, line
    for name in re.findall(r"--metrics (\S+)", block[1]):
        assert all(metrics.find(one) for one in name.split(","))
