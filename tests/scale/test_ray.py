"""Sessions on Ray Serve and batches on Ray Data, on one local cluster that is started once for all of these tests."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from diagonal.media.files import locked
from tests.scale import on_a_cluster

if importlib.util.find_spec("ray") is None:
    pytest.skip(
        "Ray is not installed, so nothing was tried on it: pip install 'diagonal[ray]'", allow_module_level=True
    )

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What came of each case. Where several processes run tests, one of them tries all and the others wait for it."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ray"
    shared.mkdir(exist_ok=True)
    with locked(shared):
        place = shared / "outcome.json"
        if not place.exists():
            place.write_text(_tried(shared))
    found: dict[str, str] = json.loads(place.read_text())
    return found


def _tried(folder: Path) -> str:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [sys.executable, "-m", "tests.scale.on_a_cluster", str(folder)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=540)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"outcome"')]
    if not lines:
        return json.dumps(dict.fromkeys(on_a_cluster.CASES, f"the cluster did not start:\n{done.stderr[-4000:]}"))
    return json.dumps(json.loads(lines[-1])["outcome"])


@pytest.mark.parametrize("case", on_a_cluster.CASES)
def test_on_a_local_cluster(outcome: dict[str, str], case: str) -> None:
    assert outcome[case] == "done", outcome[case]
