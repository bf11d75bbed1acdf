"""The commands on several processes: what a person types, and what is there afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from diagonal.media import video
from tests.processes import ROOT

WORLD = ["--model", "doom/tiny", "--weights", "random", "--dtype", "float32"]
RESULT = ROOT / "benchmarks" / "results" / "2026-11-18-h200-cosmos-12b.json"


def diagonal(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "diagonal", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_two_processes_write_the_clip_of_one_and_one_of_them_says_so(tmp_path: Path) -> None:
    said = {}
    for gpus in ("1", "2"):
        out = f"{gpus}.mp4"
        asked = ["--frames", "1", "--out", out, "--json", "--unsigned", "--tensor-parallel", gpus]
        done = diagonal(tmp_path, "generate", *WORLD, "--temperature", "0", *asked)
        assert done.returncode == 0, done.stderr
        said[gpus] = json.loads(done.stdout)
    assert {path.name for path in tmp_path.glob("*.mp4")} == {"1.mp4", "2.mp4"}
    assert said["1"]["calls"] == said["2"]["calls"]
    assert np.array_equal(video.read(tmp_path / "1.mp4"), video.read(tmp_path / "2.mp4"))


def test_a_number_of_gpus_that_does_not_divide_is_refused_in_one_line(tmp_path: Path) -> None:
    done = diagonal(tmp_path, "generate", *WORLD, "--frames", "1", "--unsigned", "--tensor-parallel", "3")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "3 GPUs cannot share evenly; tensor parallelism takes 2 of them" in done.stderr


def test_a_plan_says_what_each_gpu_holds_and_what_they_sum(tmp_path: Path) -> None:
    asked = ["plan", "--model", "cosmos/12b", "--schedule", "diagonal:k=2,d=10", "--json"]
    alone, two = (json.loads(diagonal(tmp_path, *asked, *more).stdout) for more in ([], ["--tensor-parallel", "2"]))
    assert two["cache_gb"] == alone["cache_gb"] / 2
    assert 0.5 < two["weights_gb"] / alone["weights_gb"] < 0.6  # embedding and head are whole
    assert (two["gpus"], two["sums_per_step"]) == (2, 80) and "gpus" not in alone
    predicted = json.loads(diagonal(tmp_path, *asked, "--measured", str(RESULT)).stdout)
    assert [*predicted["computed_ms"]] == ["2", "4", "8"]
    assert predicted["alone_ms"] / 2 < predicted["computed_ms"]["2"] < predicted["alone_ms"]
