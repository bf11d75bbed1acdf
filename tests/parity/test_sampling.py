"""Sampling filters against WHAM's recorded ones: its top-p drops the token that crosses p."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diagonal import Sampling
from diagonal.engine.sampler import Sampler, filter_logits
from tests.conftest import golden, golden_json

# keep3 needs a minimum of three kept tokens; t0.01 a clamp of the temperature to 0.1: WHAM's own extras.
CASES = {name: case for name, case in golden_json("wham/sampling_filter.json").items() if "mk" not in case}


@pytest.mark.parametrize("name", CASES)
def test_filters_are_whams(name: str) -> None:
    case: dict[str, Any] = CASES[name]
    data = golden("wham/sampling_filter.safetensors")
    low, high = case["rng"]
    sampling = Sampling(max(case["temp"], 0.1), case.get("top_k"), case.get("top_p"), keep_crossing=False)
    sampler = Sampler(sampling, torch.tensor([[low, high + 1]]), 0, [])
    logits = sampler._valid(data["in.logits"][None].float(), torch.zeros(4, dtype=torch.long))
    ours = filter_logits(logits, sampling)[0]
    theirs = data[f"out.{name}"]
    assert torch.equal(torch.isfinite(ours), torch.isfinite(theirs))
    kept = torch.isfinite(theirs)
    torch.testing.assert_close(ours[kept], theirs[kept], atol=1e-5, rtol=1e-5)
