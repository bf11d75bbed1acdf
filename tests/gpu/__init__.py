"""Kernels against float64, on a CUDA device or, in small, in Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from diagonal.engine.attention import Causal
from diagonal.engine.kernels.device import SWITCH

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RUNNABLE = DEVICE == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"

# How far a bfloat16 result may be off: half of its last bit, and a little for the sum that was rounded. The interpreter
# cuts numbers off where a GPU takes the nearest: there it is the whole bit.
BFLOAT16 = 1.1 * 2**-8 if DEVICE == "cuda" else 1.1 * 2**-7


def logits_errors(model: Any, inputs: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How far the logits of a model in bfloat16 are from those in float32: without kernels, and with them."""
    tokens = torch.randint(model.config.codebook, (1, inputs), device=DEVICE)
    slots = torch.arange(inputs, device=DEVICE)
    with torch.inference_mode():
        monkeypatch.setenv(SWITCH, "0")
        exact = model(tokens, slots, Causal()).double()
        small, found = model.bfloat16(), []
        for switch in ("0", "1"):
            monkeypatch.setenv(SWITCH, switch)
            found.append(small(tokens, slots, Causal()).double())
    return [float((one - exact).norm() / exact.norm()) for one in found]


@contextmanager
def poisoned() -> Iterator[None]:
    """New tensors are full of NaN: what a kernel forgets to write shows."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3, device=DEVICE).new_empty(5).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)
