"""What `benchmarks/suite.py` runs: cases that exist, one after the other, whatever becomes of one."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import suite
from diagonal import cli
from diagonal.catalog.names import find
from diagonal.cli.bench_video import VideosMeasured
from diagonal.cli.evaluate_model import Clips, planned
from diagonal.cli.options import WorldSource
from diagonal.evaluation.papers import cases as paper_cases
from diagonal.evaluation.papers import diagonal_decoding, diagonal_distillation
from diagonal.planning.plan import Order


@pytest.mark.parametrize("name", suite.CASES)
def test_cases_are_of_models_and_schedules_that_there_are(name: str) -> None:
    pairs = list(pairwise(suite.CASES[name].split()))
    model = dict(pairs)["--model"]
    assert model.replace("/", "-") == name and find("models", model).source
    schedules = [Order.of(value) for key, value in pairs if key == "--schedule"]
    assert str(schedules[-1]) == "raster" and len(schedules) > 1


@pytest.fixture
def own_hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the command sets for its process is set back."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.usefixtures("own_hooks")
def test_results_are_written_and_a_failure_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = "--schedule diagonal:k=1 --frames 1 --steps 2 --repeat 1 --no-tokenizer"
    cases = {"wrong": f"--model mcar/none {small}", "right": f"--model mcar/tiny {small}", "odd": "--model mcar/tiny"}
    monkeypatch.setattr(suite, "CASES", cases)
    before, run = [*sys.argv], cli.main

    def fails() -> None:
        assert "--frames" in sys.argv, "too little memory, say"
        run()

    monkeypatch.setattr(cli, "main", fails)
    assert suite.run(cases, "cpu", "float32", tmp_path) == ["wrong", "odd"]
    assert sys.argv == before and "no variant 'none'" in capsys.readouterr().err
    (made,) = tmp_path.iterdir()
    assert made.name.endswith("-right.json") and "-cpu-" in made.name
    result = json.loads(made.read_text())
    assert result["kind"] == "bench" and result["command"].startswith("diagonal bench --model mcar/tiny")


def test_a_folder_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["suite.py", "--out", str(tmp_path / "none"), "--only", "mcar-300m"])
    with pytest.raises(SystemExit) as end:
        suite.main()
    assert end.value.code == 2


EVERY = paper_cases.cases()


def test_every_speed_of_the_papers_has_a_case() -> None:
    """Each printed row of a model of ours is found by the report in what its case measures."""
    wanted = {
        (row.model, row.preset, row.schedule.removeprefix("steps=") if row.preset else str(Order.of(row.schedule)))
        for paper in (diagonal_decoding, diagonal_distillation)
        for table in paper.TABLES
        for row in table.rows
        if row.model
    }
    found = set()
    for one in EVERY:
        options = dict(pairwise(one.arguments.split()))
        schedule, preset = options.get("--schedule", ""), options.get("--preset", "")
        found.add((options["--model"], preset, schedule if preset else str(Order.of(schedule))))
    assert {(model, preset, "" if "teacher" in schedule else schedule) for model, preset, schedule in wanted} <= found
    for model in ("wham/200m", "cosmos/5b", "cosmos/13b"):
        assert (model, "", "diagonal:k=2,d=10" if "cosmos" in model else "diagonal:k=2") in found
    assert len({one.name for one in EVERY}) == len(EVERY) and all(one.name.isascii() for one in EVERY)
    assert "--preset diagonal-distillation --frames 717" in " ".join(one.arguments for one in EVERY)


@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
def test_what_the_papers_ask_can_be_run(case: paper_cases.Case) -> None:
    """Everything that is refused without a model is asked for here."""
    options = dict(pairwise(case.arguments.split()))
    name, frames = options["--model"], int(options["--frames"])
    source = WorldSource(model=name, weights=None, tokenizer=None)
    if "--preset" in options:
        schedules = [options["--schedule"]] if "--schedule" in options else None
        VideosMeasured(preset=options["--preset"]).requests(source, schedules, frames)
        assert case.seconds is None
    else:
        clips = Clips(None, None, None, frames, 0)
        planned(WorldSource(model=name, weights="random", tokenizer=None), [Order.of(options["--schedule"])], clips)
        assert case.seconds is not None and 0 < case.seconds < 60


@pytest.mark.usefixtures("own_hooks")
def test_the_papers_cases_are_listed_and_those_that_are_there_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = "--model mcar/tiny --schedule diagonal:k=1 --frames 1 --steps 2 --repeat 1 --no-tokenizer"
    made = [paper_cases.Case("papers-one", small, 90.0), paper_cases.Case("papers-two", small, None)]
    monkeypatch.setattr(paper_cases, "cases", lambda: made)
    command = ["suite.py", "--out", str(tmp_path), "--papers", "--device", "cpu", "--dtype", "float32"]
    for extra, files in ((["--list"], 0), (["--minutes", "0"], 0), ([], 2), ([], 2)):
        monkeypatch.setattr(sys, "argv", [*command, *extra])
        suite.main()
        assert len(list(tmp_path.iterdir())) == files
    told = capsys.readouterr()
    assert "2 of 2 are left: 2 minutes at least" in told.out and "0 of 2 are left" in told.out
    assert "left  at least 90 s  diagonal bench --model mcar/tiny" in told.out
    assert "the time is up; the next case is papers-one" in told.err
