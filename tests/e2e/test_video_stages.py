"""The whole chain of the text-to-video recipe in the small: from played games to a world that `load` reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from diagonal.catalog.names import find
from diagonal.generation.load import load_video_model
from diagonal.recipes import distillation, find_video, names
from diagonal.training.latents import stages as video_stages
from diagonal.training.latents.stages import distill_name, ode_stage, stages, trajectory_stages
from diagonal.training.latents.work import Work
from diagonal.training.stages import Gate, check_gate, run
from diagonal.worlds.captions import PLACES
from tests.unit.test_vizdoom import plays

CPU = torch.device("cpu")
ABLATION = "distill-diagonal-distillation-schedule-4444444-context-clean-flow-0"
TRAINED = ["codec", "teacher", "ode", "distill-diagonal-distillation-prompts", ABLATION, "distill-causvid"]


@pytest.mark.parametrize("name", ["doom_t2v", "doom-t2v", "doom_t2v:smoke"])
def test_a_recipe_is_complete_and_its_numbers_fit_each_other(name: str, tmp_path: Path) -> None:
    work = Work(find_video(name), tmp_path, CPU)
    recipe, variant = work.recipe, work.variant
    assert variant.vae == recipe.codec.variant and set(recipe.scenarios) <= set(PLACES)
    codec = find("tokenizers", variant.vae)
    assert codec.latent == variant.config.channels and (recipe.clip - 1) % codec.stride == 0
    assert recipe.episode_frames >= recipe.clip >= recipe.codec.clip and recipe.held_out_seed != recipe.seed
    for method in recipe.methods:
        assert work.method(method).scored == work.shape[0]
    solving = video_stages.solving(work)
    assert solving.shape == work.shape and 1.0 in solving.kept
    assert names("video") == ["doom_t2v"] and "doom_t2v" not in names()
    assert names("distill") == ["doom", "doom_t2v"]


def test_unknown_recipes_are_refused() -> None:
    with pytest.raises(ValueError, match="'doom' trains no text-to-video world; recipes that do: doom_t2v"):
        find_video("doom")
    with pytest.raises(ValueError, match="has no size 'huge'; known: full, smoke"):
        find_video("doom_t2v:huge")
    with pytest.raises(ValueError, match="has no size ''"):
        distillation("doom:")


@pytest.mark.parametrize(
    ("spec", "stage"),
    [
        ("self-forcing", "distill-self-forcing"),
        ("diagonal-distillation:schedule=4444444,context=clean,flow=0", ABLATION),
        ("causvid:flow=0.5", "distill-causvid-flow-0.5"),
        ("causvid:schedule=explicit:lists=t1000/t500", "distill-causvid-schedule-explicit-lists-t1000-t500"),
    ],
)
def test_a_method_has_a_folder_of_its_name_and_its_changes(spec: str, stage: str) -> None:
    assert distill_name(spec) == stage


def test_methods_that_cannot_be_are_known_before_the_long_work(tmp_path: Path) -> None:
    recipe = replace(find_video("doom_t2v:smoke"), methods=("diagonal-distillation", "causvid:steps=4"))
    with pytest.raises(ValueError, match=r"says 'steps=4'; it may say schedule=..., context=..., motion="):
        stages(Work(recipe, tmp_path, CPU))
    assert not list(tmp_path.iterdir())


def promised(folder: Path) -> dict[str, int]:
    """The stages of the recipe, each with its total."""
    return {stage.name: stage.steps for stage in distillation("doom:smoke")(folder, CPU, None)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: Any, forked: Callable[..., CompletedProcess[str]]) -> tuple[Work, dict[str, Any]]:
    """The whole chain by its command."""
    folder = tmp_path_factory.mktemp("t2v")
    done = forked(folder, "distill", "--recipe", "doom:smoke", "--out", "made", "--json")
    assert done.returncode == 0, done.stderr
    return Work(find_video("doom_t2v:smoke"), folder / "made", CPU), json.loads(done.stdout)


@plays
def test_all_stages_run_and_leave_what_they_promise(made: tuple[Work, dict[str, Any]]) -> None:
    work, said = made
    steps = promised(work.folder)
    assert [one["stage"] for one in said["stages"]] == TRAINED == [stage for stage in steps if stage in TRAINED]
    for one in said["stages"]:
        assert one["step"] == one["steps"] == steps[one["stage"]]
        folder = work.folder / one["stage"]
        assert (folder / "model.safetensors").exists()
        assert json.loads((folder / "gate.json").read_text())["passed"]
        assert (folder / ("sheet.png" if folder.name == "codec" else "samples.png")).exists()
    world = load_video_model("doom-t2v/tiny", work.folder / "world")
    clip = world.generate("walking through a stone maze, then turning left", num_frames=11)
    assert clip.frames.shape == (11, 96, 128, 3)


@plays
def test_what_is_done_is_not_done_again_and_what_is_lost_is_made_the_same(made: tuple[Work, dict[str, Any]]) -> None:
    work, _ = made
    lost = [work.folder / "distill-diagonal-distillation-prompts" / "model.safetensors"]
    lost += sorted((work.folder / "latents").rglob("*.safetensors"))
    before = [load_file(path) for path in lost]
    kept = {path: path.stat().st_mtime_ns for path in work.folder.glob("*/checkpoint.pt")}
    for path in lost:
        path.unlink()
    last = {stage: line["step"] for stage, line in run(stages(work))}
    # The checkpoints are at the end, so nothing is trained; all else goes to its total, in the order that is promised.
    every = promised(work.folder).items()
    assert list(last.items()) == [(stage, total) for stage, total in every if stage not in TRAINED]
    for path, content in zip(lost, before, strict=True):
        again = load_file(path)
        assert again.keys() == content.keys() and all(torch.equal(again[key], content[key]) for key in content)
    assert {path: path.stat().st_mtime_ns for path in work.folder.glob("*/checkpoint.pt")} == kept
    other = replace(work.recipe, teacher=replace(work.recipe.teacher, lr=1.0))
    with pytest.raises(ValueError, match=r"was begun with lr 0.001, now 1.0"):
        list(run(stages(replace(work, recipe=other))))


@plays
def test_another_method_needs_a_start_at_its_levels(made: tuple[Work, dict[str, Any]]) -> None:
    """One that meets the levels of the others has the same start; with new ones it is refused."""
    work, _ = made
    same = replace(work.recipe, methods=("diagonal-distillation-prompts:guidance=2", *work.recipe.methods[1:]))
    assert not list(run([ode_stage(replace(work, recipe=same))]))
    new = replace(work, recipe=replace(work.recipe, methods=(*work.recipe.methods, "self-forcing:schedule=9")))
    with pytest.raises(ValueError, match="was made of other prompts or in another way"):
        list(run(trajectory_stages(new)))
    with pytest.raises(ValueError, match="ode was begun with levels"):
        list(run([ode_stage(new)]))


@plays
def test_a_gate_stops_the_chain(made: tuple[Work, dict[str, Any]]) -> None:
    work, _ = made
    strict = replace(work.recipe, codec=replace(work.recipe.codec, gate=Gate("val_psnr", least=60.0)))
    with pytest.raises(ValueError, match=r"codec: val_psnr is .*; the recipe asks for at least 60.0 before the next"):
        list(run(stages(replace(work, recipe=strict))))
    assert not json.loads((work.folder / "codec" / "gate.json").read_text())["passed"]
    check_gate(work.folder / "codec", work.recipe.codec.gate)


def test_a_number_that_is_none_passes_no_gate(tmp_path: Path) -> None:
    (tmp_path / "curve.jsonl").write_text('{"step": 1, "val_motion": NaN}\n')
    with pytest.raises(ValueError, match="val_motion is nan; the recipe asks for at most 2"):
        check_gate(tmp_path, Gate("val_motion", most=2.0))
