"""SkyReels-V2 and lags from the command line: videos, plans, pictures of plans, refusals before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from tests.e2e.conftest import numbers_of

TINY = ("video", "--model", "skyreels/tiny", "--prompt", "a red cat", "--height", "32", "--width", "32", "--json")
PLAN = ("plan", "--model", "skyreels/1.3b")


def test_a_video_is_made_under_the_models_own_preset(tmp_path: Path, forked) -> None:
    numbers = numbers_of(
        forked(tmp_path, *TINY, "--unsigned", "--no-watermark", "--num-frames", "37", "--num-inference-steps", "4")
    )
    assert (numbers["preset"], numbers["calls"], numbers["frames"]) == ("skyreels-full", 16, 37)


def test_a_plan_has_both_caches_and_the_calls_of_guidance(tmp_path: Path, forked) -> None:
    cached = json.loads(forked(tmp_path, *PLAN, "--preset", "skyreels", "--json").stdout)
    whole = json.loads(forked(tmp_path, *PLAN, "--json").stdout)
    assert cached["calls"] == whole["calls"] == 100 and cached["most_chunks"] == 5
    assert [chunk["calls"] for chunk in cached["chunks"]] == [60, 10, 10, 10, 10]
    assert round(cached["cache_gb"], 1) == 18.8 and whole["cache_gb"] == 0 and whole["preset"] == "skyreels-full"
    assert [chunk["keys"] for chunk in whole["chunks"]] == [51_000] * 5
    long = json.loads(forked(tmp_path, *PLAN, "--preset", "skyreels", "--frames", "257", "--json").stdout)
    assert len(long["chunks"]) == 13 and long["cache_gb"] == cached["cache_gb"]
    assert long["calls"] == 100 + 2 * (2 * (1 + 30 + 3 * 5))


def test_a_plan_draws_chunks_against_calls(tmp_path: Path, forked) -> None:
    done = forked(tmp_path, "plan", "--model", "wan/1.3b", "--schedule", "4322222", "--picture", "wave.png")
    assert done.returncode == 0, done.stderr
    assert "0 0123\n1     012\n2        01\n" in done.stdout and "chunks downwards" in done.stdout
    with Image.open(tmp_path / "wave.png") as image:
        assert image.width > 400
    done = forked(tmp_path, "plan", "--model", "wan/1.3b", "--schedule", "diagonal:lag=1")
    assert "0 0123\n1  012\n2   01\n" in done.stdout and "81 frames, 8 model calls" in done.stdout


def test_what_cannot_be_is_refused_in_words(tmp_path: Path, forked) -> None:
    cases = {
        ("--num-frames", "121"): "the nearest is 117 or 137",
        ("--num-frames", "37", "--schedule", "diagonal"): "take a number of steps",
        ("--num-frames", "37", "--prompt-at", "1:a dog"): "prompt_at given",
    }
    for options, words in cases.items():
        done = forked(tmp_path, *TINY, *options)
        assert done.returncode == 2 and words in " ".join(done.stderr.split()), (options, done.stderr)
    done = forked(tmp_path, "video", "--model", "skyreels/14b", "--prompt", "a cat")
    assert done.returncode == 2 and "Skywork/SkyReels-V2-DF-14B-540P" in " ".join(done.stderr.split())
