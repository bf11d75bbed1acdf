"""What the clips of docs/doom.md show, against what schedules cost them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diagonal.evaluation.rollouts import Clips
from diagonal.recipes.questions import measured_clips
from diagonal.recipes.questions.measured_clips import COSTS, RESULTS

ROOT = Path(__file__).parents[2]


def kept(stage: str) -> Any:
    return json.loads((ROOT / RESULTS / f"{stage}.json").read_text())


def test_every_cost_is_kept_clip_by_clip_in_the_results() -> None:
    for stage, order in COSTS.values():
        values = {row["schedule"]: row["lpips_of_clips"] for row in kept(stage)["rows"]}
        assert len(values[order]) == len(values["raster"]) == 256


def test_thirds_and_correlations_follow_from_the_clips() -> None:
    motion = np.linspace(0, 1, 60)
    flat = np.random.default_rng(0).normal(size=60)
    numbers = {"motion": motion.tolist(), "sharpness": flat.tolist(), "turning": flat[::-1].tolist()}
    numbers |= {name: (0.1 * motion).tolist() for name in COSTS}
    some = list(range(0, 60, 4))
    falling = [-float(one) for one in some]
    missed: dict[str, Any] = {"clips": some, "k=1": falling, "k=1,d=12": falling[::-1]}
    found = {row["content"]: row for row in measured_clips.rows(numbers, missed)}
    cost = "shipped, k=1"
    assert found["all clips of docs/doom.md"][cost].mean == pytest.approx(0.05)
    assert found["the fast third"][cost].mean - found["the still third of them"][cost].mean == pytest.approx(
        0.0678, abs=1e-3
    )
    assert found["rank correlation with motion"][cost].mean == pytest.approx(1)
    assert found["rank correlation with attention that k=1 misses"][cost].mean == pytest.approx(-1)
    assert "shipped, k=1,d=12" in found["rank correlation with attention that k=1,d=12 misses"]
    assert not [name for name in (row["content"] for row in measured_clips.rows(numbers, None)) if "attention" in name]


def test_other_clips_than_those_that_were_measured_are_refused() -> None:
    frames = torch.randint(256, (4, 6, 3, 96, 128), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"these are not the clips of .*18\.179"):
        measured_clips._check(Clips(frames, torch.zeros(4, 5, dtype=torch.long), 4), kept("references"))


def test_results_that_are_not_there_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="run this from the project's folder"):
        measured_clips.measure(tmp_path, 1, tmp_path / "nowhere")
