"""`diagonal evaluate A B`: folders of videos are scored, and what cannot be is told in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from diagonal.media.video import writer
from tests import made_weights
from tests.e2e.conftest import ENVIRONMENT

COMMAND = str(Path(sys.executable).with_name("diagonal"))


def evaluate(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return diagonal(folder, "evaluate", *options)


def diagonal(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of two real videos, and two that are shifted by a frame."""
    folder = tmp_path_factory.mktemp("videos")
    for name in ("real", "made"):
        (folder / name).mkdir()
    for name in ("one", "two"):
        frames = made_weights.clip(name, 5, 32, 48).permute(0, 2, 3, 1).numpy()
        for where, some in (("real", frames[:4]), ("made", frames[1:])):
            with writer(folder / where / f"{name}.mp4", 8) as file:
                file.write(some)
    return folder


def test_folders_are_scored_and_a_second_run_finds_the_same(place: Path) -> None:
    options = ("made", "--reference", "real", "--metrics", "psnr,lpips,frozen", "--out", "out", "--json")
    first = evaluate(place, *options)
    assert first.returncode == 0, first.stderr
    found = json.loads(first.stdout)
    assert [one["metric"] for one in found["scores"]] == ["psnr", "frozen"]
    assert 8 < found["scores"][0]["value"]["mean"] < 30
    assert "lpips_alex_v0.1.safetensors" in found["refused"]["lpips:plain"]
    made = {"kept", "scores.json", "scores.md", "sheet.png", "curves.png"}
    assert {file.name for file in (place / "out").iterdir()} == made
    assert evaluate(place, *options).stdout == first.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("made", "--metrics", "psnr"), "psnr compare with real videos; name their folder: --reference"),
        (("made", "--seeds", "2"), "--seeds cannot go with folders of videos"),
        (("--reference", "real"), "--reference cannot go with a world without --metrics"),
    ],
)
def test_what_cannot_be_scored_is_told_in_one_line(place: Path, options: tuple[str, ...], message: str) -> None:
    done = evaluate(place, *options)
    assert done.returncode == 2 and message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr
