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
    assert suite.run(list(cases), "cpu", "float32", tmp_path) == ["wrong", "odd"]
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
