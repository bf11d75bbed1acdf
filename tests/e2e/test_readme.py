"""The README says what works: its code runs, its commands are the real ones, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from diagonal import Grid, Layout, make_plan

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TOUR = (ROOT / "docs" / "tour.md").read_text()
DOCS = sorted((ROOT / "docs").rglob("*.md"))


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def _commands() -> list[str]:
    lines = [line for block in _blocks(README, "bash") for line in block.splitlines()]
    return [line.removeprefix("diagonal ") for line in lines if line.startswith("diagonal ")]


def test_the_three_commands_come_first() -> None:
    first = _blocks(README, "bash")[0].splitlines()
    commands = [line.split()[0] for line in first]
    assert commands == ["scripts/demo", "scripts/test", "scripts/play"]
    assert all((ROOT / name).stat().st_mode & 0o100 for name in (*commands, ".ci/run"))
    assert "scripts/test" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("path", [ROOT / "README.md", *DOCS], ids=lambda path: str(path.relative_to(ROOT)))
def test_python_examples_run(path: Path, tmp_path: Path) -> None:
    code = "\n".join(_blocks(path.read_text(), "python"))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_there_are_commands_to_run() -> None:
    assert {command.split()[0] for command in _commands()} == {"generate", "play", "video", "plan"}


@pytest.mark.parametrize("command", _commands())
def test_commands_run_as_printed(command: str, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("diagonal")
    words = [str(tmp_path / word) if word.endswith((".png", ".mp4")) else word for word in shlex.split(command)]
    words += ["--script", "forward"] if words[0] == "play" else []  # nobody is there to press keys
    done = subprocess.run([program, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", [ROOT / "README.md", *DOCS], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_within_the_project_lead_somewhere(path: Path) -> None:
    for link, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", path.read_text()):
        if not link.startswith("http"):
            target = path.parent / link if link else path
            assert target.exists(), link
            assert not heading or heading in _anchors(target.read_text()), f"{link}#{heading}"


def _anchors(text: str) -> set[str]:
    """The names that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_step_table_is_computed_not_remembered() -> None:
    def steps(grid: str, schedule: str) -> int:
        return len(make_plan(Layout(Grid.parse(grid), prefix=1), schedule).steps)

    table = TOUR[TOUR.index("| model | grid |") :].partition("\n\n")[0]
    heading, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert [row[1] for row in rows] == ["1x14x24", "3x40x64"]
    for row in rows:
        for schedule, cell in zip(heading[2:], row[2:], strict=True):
            if cell:
                assert int(cell.replace(",", "")) == steps(row[1], schedule.strip("`"))
