"""Shared fixtures: tiny models, and the recorded reference data."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from safetensors.torch import load_file
from torch import Tensor

GOLDEN = Path(__file__).parent / "golden"

settings.register_profile("diagonal", max_examples=120, deadline=None, derandomize=True)
settings.load_profile("diagonal")


@pytest.fixture(autouse=True, scope="session")
def _threads() -> None:
    """Tests run side by side: one thread each is faster, and sums come out in one order. Commands they call, too."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


def golden(name: str) -> dict[str, Tensor]:
    return load_file(GOLDEN / name)


def golden_json(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())
