"""The whole chain of the text-to-video recipe in the small: from played games to a world that `load` reads."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from diagonal import diffusion
from diagonal.names import find
from diagonal.recipes import Gate, find_video, names
from diagonal.training import video_stages
from diagonal.training.video_stages import Work, check_gate, make
from diagonal.worlds.captions import PLACES
from tests.unit.test_vizdoom import plays

CPU = torch.device("cpu")
METHODS = ("diagonal-distillation", "causvid")
STAGES = ("codec", "teacher", *(f"{kind}-{name}" for name in METHODS for kind in ("ode", "distill")))


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
    assert solving.shape == work.shape and 1.0 in solving.shares
    assert names("video") == ["doom_t2v"] and "doom_t2v" not in names()


def test_unknown_recipes_are_refused() -> None:
    with pytest.raises(ValueError, match="'doom' trains no text-to-video world; recipes that do: doom_t2v"):
        find_video("doom")
    with pytest.raises(ValueError, match="has no size 'huge'; known: full, smoke"):
        find_video("doom_t2v:huge")


@pytest.fixture(scope="module")
def made(tmp_path_factory: Any) -> tuple[Work, Counter[str]]:
    recipe = replace(find_video("doom_t2v:smoke"), methods=METHODS)
    work = Work(recipe, tmp_path_factory.mktemp("t2v"), CPU)
    return work, Counter(stage for stage, _ in make(work))


@plays
def test_all_stages_run_and_leave_what_they_promise(made: tuple[Work, Counter[str]]) -> None:
    work, lines = made
    for stage in STAGES:
        folder = work.folder / stage
        assert lines[stage] and (folder / "curve.jsonl").exists() and (folder / "model.safetensors").exists()
        assert json.loads((folder / "gate.json").read_text())["passed"]
        assert (folder / ("sheet.png" if stage == "codec" else "samples.png")).exists()
    world = diffusion.load("doom-t2v/tiny", work.folder / "world")
    clip = world.generate("walking through a stone maze, then turning left", num_frames=11)
    assert clip.frames.shape == (11, 96, 128, 3)


@plays
def test_what_is_done_is_not_done_again_and_what_is_lost_is_made_the_same(made: tuple[Work, Counter[str]]) -> None:
    work, _ = made
    stage = work.folder / "distill-diagonal-distillation"
    kept = {path: path.stat().st_mtime_ns for path in work.folder.glob("*/checkpoint.pt")}
    before = (stage / "model.safetensors").read_bytes()
    (stage / "model.safetensors").unlink()
    assert not any(name in STAGES for name, _ in make(work))  # the checkpoint is at the end: nothing is trained
    assert (stage / "model.safetensors").read_bytes() == before
    assert {path: path.stat().st_mtime_ns for path in work.folder.glob("*/checkpoint.pt")} == kept
    other = replace(work.recipe, teacher=replace(work.recipe.teacher, lr=1.0))
    with pytest.raises(ValueError, match=r"was begun with lr 0.001, now 1.0"):
        list(make(replace(work, recipe=other)))


@plays
def test_a_gate_stops_the_chain(made: tuple[Work, Counter[str]]) -> None:
    work, _ = made
    strict = replace(work.recipe, codec=replace(work.recipe.codec, gate=Gate("val_psnr", least=60.0)))
    with pytest.raises(ValueError, match=r"codec: val_psnr is .*; the recipe asks for at least 60.0 before the next"):
        list(make(replace(work, recipe=strict)))
    assert not json.loads((work.folder / "codec" / "gate.json").read_text())["passed"]
    check_gate(work.folder / "codec", work.recipe.codec.gate)


def test_a_number_that_is_none_passes_no_gate(tmp_path: Path) -> None:
    (tmp_path / "curve.jsonl").write_text('{"step": 1, "val_motion": NaN}\n')
    with pytest.raises(ValueError, match="val_motion is nan; the recipe asks for at most 2"):
        check_gate(tmp_path, Gate("val_motion", most=2.0))
