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
TIME = 290  # seconds for all cases; alone they take 45


@pytest.fixture(scope="session")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What came of each case. Where several processes run tests, one of them tries all and the others wait for it. All
    are tried once more if one fails: a cluster on a busy machine can be late."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ray"
    shared.mkdir(exist_ok=True)
    with locked(shared):
        place = shared / "outcome.json"
        if not place.exists():
            tried = _tried(shared / "first")
            if late := [f"{case}: {said}" for case, said in tried.items() if said != "done"]:
                sys.stderr.write("\n".join(["tried again on a new cluster:", *late, ""]))
                tried = _tried(shared / "second")
            place.write_text(json.dumps(tried))
    found: dict[str, str] = json.loads(place.read_text())
    return found


def _tried(folder: Path) -> dict[str, str]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    folder.mkdir()
    command = [sys.executable, "-m", "tests.scale.on_a_cluster", str(folder)]
    try:
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=TIME)
    except subprocess.TimeoutExpired:
        return dict.fromkeys(on_a_cluster.CASES, f"not done after {TIME} s")
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"outcome"')]
    if not lines:
        return dict.fromkeys(on_a_cluster.CASES, f"the cluster did not start:\n{done.stderr[-4000:]}")
    tried: dict[str, str] = json.loads(lines[-1])["outcome"]
    return tried


@pytest.mark.parametrize("case", on_a_cluster.CASES)
def test_on_a_local_cluster(outcome: dict[str, str], case: str) -> None:
    assert outcome[case] == "done", outcome[case]
