"""`diagonal evaluate --model X --data CLIPS --metrics ...`: clips are continued and scored; nothing is made twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diagonal.media.video import writer
from tests import made_weights
from tests.e2e.test_evaluate_folders import diagonal, evaluate

MODEL = ("--model", "cosmos/tiny", "--data", "data", "--clips", "2", "--context", "1", "--frames", "8")
OPTIONS = (*MODEL, "--metrics", "psnr", "--schedule", "raster", "--schedule", "diagonal:k=2,d=3", "--out", "out")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "data").mkdir()
    for name in ("one", "two", "three"):
        with writer(folder / "data" / f"{name}.mp4", 8) as file:
            file.write(made_weights.clip(name, 10, 64, 96).permute(0, 2, 3, 1).numpy())
    return folder


def test_clips_are_continued_and_scored_and_a_second_run_makes_nothing(place: Path) -> None:
    first = evaluate(place, *OPTIONS, "--json")
    assert first.returncode == 0, first.stderr
    found = json.loads(first.stdout)
    assert [(one["folder"], one["clips"]) for one in found["scores"]] == [("raster", 2), ("diagonal-k=2-d=3", 2)]
    assert found["speed"]["raster"]["calls"] > found["speed"]["diagonal-k=2-d=3"]["calls"] > 1
    assert json.loads((place / "out" / "scores.json").read_text())["speed"] == found["speed"]
    made = {path: path.stat().st_mtime_ns for path in (place / "out" / "videos").rglob("*.mp4")}
    assert len(made) == 6
    second = evaluate(place, *OPTIONS, "--json")
    assert json.loads(second.stdout)["scores"] == found["scores"]
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_a_run_is_not_mixed_with_another_one(place: Path) -> None:
    done = evaluate(place, *OPTIONS[:-1], "out", "--choice", "3")
    assert done.returncode == 2 and "holds videos of another run, where seed was 0, not 3" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((*OPTIONS, "--seeds", "2"), "--seeds cannot go with --metrics of a world"),
        ((*MODEL, "--metrics", "psnr"), "--data, a folder of clips, and --out, a folder for videos and scores"),
    ],
)
def test_what_cannot_be_had_is_told_in_one_line(place: Path, options: tuple[str, ...], message: str) -> None:
    done = evaluate(place, *options)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_a_sweep_measures_what_is_not_measured_yet(place: Path) -> None:
    options = (*MODEL, "--metrics", "psnr", "--k", "1,2", "--d", "whole,3,90", "--out", "swept", "--json")
    done = diagonal(place, "sweep", *options, "--target-fps", "0.01")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    schedules = ["raster", "diagonal:k=1", "diagonal:k=1,d=3", "diagonal:k=2", "diagonal:k=2,d=3"]
    assert [one["schedule"] for one in found["measured"]] == schedules
    assert done.stderr.count("d=90 given") == 2
    best = max(found["measured"], key=lambda one: (one["quality"]["mean"], one["fps"]["mean"]))
    assert found["chosen"] == best["schedule"] and best["schedule"] in found["frontier"]
    assert {"sweep.json", "sweep.png", "scores.json"} <= {file.name for file in (place / "swept").iterdir()}
    again = diagonal(place, "sweep", *options)
    assert json.loads(again.stdout)["measured"] == found["measured"]  # seconds too: nothing was made anew
