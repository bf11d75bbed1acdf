"""What every command says of itself, and how the command is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import diagonal
from tests.e2e.conftest import ENVIRONMENT

COMMAND = str(Path(sys.executable).with_name("diagonal"))
SCREENS = 100  # lines, two screens
COMMANDS = {
    "generate": ("Model", "Prompt", "Schedule", "Sampling", "Output", "Provenance"),
    "play": ("Model", "Prompt", "Playing", "Schedule", "Sampling", "Output", "Provenance"),
    "serve": ("Model", "Server", "Sessions", "Jobs", "Provenance", "Ray"),
    "video": ("Model", "Prompt", "Size", "Schedule", "Sampling", "Output", "Provenance", "Ray"),
    "plan": ("What to plan", "Grids and token worlds", "Schedule", "Diffusion models"),
    "bench": ("Model", "Measuring", "Token worlds", "Sessions", "Diffusion models", "Output"),
    "distill": ("Model", "Prompts", "Method", "Videos", "Training", "Plan", "Run"),
    "evaluate": ("Folders", "Folders of videos", "Model", "Clips", "Measuring", "Output", "Ray"),
    "sweep": ("Model", "Sweep", "Token worlds", "Diffusion models", "Ray"),
    "attention": ("Model", "Attention"),
    "compare": ("Runs", "Making the page", "Counting votes", "Output"),
    "report": ("Report",),
    "convert": ("Model", "Token worlds", "Diffusion models", "Output"),
    "record": ("Recording", "Ray"),
    "finetune": (),
    "train all": (),
    "train tokenizer": (),
    "train world": (),
    "models": (),
    "verify": ("Files", "Judging"),
}


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = ENVIRONMENT | {"COLUMNS": "100"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_two_screens_and_groups_the_options(tmp_path: Path, command: str) -> None:
    lines = run(tmp_path, COMMAND, *command.split(), "--help").stdout.splitlines()
    assert len(lines) <= SCREENS and max(map(len, lines)) <= 100
    headings = [line.strip("╭─╮ ") for line in lines if line.startswith("╭─ ")]
    assert [heading for heading in headings if heading != "Options"] == [*COMMANDS[command]]


def test_every_command_is_listed(tmp_path: Path) -> None:
    text = run(tmp_path, COMMAND, "--help").stdout
    assert all(f"│ {command.partition(' ')[0]} " in text for command in COMMANDS)


@pytest.mark.parametrize("command", [[COMMAND], [sys.executable, "-m", "diagonal"]])
def test_the_version_is_printed_by_the_command_and_by_the_package(tmp_path: Path, command: list[str]) -> None:
    done = run(tmp_path, *command, "--version")
    assert (done.returncode, done.stdout) == (0, f"diagonal {diagonal.__version__}\n")


def test_the_package_is_the_command(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "diagonal", "plan", "--grid", "2x4x6", "--json"]
    ours, other = run(tmp_path, *program), run(tmp_path, COMMAND, *program[3:])
    assert ours.returncode == 0 and ours.stdout == other.stdout
    wrong = run(tmp_path, *program[:5], "2x4")
    assert wrong.returncode == 2 and "FRAMESxROWSxCOLS" in wrong.stderr
