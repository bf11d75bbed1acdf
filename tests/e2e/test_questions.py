"""The command that answers the papers' open questions: every question at its smallest size, and how it goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks import questions
from diagonal.planning.plan import Order
from diagonal.recipes.questions import QUESTIONS, distilled, find
from diagonal.recipes.questions.distilled import Distilled
from diagonal.recipes.questions.jobs import SIZES, Setting, table
from diagonal.recipes.questions.worlds import SHIPPED, Worlds, fitted, name_of
from tests.unit.test_vizdoom import plays

TRAINED = (1, 2, 5, 6, 9)


def answer(work: Path, number: int, more: str = "") -> tuple[dict[str, Any], str]:
    """What the command writes: results and table."""
    out = work / "out"
    given = f"{number} --size smoke --work {work} --out {out} {more}"
    questions.main(given.split())
    return json.loads((out / "result.json").read_text()), (out / "table.md").read_text()


def columns(row: dict[str, Any], *names: str) -> list[Any]:
    return [row[name] for name in names]


# Data


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("number", QUESTIONS)
def test_every_question_has_jobs_that_come_after_what_they_need(number: int, size: str, tmp_path: Path) -> None:
    question = find(number, Setting(size, tmp_path))
    seen: set[str] = set()
    for job in question.jobs():
        assert set(job.needs) <= seen and job.name not in seen and job.minutes > 0
        assert set(job.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-=_"), job.name
        seen.add(job.name)
    assert question.asked.endswith("?") and question.rows() == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("number", TRAINED)
def test_every_run_that_is_measured_is_trained_under_orders_that_exist(number: int, size: str, tmp_path: Path) -> None:
    question = find(number, Setting(size, tmp_path))
    assert isinstance(question, Worlds)
    labels = {one.label for one in question.table.runs}
    assert len({name_of(one) for one in question.table.runs}) == len(question.table.runs)
    for label, orders in question.table.measured.items():
        assert label in labels or label == SHIPPED
        assert len({str(Order.of(order)) for order in orders}) == len(orders)
    assert all(one.start in {"", SHIPPED} | labels for one in question.table.runs)


def test_the_main_comparison_has_three_training_seeds(tmp_path: Path) -> None:
    question = find(1, Setting("full", tmp_path))
    assert isinstance(question, Worlds)
    tuned = [one for one in question.table.runs if one.label == "raster, then k=1"]
    assert [one.how.run.seed for one in tuned] == [2, 3, 4]
    needs = {job.name: job.needs for job in question.jobs()}
    assert [needs[name_of(one)][1] for one in tuned] == [f"raster--6k-{seed}" for seed in (2, 3, 4)]


def test_question_eight_calls_the_commands_of_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(arguments: list[str]) -> None:
        asked.append(" ".join(arguments))
        if "--out" in arguments and "--table" in arguments:
            made = {"rows": [{"label": "ours", "forwards": 17, "frechet_idm": {"mean": 3.0, "low": 2.0, "high": 4.0}}]}
            Path(arguments[arguments.index("--out") + 1]).write_text(json.dumps(made))

    monkeypatch.setattr(distilled, "_run", run)
    question = Distilled(Setting("cpu", tmp_path))
    for job in question.jobs():
        job.finish(tmp_path)
    assert asked[0].startswith("-m diagonal distill --recipe doom:smoke --out")
    assert "--table 2" in asked[-1] and asked[-1].endswith("--seed 1")
    assert columns(question.rows()[0], "table", "calls") == [1, 17]


# Runs


def test_a_plan_says_what_it_takes_and_does_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions.main(["2", "--size", "full", "--work", str(tmp_path), "--plan", "--together", "4"])
    said = capsys.readouterr().out
    assert "| 150m-2 | data |" in said and "minutes of one H200, 4 at once" in said
    assert not list(tmp_path.iterdir())


def test_jobs_that_a_question_lacks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="question 7 has no job nonsense; --plan lists them"):
        questions.main(["7", "--work", str(tmp_path), "--only", "nonsense"])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job that all questions of trained worlds begin with: recordings and their tokens."""
    setting = Setting("smoke", tmp_path_factory.mktemp("recorded"))
    job = find(9, setting).jobs()[0]
    job.finish(setting.work)
    return job.folder(setting.work)


@plays
@pytest.mark.parametrize("number", TRAINED)
def test_worlds_are_trained_measured_and_compared(number: int, tmp_path: Path, recorded: Path) -> None:
    shutil.copytree(recorded, tmp_path / f"question-{number}-smoke" / "jobs" / recorded.name)
    result, shown = answer(tmp_path, number)
    question = find(number, Setting("smoke", tmp_path))
    assert isinstance(question, Worlds)
    rows = [row for row in result["rows"] if not row["trained"].startswith("fitted")]
    assert len(rows) == sum(map(len, question.table.measured.values())) and len(result["done"]) == result["jobs"]
    for row in rows:
        assert 0 < row["nats"]["low"] <= row["nats"]["high"] and row["calls"] > 0 and row["psnr"]["mean"] > 5
    assert "nats minus first row" not in rows[0] and "nats minus first row" in rows[1]
    assert shown.count("\n") == len(result["rows"]) + 2


@plays
def test_a_question_that_was_stopped_goes_on_and_two_jobs_run_at_once(tmp_path: Path) -> None:
    result, _ = answer(tmp_path, 3, "--only limits --only diagonal-k=1-roll-0")
    assert result["done"] == ["limits", "diagonal-k=1-roll-0"] and len(result["rows"]) == 1
    kept = next(tmp_path.glob("question-3-smoke/jobs/diagonal-k=1-roll-0/result.json"))
    before = kept.stat().st_mtime_ns
    result, _ = answer(tmp_path, 3, "--together 2")
    assert len(result["done"]) == result["jobs"] and kept.stat().st_mtime_ns == before
    roll, refill = result["rows"]
    assert columns(roll, "context", "starts", "frames", "calls a frame") == ["roll", 2, 5, 27]
    assert columns(refill, "context", "psnr to 5") == ["refill", roll["psnr to 5"]]  # the window is not full yet


@plays
def test_content_is_compared_by_scenario(tmp_path: Path) -> None:
    result, _ = answer(tmp_path, 4)
    (row,) = result["rows"]
    assert columns(row, "content", "clips") == ["my_way_home", 2]
    assert row["sharpness"] > 0 and 0 <= row["missed"]["low"] <= row["missed"]["high"] < 1
    assert abs(row["gap in nats"]["mean"]) < 1


def test_speed_is_compared_with_raster_of_the_same_run(tmp_path: Path) -> None:
    result, _ = answer(tmp_path, 7)
    raster, fast = result["rows"]
    assert columns(raster, "calls a frame", "fewer calls", "speed-up") == [192, 1, 1]
    assert fast["calls a frame"] == 27 and fast["fewer calls"] == 192 / 27 and fast["joules a frame"] is None


# Tables


def test_gaps_are_fitted_by_a_power_of_the_parameters() -> None:
    from diagonal.evaluation.statistics import Interval

    rows: list[dict[str, Any]] = []
    for count in (1_000, 10_000, 100_000):
        for order, nats in (("raster", 2.0), ("diagonal:k=1", 2.0 + 10 / count**0.5)):
            rows.append({"trained": f"{count}", "schedule": order, "parameters": count, "nats": Interval(nats, 0, 9)})
    made = fitted(rows)
    assert columns(made[-1], "schedule", "gap in nats") == ["diagonal:k=1", "10 * parameters^-0.50"]
    assert len(made) == 7 and made[1]["gap in nats"] == pytest.approx(10 / 1000**0.5)


def test_a_table_has_the_columns_of_all_rows() -> None:
    shown = table([{"a": 1000, "b": 0.12345}, {"a": None, "c": "x"}])
    assert shown.splitlines() == ["| a | b | c |", "|---|---|---|", "| 1,000 | 0.123 |  |", "|  |  | x |"]


def test_sizes_that_nobody_knows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="size 'huge' is not known; known: smoke, cpu, full"):
        Setting("huge", tmp_path)
    with pytest.raises(ValueError, match="question 12 is not known"):
        find(12, Setting("cpu", tmp_path))
