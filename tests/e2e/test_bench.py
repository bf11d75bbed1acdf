"""`diagonal bench` as people use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

COMMAND = str(Path(sys.executable).with_name("diagonal"))
ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1"}
ENVIRONMENT.pop("FORCE_COLOR", None)
TABLE = Path(__file__).parents[2] / "benchmarks" / "table.py"
FIELDS = [  # that others rely on
    "model",
    "parameters",
    "weights",
    "schedule",
    "frames",
    "steps",
    "tokens_per_step",
    "max_tokens_per_step",
    "ms_per_step",
    "p95_ms",
    "prefill_ms",
    "floor_ms",
    "floor_ratio",
    "tokens_per_second",
    "fps",
    "fps_with_tokenizer",
    "first_frame_ms",
    "warmup_s",
    "peak_gb",
    "bandwidth_gbs",
    "device",
    "driver",
    "dtype",
    "quantize",
    "torch",
    "commit",
]


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [COMMAND, "bench", *arguments]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)


def bench(folder: Path, *arguments: str) -> dict[str, Any]:
    done = call(folder, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    numbers: dict[str, Any] = json.loads(done.stdout)
    return numbers


def test_schedules_are_measured_written_drawn_and_tabulated(tmp_path: Path) -> None:
    files = ["--out", "bench.json", "--picture", "bench.png"]
    settings = ["--model", "cosmos/tiny", "--dtype", "float32", "--frames", "16", "--repeat", "2"]
    numbers = bench(tmp_path, *settings, "--schedule", "raster", "--schedule", "diagonal:k=2,d=2", *files)
    assert json.loads((tmp_path / "bench.json").read_text()) == numbers
    assert numbers["kind"] == "bench" and "floor_ms" in numbers["definition"]
    raster, diagonal = numbers["cases"]
    assert (raster["steps"], diagonal["steps"]) == (48, 2 + 3 * 2 + 6)
    for case in (raster, diagonal):
        assert set(FIELDS) <= set(case)
        assert all(case[field] is not None for field in FIELDS if field not in ("peak_gb", "driver"))
        assert case["frames"] == 16 and case["tokens_per_step"] == pytest.approx(48 / case["steps"])
        assert case["fps"] == pytest.approx(1e3 * case["frames"] / (case["steps"] * case["mean_ms"]))
        assert case["fps_with_tokenizer"] > 0  # timed apart, so beside other load it may even beat the steps alone
        assert case["floor_ratio"] == pytest.approx(case["ms_per_step"] / case["floor_ms"])
    assert np.asarray(Image.open(tmp_path / "bench.png")).std() > 1
    made = subprocess.run(
        [sys.executable, TABLE, tmp_path], env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )
    assert made.returncode == 0 and "`diagonal:k=2,d=2`" in made.stdout
    (tmp_path / "page.md").write_text("<!-- bench -->\n<!-- /bench -->\n")
    command = [sys.executable, str(TABLE), str(tmp_path), "--into", str(tmp_path / "page.md")]
    assert subprocess.run(command, env=ENVIRONMENT, capture_output=True, timeout=120).returncode == 0
    assert made.stdout.strip() in (tmp_path / "page.md").read_text()
    refused = subprocess.run(
        [sys.executable, TABLE, tmp_path / "none"], env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )
    assert refused.returncode == 2 and "no results" in refused.stderr


def test_two_settings_take_turns_and_few_steps_are_said_to_be_few(tmp_path: Path) -> None:
    settings = ["--model", "mcar/tiny", "--steps", "5", "--repeat", "2", "--no-tokenizer", "--dtype", "float32"]
    numbers = bench(tmp_path, *settings, "--compare", "schedule=raster dtype=bfloat16", "schedule=diagonal:k=1")
    raster, diagonal = numbers["cases"]
    assert (raster["dtype"], diagonal["dtype"]) == ("bfloat16", "float32")
    assert raster["derived"] and raster["steps"] == 15 * 336 and raster["measured_steps"] == 5
    assert raster["fps_with_tokenizer"] is None and raster["first_frame_ms"] is None
    assert numbers["compare"]["speedup"] == pytest.approx(diagonal["fps"] / raster["fps"])
    assert len(numbers["compare"]["speedup_by_repeat"]) == 2
    assert os.listdir(tmp_path) == []


def test_all_frames_at_once_are_measured_too(tmp_path: Path) -> None:
    size = ["--height", "32", "--width", "48", "--frames", "9", "--decoder", "none"]
    (case,) = bench(tmp_path, "--model", "wan/tiny", "--preset", "wan", *size, "--repeat", "1")["cases"]
    assert (case["preset"], case["steps"], len(case["by_chunk_ms"])) == ("wan", 100, 1)
    assert case["fps"] == pytest.approx(9e3 / (100 * case["mean_ms"])) and case["floor_ms"] > 0


@pytest.mark.parametrize(("kind", "least", "kl"), [("int8", 0.9, 1e-3), ("fp8", 0.9, 2e-3)])
def test_quantised_weights_are_measured_beside_the_others_with_their_agreement(
    tmp_path: Path, kind: str, least: float, kl: float
) -> None:
    settings = ["--model", "mcar/tiny", "--steps", "5", "--repeat", "1", "--no-tokenizer", "--dtype", "float32"]
    numbers = bench(tmp_path, *settings, "--compare", "quantize=none", f"quantize={kind}")
    usual, small = numbers["cases"]
    assert (usual["quantize"], small["quantize"]) == ("none", kind)
    assert usual["parameters"] == small["parameters"] and small["floor_ms"] < usual["floor_ms"]
    assert "greedy_agreement" not in usual and "greedy_agreement" in numbers["definition"]
    assert least < small["greedy_agreement"] <= 1 and small["agreement_positions"] == 501
    assert 0 < small["agreement_kl"] < kl
    done = call(tmp_path, *settings, "--quantize", kind)
    assert done.returncode == 0, done.stderr
    assert f"float32/{kind}" in done.stdout and "of 501 most likely tokens are those of float32 weights" in done.stdout


def test_the_printed_result_says_what_its_numbers_mean(tmp_path: Path) -> None:
    done = call(tmp_path, "--model", "cosmos/tiny", "--frames", "8", "--repeat", "1", "--steps", "3", "--no-tokenizer")
    assert done.returncode == 0, done.stderr
    for words in ("diagonal:k=1", "random weights", "3 of 9 steps measured", "floor_ratio", "ms_per_step / floor_ms"):
        assert words in done.stdout
    assert "random weights" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--schedule", "spiral"], ["'spiral'", "raster"]),
        (["--compare", "k=1", "schedule=raster"], ["'k=1'", "schedule=... or dtype=..."]),
        (["--compare", "schedule=raster", "dtype=int3"], ["'int3'", "bfloat16"]),
        (["--quantize", "int4"], ["'int4'", "'int8', 'fp8'"]),
        (["--compare", "quantize=none", "quantize=int3"], ["'int3'", "'int8', 'fp8'"]),
        (["--schedule", "raster", "--schedule", "diagonal:k=1", "--compare", "dtype=float32", ""], ["one --schedule"]),
        (["--device", "cuda"], ["no CUDA GPU", "cpu"]),
        (["--device", "mps"], ["'mps'", "cpu and cuda"]),
        (["--out", "bench.txt"], ["bench.txt", ".json"]),
        (["--picture", "none/bench.png"], ["none", "does not exist"]),
        (["--frames", "7"], ["7 new frames", "8"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line_and_nothing_is_written(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    import torch

    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = call(tmp_path, "--model", "cosmos/tiny", *arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr and not done.stdout
    line = done.stderr.rstrip().splitlines()[-1]
    assert line.startswith("error: ") and all(word in line for word in words), line
    assert os.listdir(tmp_path) == []


def test_sessions_whose_calls_nobody_can_tell_are_refused(tmp_path: Path) -> None:
    done = call(tmp_path, "--model", "mcar/tiny", "--sessions", "2", "--schedule", "lossless")
    assert done.returncode == 2
    assert "random weights" in (line := done.stderr.rstrip().splitlines()[-1]) and "raster" in line
