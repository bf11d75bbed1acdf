"""`diagonal evaluate --model X --data CLIPS --metrics ...`: clips are continued and scored; nothing is made twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diagonal.media.video import writer
from tests import made_weights
from tests.e2e.conftest import Run, numbers_of
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
    calls = {name: one["calls"]["mean"] for name, one in found["speed"].items()}
    assert calls["raster"] > calls["diagonal-k=2-d=3"] > 1
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
        (("--model", "doom-t2v", *MODEL[2:], "--metrics", "psnr", "--out", "x"), "diagonal video --model doom-t2v"),
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
    too_fast = diagonal(place, "sweep", *options[:-1], "--target-fps", "1e6")  # all else is shown and written
    assert too_fast.returncode == 2 and "no schedule reaches 1e+06 FPS: the fastest," in too_fast.stderr
    table = too_fast.stdout.splitlines()
    assert table[0].split() == ["schedule", "calls", "FPS", "psnr", "frontier"] and len(table) == 7
    assert json.loads((place / "swept" / "sweep.json").read_text())["chosen"] is None
    by_calls = json.loads(diagonal(place, "sweep", *options, "--axis", "calls").stdout)
    assert by_calls["frontier"][0] == min(by_calls["measured"], key=lambda one: one["calls"]["mean"])["schedule"]
    assert [one["fps"] for one in by_calls["measured"]] == [None] * 5


def test_a_sweep_of_a_diffusion_model_is_over_steps_and_context_levels(tmp_path: Path, forked: Run) -> None:
    (tmp_path / "prompts.txt").write_text("a cat\na dog\n")
    size = ("--frames", "9", "--height", "32", "--width", "48")
    model = ("sweep", "--model", "wan/tiny", "--prompts", "prompts.txt", *size, "--out", "out")
    options = (
        "--metrics",
        "temporal_flickering,frozen",
        "--steps",
        "21,11",
        "--context-levels",
        "t250,clean",
        "--json",
    )
    found = numbers_of(forked(tmp_path, *model, *options))
    schedules = [f"diagonal:steps={steps},context={level}" for steps in ("21", "11") for level in ("t250", "clean")]
    calls = {one["schedule"]: one["calls"]["mean"] for one in found["measured"]}
    assert list(calls) == schedules and calls[schedules[0]] < calls[schedules[1]]
    assert list(found["others"]) == ["frozen"] and list(found["others"]["frozen"]) == schedules
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "videos").rglob("*.mp4")}
    assert len(made) == 8
    again = numbers_of(forked(tmp_path, *model, *options))
    assert again["measured"] == found["measured"]
    assert {path: path.stat().st_mtime_ns for path in made} == made
    (tmp_path / "prompts.txt").write_text("a cat\n")
    done = forked(tmp_path, *model, *options)
    assert done.returncode == 2 and "holds 1 videos of other prompts, 'a dog-0.mp4'" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "wan/tiny", "--metrics", "frozen", "--steps", "21"), "--prompts, a file of prompts, is needed"),
        (("--model", "wan/tiny", "--steps", "21"), "--metrics is needed, the first one as the quality"),
        (("--model", "wan/tiny", "--metrics", "frozen"), "--steps, such as 4322222,2222222, or --schedule"),
        (("--model", "wan/tiny", "--k", "1"), "--k cannot go with wan/tiny"),
        (
            ("--model", "wan/tiny", "--metrics", "frozen", "--context-levels", "100"),
            "--context-levels 100 needs --steps",
        ),
        (("--model", "cosmos/tiny", "--axis", "calls", "--target-fps", "9"), "--target-fps 9 needs frames a second"),
        (("--model", "cosmos/tiny", "--steps", "21"), "--steps cannot go with cosmos/tiny"),
        (
            (
                "--model",
                "cosmos/tiny",
            ),
            "--data, a folder of clips, and --out",
        ),
    ],
)
def test_what_cannot_be_swept_is_told_in_one_line(
    tmp_path: Path, forked: Run, options: tuple[str, ...], message: str
) -> None:
    done = forked(tmp_path, "sweep", "--out", "out", *options)
    assert done.returncode == 2 and message in done.stderr and not list(tmp_path.iterdir())


def test_clips_that_begin_with_nothing_are_made_as_many_as_real_ones(tmp_path: Path) -> None:
    """A model that continues nothing is compared with a set of real clips."""
    (tmp_path / "data").mkdir()
    for name in ("one", "two"):
        with writer(tmp_path / "data" / f"{name}.mp4", 8) as file:
            file.write(made_weights.clip(name, 40, 64, 96).permute(0, 2, 3, 1).numpy())
    options = ("--model", "videogpt/tiny", "--data", "data", "--clips", "2", "--schedule", "diagonal:k=1")
    done = evaluate(tmp_path, *options, "--metrics", "temporal_flickering,frechet_idm", "--out", "out", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(one["metric"], one["clips"]) for one in found["scores"]] == [
        ("temporal_flickering:all", 2),
        ("frechet_idm", 2),
    ]
    assert found["run"]["context"] == 0 and found["run"]["trained"] == "random"
    assert found["folders"]["diagonal-k=1"]["frames"] == found["reference"]["frames"] > 1
