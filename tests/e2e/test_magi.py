"""MAGI-1 through the commands: videos of a text, a picture and a clip, its plan, its place in the list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import diagonal
from diagonal.catalog.names import find
from diagonal.media import video
from diagonal.server.asked import longest, nearest
from tests.e2e.conftest import call, numbers_of

pytestmark = pytest.mark.usefixtures("forked")
SHORT = ("--model", "magi/tiny", "--num-frames", "48", "--schedule", "4", "--dtype", "float32", "--unsigned", "--json")
QUIET = ("--no-watermark", "--scale", "1")


def made(folder: Path, *arguments: str) -> dict[str, Any]:
    return numbers_of(call(folder, "video", *SHORT, *QUIET, "--prompt", "a red cat", *arguments))


def test_a_prompt_becomes_chunks_of_a_second(tmp_path: Path) -> None:
    numbers = made(tmp_path, "--seed", "4")
    frames = video.read(tmp_path / "out.mp4")
    assert frames.shape == (48, 32, 48, 3)
    assert numbers["preset"] == "magi-distilled" and numbers["schedule"].startswith("quadratic:steps=4,lag=1")
    assert (numbers["calls"], numbers["frames"], numbers["given_frames"]) == (5, 48, 0)
    library = diagonal.load("magi/tiny").generate("a red cat", num_frames=48, schedule="4", seed=4).frames
    with video.writer(tmp_path / "library.mp4", 24) as file:
        file.write(np.asarray(library))
    assert np.array_equal(frames, video.read(tmp_path / "library.mp4"))


def test_a_picture_and_a_clip_begin_a_video(tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(256, size=(32, 48, 3), dtype=np.uint8)
    Image.fromarray(picture).save(tmp_path / "picture.png")
    assert made(tmp_path, "--image", "picture.png")["frames"] == 48
    with video.writer(tmp_path / "clip.mp4", 24) as file:
        file.write(np.stack([picture] * 30))
    numbers = made(tmp_path, "--video", "clip.mp4", "--prompt-frames", "28", "--num-frames", "72", "--preset", "magi")
    assert (numbers["frames"], numbers["given_frames"]) == (44, 28)
    assert len(video.read(tmp_path / "out.mp4")) == 72
    refused = call(tmp_path, "video", *SHORT, *QUIET, "--prompt", "a", "--video", "clip.mp4", "--num-frames", "72")
    assert refused.returncode and "1 or 4n are needed: 28 or 32" in refused.stderr


def test_special_tokens_come_from_a_file(tmp_path: Path) -> None:
    rows = torch.randn(9, 48, generator=torch.Generator().manual_seed(0))
    save_file({"duration": rows[:8].clone(), "hq": rows[8:].clone()}, tmp_path / "tokens.safetensors")
    made(tmp_path, "--out", "plain.mp4")
    made(tmp_path, "--out", "told.mp4", "--special-tokens", "tokens.safetensors")
    plain, told = (video.read(tmp_path / f"{name}.mp4") for name in ("plain", "told"))
    assert not np.array_equal(plain, told)
    refused = call(tmp_path, "video", *SHORT, *QUIET, "--prompt", "a", "--special-tokens", "none.npz")
    assert refused.returncode and "special tokens 'none.npz' do not exist" in refused.stderr


def test_the_plan_has_every_chunk_and_the_memory_of_one_finished_one(tmp_path: Path) -> None:
    plan = ("plan", "--model", "magi/4.5b", "--num-frames", "120", "--json")
    numbers = numbers_of(call(tmp_path, *plan))
    assert [chunk["calls"] for chunk in numbers["chunks"]] == [192, 48, 48, 48, 16]
    assert (numbers["calls"], numbers["most_chunks"], numbers["pipeline"]) == (352, 5, "guided")
    assert numbers["cache_gb"] == pytest.approx(12150 * 2 * 34 * 8 * 128 * 2 / 1e9)
    assert 8.9 < numbers["transformer_gb"] < 9.0
    one = numbers_of(call(tmp_path, *plan, "--preset", "magi-distilled", "--schedule", "quadratic:steps=16,lag=16"))
    assert one["calls"] == 80 and one["most_chunks"] == 2
    assert one["cache_gb"] == pytest.approx(4 * numbers["cache_gb"])


def test_the_server_s_lengths_are_those_of_whole_chunks() -> None:
    variant = find("models", "magi/tiny")
    assert [nearest(variant, frames) for frames in (1, 30, 40, 100)] == [24, 24, 48, 96]
    assert [longest(variant, most) for most in (24, 71, 72)] == [24, 48, 72]
