"""The embedded text-to-video world as a user meets it: in the package, following its prompts, streaming."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

import diagonal
from diagonal import VideoModel
from diagonal.checkpoints import ASSETS
from diagonal.evaluation.sweep import load_judge
from diagonal.media import video
from diagonal.media.video import VideoArray
from diagonal.networks.inverse_dynamics import judge
from diagonal.worlds import vizdoom
from tests.e2e.conftest import numbers_of

SAID = "walking through a brick corridor, turning left"


@pytest.fixture(scope="module")
def model() -> VideoModel:
    found = diagonal.load("doom-t2v")
    assert isinstance(found, VideoModel) and found.weights == "embedded"
    return found


def made(model: VideoModel, prompt: str, seed: int = 0, num_frames: int = 17) -> VideoArray:
    frames = model.generate(prompt, num_frames=num_frames, seed=seed).frames
    assert isinstance(frames, np.ndarray)
    return frames


def test_it_is_within_its_share_of_the_package() -> None:
    assert sum(path.stat().st_size for path in (ASSETS / "doom_t2v").iterdir()) <= 40 * 10**6


def test_frames_are_those_of_the_shipped_weights(model: VideoModel) -> None:
    """The row means of the pixels, computed when the weights were made; a damaged file would give other frames."""
    frames = made(model, SAID)
    np.testing.assert_allclose(frames.mean(axis=(0, 2, 3))[::12], CHECKSUM, atol=1.5)


CHECKSUM = [32.45, 30.85, 33.31, 32.04, 30.21, 35.76, 36.2, 42.62]


@pytest.mark.parametrize(("way", "other"), [("left", "right"), ("right", "left")])
def test_it_turns_the_way_it_is_told(model: VideoModel, way: str, other: str) -> None:
    frames = made(model, f"turning {way} in a stone maze")
    seen, _ = judge(load_judge(ASSETS / "judge", "cpu"), torch.from_numpy(frames).permute(0, 3, 1, 2)[None])
    names = [vizdoom.ACTIONS[index] for index in seen[0]]
    assert sum(way in name for name in names) >= 12 and not any(other in name for name in names), names


def test_a_courtyard_is_green_and_a_maze_is_not_all_red(model: VideoModel) -> None:
    """Stronger guidance in training had made all walls of the maze red."""
    mazes = [made(model, "walking through a stone maze", seed) for seed in range(3)]
    colours = np.stack([one.mean(axis=(0, 1, 2)) for one in mazes])
    assert (colours.max(1) < 2.5 * colours.min(1) + 20).all(), colours
    court = made(model, "walking through a mossy courtyard").mean(axis=(0, 1, 2))
    assert court[1] > court[0] and (colours[:, 0] >= colours[:, 1]).all(), (colours, court)


def test_a_stream_without_end_goes_on_past_its_window(model: VideoModel) -> None:
    chunks = [chunk.frames for chunk in islice(model.stream(SAID, seed=3), 12)]
    assert np.array_equal(np.concatenate(chunks)[:41], made(model, SAID, seed=3, num_frames=41))
    assert np.concatenate(chunks)[-6:].std() > 5  # still a picture


def test_the_command_needs_nothing_but_a_prompt(tmp_path: Path, forked) -> None:
    numbers = numbers_of(forked(tmp_path, "video", "--json", "--prompt", SAID, "--out", "a.mp4"))
    assert (
        numbers["scale"] == 3
        and numbers["weights"] == "embedded"
        and numbers["frames"] == 41
        and numbers["calls"] == 17
    )
    assert video.read(tmp_path / "a.mp4").shape == (41, 288, 384, 3)  # three times as large, to be seen
