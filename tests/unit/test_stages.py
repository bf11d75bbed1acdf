"""The runner of stages: their order, what is not done again, what is refused before the long work, and gates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diagonal.training.loop import RunConfig
from diagonal.training.recipe import JudgeRecipe, StudentRecipe
from diagonal.training.stages import MODEL, Gate, Line, Stage, last_line, run, settings, training

HOW = JudgeRecipe(RunConfig(steps=4, warmup=0, log_every=2, save_every=2), batch=1)


def writing(folder: Path, seen: list[str], name: str = "one", **more: Any) -> Stage:
    """A stage that writes a curve and a model, and keeps account of its calls."""

    def inputs() -> int:
        seen.append(f"{name} reads")
        return 3

    def lines(given: int) -> Iterator[Line]:
        seen.append(f"{name} runs on {given}")
        (folder / name).mkdir(parents=True, exist_ok=True)
        line = {"step": 2, "val_psnr": 7.0}
        (folder / name / "curve.jsonl").write_text(json.dumps(line) + "\n")
        (folder / name / MODEL).write_text("weights")
        yield line

    return Stage(name, 2, folder / name, lines, inputs, **more)


def test_stages_run_in_their_order_each_with_its_own_inputs(tmp_path: Path) -> None:
    seen: list[str] = []
    made = [(name, line["step"]) for name, line in run([writing(tmp_path, seen), writing(tmp_path, seen, "two")])]
    assert made == [("one", 2), ("two", 2)]
    assert seen == ["one reads", "one runs on 3", "two reads", "two runs on 3"]


def test_inputs_are_read_only_when_their_stage_is_next(tmp_path: Path) -> None:
    seen: list[str] = []
    lines = run([writing(tmp_path, seen), writing(tmp_path, seen, "two")])
    assert seen == []
    next(lines)
    assert seen == ["one reads", "one runs on 3"]


def test_a_stage_that_is_done_reads_and_runs_nothing(tmp_path: Path) -> None:
    seen: list[str] = []
    stage = writing(tmp_path, seen, leaves=MODEL)
    assert not stage.done and len(list(run([stage]))) == 1 and stage.done
    seen.clear()
    assert not list(run([stage])) and not seen
    assert stage.result() == {"stage": "one", "steps": 2, "out": str(tmp_path / "one"), "step": 2, "val_psnr": 7.0}
    # One that looks for itself what is there runs each time.
    assert len(list(run([replace(stage, leaves=None)]))) == 1


@pytest.mark.parametrize("lost", [MODEL, "curve.jsonl"])
def test_a_stage_that_lost_its_end_runs_again(tmp_path: Path, lost: str) -> None:
    stage = writing(tmp_path, [], leaves=MODEL)
    list(run([stage]))
    (tmp_path / "one" / lost).unlink()
    assert not stage.done and len(list(run([stage]))) == 1 and stage.done


@pytest.mark.parametrize("curve", ["", '{"step": 1}\n', '{"step": 1}\n{"step": 2, "lo'])
def test_weights_beside_a_curve_that_breaks_off_are_not_the_end(tmp_path: Path, curve: str) -> None:
    stage = writing(tmp_path, [], leaves=MODEL)
    list(run([stage]))
    (tmp_path / "one" / "curve.jsonl").write_text(curve)
    assert not stage.done


def test_a_folder_of_another_run_is_refused_before_any_stage_begins(tmp_path: Path) -> None:
    seen: list[str] = []
    two = tmp_path / "two"
    two.mkdir()
    (two / "settings.json").write_text('{"lr": 1}')
    (two / "checkpoint.pt").write_text("a state")
    stages = [writing(tmp_path, seen), writing(tmp_path, seen, "two", settings={"lr": 2})]
    with pytest.raises(ValueError, match="two was begun with lr 1, now 2"):
        next(run(stages))
    assert not seen and not (tmp_path / "one").exists()


def test_what_is_wrong_with_inputs_is_said_before_the_folder_is_claimed(tmp_path: Path) -> None:
    def inputs() -> None:
        raise ValueError("no data")

    stage = Stage("one", 2, tmp_path / "one", iter, inputs, settings={"lr": 1})
    with pytest.raises(ValueError, match="no data"):
        list(run([stage]))
    assert not (tmp_path / "one").exists()


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        (Gate("val_psnr", least=8.0), "asks for at least 8.0"),
        (Gate("val_psnr", least=1.0, most=6.0), "asks for at most 6.0"),
    ],
)
def test_a_gate_stops_later_stages_and_keeps_what_was_made(tmp_path: Path, gate: Gate, said: str) -> None:
    seen: list[str] = []
    first = writing(tmp_path, seen, leaves=MODEL, gate=gate)
    for calls in (2, 0):  # done or not: a stage that did not pass is in the way of later ones
        seen.clear()
        with pytest.raises(ValueError, match=said):
            list(run([first, writing(tmp_path, seen, "two")]))
        assert len(seen) == calls and (tmp_path / "one" / MODEL).exists()
    found = json.loads((tmp_path / "one" / "gate.json").read_text())
    assert (found["value"], found["passed"]) == (7.0, False)
    passing = replace(first, gate=Gate("val_psnr", least=7.0, most=7.0))
    assert [name for name, _ in run([passing, writing(tmp_path, seen, "two")])] == ["two"]
    assert json.loads((tmp_path / "one" / "gate.json").read_text())["passed"]


class Slope:
    """The smallest task."""

    def __init__(self) -> None:
        self.module: nn.Module = nn.Linear(1, 1)
        self.optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(self.module.parameters(), 0.1)]

    def loss(self, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        return self.module(torch.ones(1)).square().sum(), {}

    def evaluate(self) -> dict[str, float]:
        return {"val_loss": 1.0}

    def sheet(self) -> None:
        return None


def test_a_stage_that_trains_claims_its_folder_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    tasks: list[Slope] = []

    def task() -> Slope:
        tasks.append(Slope())
        return tasks[-1]

    def keep(made: Slope) -> None:
        torch.save(made.module.state_dict(), tmp_path / "slope" / MODEL)

    stage = training("slope", HOW, tmp_path / "slope", task, keep)
    killed: Any = run([stage])  # a generator
    assert next(killed) == ("slope", last_line(stage.folder))
    next(killed)  # the second line comes after the first state was written
    del killed
    assert not stage.done and json.loads((stage.folder / "settings.json").read_text()) == settings(HOW)
    (stage.folder / "curve.jsonl").write_text(json.dumps({"step": 2}) + "\n")
    assert [line["step"] for _, line in run([stage])] == [4]
    assert stage.done and len(tasks) == 2 and not list(run([stage])) and len(tasks) == 2
    other = training("slope", replace(HOW, lr=1.0), tmp_path / "slope", task, keep)
    with pytest.raises(ValueError, match=r"slope was begun with lr 0.001, now 1.0"):
        list(run([other]))


def test_a_gate_is_no_part_of_the_settings() -> None:
    one = StudentRecipe(HOW.run, batch=2, gate=Gate("val_loss"), lr=0.5)
    assert settings(one) == settings(replace(one, gate=Gate("val_loss", most=1.0)))
    assert {"steps": 4, "batch": 2, "lr": 0.5}.items() <= settings(one).items() and "gate" not in settings(one)
