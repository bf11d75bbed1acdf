"""Sampling filters against WHAM's recorded ones: its top-p drops the token that crosses p."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diagonal import Sampling
from diagonal.engine.sampler import valid_logits, weights
from tests.conftest import golden, golden_json

# keep3 needs a minimum of three kept tokens; t0.01 a clamp of the temperature to 0.1: WHAM's own extras.
CASES = {name: case for name, case in golden_json("wham/sampling_filter.json").items() if "mk" not in case}


@pytest.mark.parametrize("name", CASES)
def test_filters_are_whams(name: str) -> None:
    case: dict[str, Any] = CASES[name]
    data = golden("wham/sampling_filter.safetensors")
    low, high = case["rng"]
    sampling = Sampling(max(case["temp"], 0.1), case.get("top_k"), case.get("top_p"), keep_crossing=False)
    logits = valid_logits(data["in.logits"].double(), torch.tensor([low]), torch.tensor([high + 1]))
    # In float64 every kept id has a weight above 0, even at low temperatures.
    ours, theirs = weights(logits, sampling), data[f"out.{name}"].double()
    assert torch.equal(ours > 0, torch.isfinite(theirs))
    torch.testing.assert_close(ours / ours.sum(-1, keepdim=True), theirs.softmax(-1), atol=0, rtol=1e-4)
