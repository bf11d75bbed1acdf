"""EfficientNet-Lite0 against the package that publishes its file, and the proxies that look through it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from diagonal.evaluation.consistency import consistency
from diagonal.evaluation.metrics import Setting, Video
from diagonal.evaluation.metrics.consistency_efficientnet import ConsistencyEfficientnet
from diagonal.evaluation.metrics.fd_efficientnet import WEIGHTS, FdEfficientnet
from diagonal.evaluation.metrics.mmd_efficientnet import MmdEfficientnet
from tests import made_weights
from tests.conftest import golden, golden_json

FACTS = golden_json("metrics/efficientnet.json")
FOUND = golden("metrics/efficientnet.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file in its published layout."""
    state = made_weights.weights(FACTS["manifest"], FACTS["weights"]["rules"])
    assert made_weights.crc32(state) == FACTS["weights"]["check"]
    path = tmp_path_factory.mktemp("weights")
    torch.save(state, path / WEIGHTS.name)
    return path


@pytest.fixture(scope="module")
def video() -> Video:
    return Video(made_weights.clip("efficientnet:a", 2, 224, 224))


@pytest.mark.parametrize("variant", ["frames", "differences"])
def test_features_are_those_of_the_reference(folder: Path, video: Video, variant: str) -> None:
    for kind in (FdEfficientnet, MmdEfficientnet):
        seen = kind(Setting(variant, folder)).look(video, None)
        # Features up to 6 in single precision, which processors round apart.
        np.testing.assert_allclose(seen, FOUND[f"a.{variant}"].numpy(), atol=FACTS["tolerance"], rtol=1e-5)


def test_consistency_is_vbench_s_formula_on_them(folder: Path, video: Video) -> None:
    metric = ConsistencyEfficientnet(Setting(folder=folder))
    expected = consistency(FOUND["a.frames"])
    seen = metric.look(video, None)
    np.testing.assert_allclose(seen, expected, atol=1e-6)
    assert metric.total([seen, seen], []).mean == pytest.approx(expected.mean())


@pytest.mark.parametrize("kind", [FdEfficientnet, MmdEfficientnet])
def test_distances_grow_with_what_is_added(folder: Path, kind: type[FdEfficientnet | MmdEfficientnet]) -> None:
    """A few features suffice to see the formula."""
    metric = kind(Setting("frames", folder))
    generator = np.random.default_rng(0)
    real = [generator.normal(1, 1, (6, 5)) for _ in range(8)]
    zero, near, far = (metric.total([one + shift for one in real], real) for shift in (0, 0.2, 1))
    assert zero.mean == pytest.approx(0, abs=1e-6) and zero.mean < near.mean < far.mean
    assert near.low <= near.mean <= near.high
