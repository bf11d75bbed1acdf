"""Formulas of metrics against what their reference implementations gave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diagonal.evaluation import vbench
from diagonal.evaluation.consistency import consistency, frame_weighted
from diagonal.evaluation.distances import frechet, polynomial_mmd
from diagonal.evaluation.metrics import Setting, Video, kvd
from diagonal.evaluation.metrics.psnr import psnr
from diagonal.evaluation.metrics.ssim import ssim
from diagonal.evaluation.metrics.temporal_flickering import TemporalFlickering
from tests import made_weights
from tests.conftest import golden, golden_json

RECORDED = golden_json("metrics/formulas.json")


def features(case: str) -> tuple[Tensor, Tensor]:
    """Features of generated and of real clips."""
    if case != "full":
        found = golden("metrics/formulas.safetensors")
        return found[f"{case}.fake"], found[f"{case}.real"]
    real, fake, mix = (
        made_weights.uniform(f"fvd:full:{part}", n, 400) for part, n in (("real", 640), ("fake", 640), ("mix", 400))
    )
    mixed = (1.5 * fake + 0.25) @ (np.eye(400) + 0.5 * mix / 20)
    return torch.from_numpy(mixed.astype(np.float32)), torch.from_numpy((2 * real).astype(np.float32))


def test_the_rule_makes_the_features_that_were_recorded():
    torch.testing.assert_close(
        features("full")[0][::64, ::40], golden("metrics/formulas.safetensors")["full.fake_sample"]
    )


@pytest.mark.parametrize(("case", "within"), [("small", 1e-9), ("singular", 1e-6), ("full", 1e-9)])
@pytest.mark.parametrize(("correction", "name"), [(1, "common_styleganv_unbiased_sqrtm"), (0, "cdfvd_biased_sqrtm")])
def test_frechet_is_that_of_the_matrix_root(case: str, within: float, correction: int, name: str):
    expected = RECORDED["frechet_and_kernel"][case][name]
    assert frechet(*features(case), correction) == pytest.approx(expected, rel=within)


@pytest.mark.parametrize("case", ["small", "singular", "full"])
@pytest.mark.parametrize("name", ["videogpt_float32_svd", "tats_float32_svd"])
def test_frechet_meets_those_of_single_precision_as_far_as_they_go(case: str, name: str):
    expected = RECORDED["frechet_and_kernel"][case][name]
    assert frechet(*features(case)) == pytest.approx(expected, rel=RECORDED["tolerance"]["frechet_float32_relative"])


@pytest.mark.parametrize("case", ["small", "singular", "full"])
def test_the_unbiased_cubic_kernel_is_that_of_tats(case: str):
    expected = RECORDED["frechet_and_kernel"][case]["tats_polynomial_mmd_unbiased_degree3"]
    assert polynomial_mmd(*features(case), 3, 1, unbiased=True) == pytest.approx(expected, rel=1e-4)


def test_tats_own_kernel_distance_sees_clips_as_tats_does(monkeypatch: pytest.MonkeyPatch):
    shown: list[str] = []
    monkeypatch.setattr(kvd, "Features", lambda setting: shown.append(setting.variant))
    made, real = features("small")
    seen = [[one.double().numpy() for one in part.split(1)] for part in (made, real)]
    found = kvd.Kvd(Setting("tats-own")).total(*seen)
    assert shown == ["tats"] and found.mean == polynomial_mmd(made, real, 3, 1, unbiased=True)


@pytest.mark.parametrize("case", ["small", "singular", "full"])
def test_jedi_is_a_hundred_times_the_quadratic_kernel_distance(case: str):
    expected = RECORDED["frechet_and_kernel"][case]["jedi"]
    assert 100 * polynomial_mmd(*features(case)) == pytest.approx(expected, rel=1e-6)


def test_psnr_and_ssim_are_those_of_common_metrics():
    found = golden("metrics/formulas.safetensors")
    made, true = (found[f"pixel.{one}"].permute(0, 3, 1, 2) for one in "ab")
    assert psnr(made, true).tolist() == pytest.approx(RECORDED["pixel"]["psnr_per_frame"], abs=1e-4)
    assert ssim(made, true).tolist() == pytest.approx(RECORDED["pixel"]["ssim_per_frame"], abs=1e-6)


def test_flicker_is_that_of_vbench():
    frames = made_weights.clip("flicker:a", 6, 20, 28)
    assert torch.equal(frames, golden("metrics/formulas.safetensors")["flicker.frames"].permute(0, 3, 1, 2))
    metric = TemporalFlickering(Setting())
    seen = metric.look(Video(frames), None)
    assert metric.total([seen], []).mean == pytest.approx(RECORDED["flicker"]["score"], abs=1e-6)


def test_consistency_is_that_of_vbench_in_one_process_and_in_several():
    found, expected = golden("metrics/formulas.safetensors"), RECORDED["consistency"]
    clips = [consistency(found[f"consistency.v{number}"]) for number in (1, 2)]
    assert [one.mean() for one in clips] == pytest.approx(expected["per_clip"], abs=1e-6)
    assert frame_weighted(clips).mean == pytest.approx(expected["one_process"], abs=1e-6)
    assert np.mean([one.mean() for one in clips]) == pytest.approx(expected["several_processes"], abs=1e-6)


@pytest.mark.parametrize("case", RECORDED["totals"], ids=lambda case: case["case"])
def test_totals_are_those_of_vbench(case: dict[str, Any]):
    given = {name: score for name, score in case["scores"].items() if score}
    found = vbench.totals(given)
    expected = case["quality"], case["semantic"], case["total"]
    assert (found.quality, found.semantic, found.total) == pytest.approx(expected, rel=1e-12)
    assert set(vbench.missing(given)) == case["scores"].keys() - given.keys()
