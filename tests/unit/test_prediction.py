"""What tensor parallelism should take: arithmetic on a measured step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from diagonal.catalog.names import find
from diagonal.scale.prediction import LATENCY_US, LINK_GBS, Sums, divided, measured

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_sums_are_two_a_layer_of_the_width_of_the_model() -> None:
    made = divided("cosmos/12b", find("models", "cosmos/12b"), inputs=10, dtype=torch.bfloat16, world=2)
    assert (made.sums.count, made.sums.bytes_each) == (80, 10 * 5120 * 2)
    assert made.sums.bytes_in_all == 80 * 10 * 5120 * 2
    text = divided("cosmos/13b", find("models", "cosmos/13b"), inputs=1, dtype=torch.bfloat16, world=2)
    assert text.sums.count == 120


def test_the_head_is_read_whole_by_every_gpu() -> None:
    variant = find("models", "mcar/300m")
    made = divided("mcar/300m", variant, inputs=1, dtype=torch.bfloat16, world=4)
    config = variant.config
    head = config.vocab * config.width
    layer = config.width * (2 * config.heads * 64 + 2 * config.kv_heads * 64 + 3 * config.mlp)
    norms = (2 * config.layers + 1) * config.width
    expected = (head + norms + config.layers * layer / 4) / (head + norms + config.layers * layer)
    assert made.weights == pytest.approx(expected)


def test_a_step_is_its_share_of_the_weights_and_its_sums() -> None:
    sums = Sums(80, 500e3)
    assert sums.milliseconds(2) == pytest.approx(80 * (LATENCY_US / 1e3 + 500e3 / (LINK_GBS * 1e9) * 1e3))
    made = divided("cosmos/12b", find("models", "cosmos/12b"), inputs=1, dtype=torch.bfloat16, world=2)
    assert made.step_ms(7.0) == pytest.approx(7.0 * made.weights + made.sums.milliseconds(2))


def test_small_models_are_not_worth_it_and_large_ones_are() -> None:
    """As computed: MC-AR 300M slower on two GPUs, Cosmos 12B half as fast again."""
    found = {}
    for name, schedule in (("mcar/300m", "diagonal:k=1"), ("cosmos/12b", "diagonal:k=2,d=10")):
        alone = measured(RESULTS / f"2026-11-18-h200-{name.replace('/', '-')}.json", name, schedule)
        found[name] = alone / divided(name, find("models", name), 10, torch.bfloat16, 2).step_ms(alone)
    assert found["mcar/300m"] < 1 < 1.4 < found["cosmos/12b"] < 2


def test_results_that_say_nothing_of_one_gpu_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    case = {"model": "doom", "schedule": "raster", "ms_per_step": 1.0}
    path.write_text(json.dumps({"cases": [case]}))
    assert measured(path, "doom", "raster") == 1.0
    with pytest.raises(ValueError, match="holds doom under raster; diagonal:k=1 is planned"):
        measured(path, "doom", "diagonal:k=1")
    with pytest.raises(ValueError, match="holds nothing of mcar/tiny"):
        measured(path, "mcar/tiny", "raster")
    path.write_text(json.dumps({"cases": [case], "tensor_parallel": 2}))
    with pytest.raises(ValueError, match="measured on several GPUs"):
        measured(path, "doom", "raster")
    for text in ("[]", "{", '{"cases": [{}]}'):
        path.write_text(text)
        with pytest.raises(ValueError, match="no result of `diagonal bench --out`"):
            measured(path, "doom", "raster")
