"""The command behind the tables of docs/distillation.md, on the smallest recipe there is."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import distillation
from diagonal.evaluation.distilled import StudentPipeline
from diagonal.recipes import find_video
from diagonal.training.judges.stages import JUDGE, READER
from diagonal.training.latents.stages import stages
from diagonal.training.latents.work import Work
from diagonal.training.stages import run
from tests.unit.test_vizdoom import plays

OURS, VIDEOS = distillation.PROMPTS, distillation.VIDEOS
ALL = [spec for method in (OURS, VIDEOS) for table in distillation.compared(method).values() for spec in table.values()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    recipe = replace(find_video("doom_t2v:smoke"), methods=(OURS,))
    work = Work(recipe, tmp_path_factory.mktemp("t2v"), torch.device("cpu"))
    assert all(line for _, line in run(stages(work)))
    return work.folder


def table(folder: Path, monkeypatch: Any, arguments: str) -> Path:
    """Run the command; the path of what it wrote."""
    out = folder.with_name("results") / f"table{arguments[8]}.json"
    fixed = f"distillation.py --work {folder} --recipe doom_t2v:smoke --out {out} --judge-steps 2 --clips 4 --batch 2"
    monkeypatch.setattr("sys.argv", shlex.split(f"{fixed} {arguments}"))
    distillation.main()
    return out


@plays
def test_a_table_has_the_ceiling_the_teacher_and_the_students(folder: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(distillation, "compared", lambda method: {1: {"ours": method}})
    out = table(folder, monkeypatch, "--table 1")
    found, said = json.loads(out.read_text()), capsys.readouterr()
    assert "LPIPS is left out" in said.err and not found["lpips"] and "lpips_teacher" not in found["rows"][2]
    assert [row["label"] for row in found["rows"]] == ["real clips, through the codec", "teacher, 50 steps", "ours"]
    real, teacher, ours = found["rows"]
    assert (teacher["forwards"], teacher["tokens"], ours["forwards"], ours["tokens"]) == (100, 288, 7, 144)
    assert ours["fps"] > 0 and ours["first_frame_ms"] > 0 and teacher["fps"] > 0 and "fps" not in real
    assert ours["frechet_idm"]["low"] <= ours["frechet_idm"]["mean"] <= ours["frechet_idm"]["high"]
    assert found["seeds"] == [0, 1, 2, 3] and found["train_steps"] == 6 and "--table 1" in found["command"]
    assert "val_first_motion" in found["reader"] and "val_accuracy" in found["judge"]
    assert out.with_suffix(".md").exists() and out.with_name("table1-clips.png").exists()


@plays
def test_drift_is_measured_and_drawn(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(distillation, "compared", lambda method: {5: {"ours": method}})
    out = table(folder, monkeypatch, "--table 5 --seconds 10 --long-clips 2")
    found = json.loads(out.read_text())
    assert not found["rows"] and [len(curve) for curve in found["long"][0]["curves"].values()] == [1, 10, 10, 10, 10]
    assert out.with_suffix(".png").exists()


@plays
def test_shorter_training_has_a_folder_of_its_own_and_shares_the_rest(folder: Path, monkeypatch: Any) -> None:
    before = (folder / f"distill-{OURS}" / "model.safetensors").read_bytes()
    out = table(folder, monkeypatch, f"--table 2 --train-steps 2 --only {OURS}")
    short = folder / "steps-2"
    assert (short / "teacher").resolve() == (folder / "teacher").resolve()
    assert json.loads((short / f"distill-{OURS}" / "settings.json").read_text())["steps"] == 2
    assert (folder / f"distill-{OURS}" / "model.safetensors").read_bytes() == before
    assert not out.exists()


@plays
def test_a_student_that_the_table_does_not_have_is_refused(folder: Path, monkeypatch: Any, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        table(folder, monkeypatch, "--table 1 --only nonsense")
    assert "table 1 has no student 'nonsense'; it has causvid, self-forcing," in capsys.readouterr().err


@plays
def test_the_networks_that_judge_are_trained_once(folder: Path, monkeypatch: Any) -> None:
    work = Work(find_video("doom_t2v:smoke"), folder, torch.device("cpu"))
    distillation.load_judges(work, 2, None)
    kept = {stage: (folder / stage / "model.safetensors").stat().st_mtime_ns for stage in (READER, JUDGE)}
    judges = distillation.load_judges(work, 2, None)
    assert not judges.reader.training and judges.lpips is None
    assert {stage: (folder / stage / "model.safetensors").stat().st_mtime_ns for stage in kept} == kept


def test_clips_of_both_halves_are_of_all_scenarios_and_never_the_same() -> None:
    scenarios = ["a"] * 11 + ["b"] * 8
    asked, compared = distillation.halves(scenarios, 6)
    assert asked == [0, 2, 4, 11, 13, 14] and compared == [6, 8, 10, 15, 17, 18]
    with pytest.raises(
        ValueError, match=r"10 clips asked for, 5 of each scenario; half of .* of b are 4: give --clips"
    ):
        distillation.halves(scenarios, 10)


def test_changes_that_change_nothing_are_left_out_of_specs() -> None:
    assert distillation.changed(OURS, schedule="4322222") == distillation.changed(OURS, flow="1") == OURS
    assert distillation.changed(VIDEOS, context="clean", flow="0") == f"{VIDEOS}:context=clean,flow=0"
    assert sum(spec == OURS for spec in distillation.compared(OURS)[4].values()) == 2


@pytest.mark.parametrize(("method", "other"), [(OURS, "with regressions"), (VIDEOS, "without regressions")])
def test_tables_of_a_method_have_the_other_beside_it(method: str, other: str) -> None:
    found = distillation.compared(method)
    for number in (1, 2, 5):
        assert method in found[number].values() and found[number][other] in (OURS, VIDEOS) and len(found[number]) >= 3
        assert found[number][other] != method


@pytest.mark.parametrize("name", ["doom_t2v", "doom_t2v:smoke"])
def test_the_recipe_makes_a_start_for_every_student_of_every_table(name: str) -> None:
    recipe = find_video(name)
    assert set(ALL) <= {*recipe.methods, *recipe.ablations}


def test_every_student_of_every_table_is_a_method_with_the_forwards_of_its_schedule(tmp_path: Path) -> None:
    work = Work(find_video("doom_t2v"), tmp_path, torch.device("cpu"))
    forwards = {spec: StudentPipeline(None, None, work.method(spec).preset).calls(work.shape[0]) for spec in ALL}
    assert (forwards[OURS], forwards["self-forcing"], forwards["causvid"]) == (17, 35, 28)
    assert forwards[distillation.changed(OURS, context="clean")] == 24
    for steps in distillation.SCHEDULES:
        assert forwards[distillation.changed(OURS, schedule=steps)] == sum(map(int, steps))
