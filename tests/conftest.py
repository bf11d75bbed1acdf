"""Shared fixtures: tiny models, the recorded reference data, and a machine for kernels in CUDA C++."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from safetensors.torch import load_file
from torch import Tensor

from tests.cuda_on_cpu import Machine
from tests.cuda_on_cpu.compiler import AVAILABLE

# The key that videos are signed with lies here: nothing is written into the home of whoever runs the tests. Commands
# that tests call see it too.
os.environ["DIAGONAL_CONFIG"] = tempfile.mkdtemp(prefix="diagonal-tests-")
atexit.register(shutil.rmtree, os.environ["DIAGONAL_CONFIG"], ignore_errors=True)

GOLDEN = Path(__file__).parent / "golden"

settings.register_profile("diagonal", max_examples=120, deadline=None, derandomize=True)
settings.load_profile("diagonal")


IN_REAL_TIME = ("server/", "e2e/test_play.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that wait for browsers, sockets, terminals and other processes may try once more: on a machine that is busy
    with something else each of these can be late. The summary counts such tries. All other tests have one."""
    for item in items:
        place = item.path.relative_to(Path(__file__).parent).as_posix()
        if place.startswith(IN_REAL_TIME):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(autouse=True, scope="session")
def _threads() -> None:
    """Tests run side by side: one thread each is faster, and sums come out in one order. Commands they call, too."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """What kernels in CUDA C++ run on in this test: a CPU. New tensors are NaN, so what nobody writes shows, and is
    not what was there before."""
    if not AVAILABLE:
        pytest.skip("needs g++")
    session = tmp_path_factory.getbasetemp()
    folder = (session.parent if "PYTEST_XDIST_WORKER" in os.environ else session) / "kernels"
    folder.mkdir(exist_ok=True)
    found = Machine(folder)
    found.install(monkeypatch)
    torch.use_deterministic_algorithms(True, warn_only=True)  # with them torch fills what is empty
    yield found
    torch.use_deterministic_algorithms(False)


def golden(name: str) -> dict[str, Tensor]:
    return load_file(GOLDEN / name)


def golden_json(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())
