"""LPIPS with its real weights against package lpips. The file is no part of the project: DIAGONAL_METRIC_WEIGHTS names
the folder that has it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from diagonal.evaluation.metrics import Setting, Video
from diagonal.evaluation.metrics.lpips import WEIGHTS, Lpips
from tests import made_weights
from tests.conftest import golden_json

FACTS = golden_json("metrics/lpips.json")
FOLDER = os.environ.get("DIAGONAL_METRIC_WEIGHTS")


@pytest.fixture(scope="module")
def folder() -> Path:
    if FOLDER is None or not (Path(FOLDER) / WEIGHTS.name).is_file():
        pytest.skip(f"DIAGONAL_METRIC_WEIGHTS names no folder with {WEIGHTS.name}: {WEIGHTS.where}")
    assert hashlib.sha256((Path(FOLDER) / WEIGHTS.name).read_bytes()).hexdigest() == FACTS["weights_sha256"]
    return Path(FOLDER)


@pytest.mark.parametrize("case", FACTS["distances"])
def test_distances_are_those_of_the_package(folder: Path, case: str) -> None:
    pair, variant = case.split(".")
    first, second = (made_weights.clip(f"lpips:{name}", 4, 64, 80) for name in "ab")
    true = second[:3] if pair == "other" else first[1:]
    found = Lpips(Setting(variant, folder)).look(Video(first[:3]), Video(true))
    assert found.tolist() == pytest.approx(FACTS["distances"][case], abs=FACTS["tolerance"])
