"""The embedded world, as a newcomer meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import diagonal
from diagonal import Sampling, World, checkpoints
from diagonal.checkpoints import ASSETS
from diagonal.evaluation.sweep import load_judge
from diagonal.networks.inverse_dynamics import judge
from diagonal.worlds import vizdoom

COMMAND = Path(sys.executable).with_name("diagonal")


@pytest.fixture(scope="module")
def world() -> World:
    return diagonal.load("doom")


def test_it_is_small_and_comes_with_the_package() -> None:
    files = [path for path in ASSETS.rglob("*") if path.is_file()]
    assert max(path.stat().st_size for path in files) <= 16 * 2**20
    assert sum(path.stat().st_size for path in files) <= 100 * 10**6
    assert diagonal.load("doom").weights == "embedded"


def test_greedy_frames_are_those_of_the_shipped_weights(world: World) -> None:
    """The row means of the pixels, computed when the weights were made; a damaged file would give other frames."""
    frames, between = vizdoom.start("lamps")
    actions = [*between, *vizdoom.parse("forward*2")]
    clip = world.generate(frames, actions, schedule="diagonal:k=1", sampling=Sampling(temperature=0))
    rows = clip.frames.mean(axis=(0, 2, 3))[::12]
    np.testing.assert_allclose(rows, CHECKSUM, atol=1.5)


CHECKSUM = [38.71, 60.54, 37.3, 35.59, 43.06, 57.32, 35.69, 43.23]


@pytest.mark.parametrize("name", vizdoom.STARTS)
def test_every_start_view_is_four_frames_that_the_tokenizer_knows(world: World, name: str) -> None:
    frames, between = vizdoom.start(name)
    assert frames.shape == (4, *world.size, 3) and len(between) == 3
    tokens, _ = world.encode(frames)
    decoded = world.tokenizer.decode(tokens, {})[0].permute(0, 2, 3, 1).float().numpy()
    error = np.square(decoded - frames.astype(np.float32)).mean()
    assert 10 * np.log10(255**2 / error) > 25


def test_it_turns_the_way_it_is_told(world: World) -> None:
    network = load_judge(ASSETS / "judge", "cpu")
    for way, other in (("left", "right"), ("right", "left")):
        frames, between = vizdoom.start("hall")
        actions = [*between, *vizdoom.parse(f"{way}*4")]
        clip = world.generate(frames, actions, sampling=Sampling(temperature=0))
        video = torch.from_numpy(np.concatenate([frames[-1:], clip.frames])).permute(0, 3, 1, 2)[None]
        seen, _ = judge(network, video)
        names = [vizdoom.ACTIONS[index] for index in seen[0]]
        assert sum(way in name for name in names) >= 3, names
        assert not any(other in name for name in names), names


def test_generate_without_arguments_plays_it(tmp_path: Path) -> None:
    done = subprocess.run([COMMAND, "generate", "--json"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    assert numbers["model"] == "doom" and numbers["weights"] == "embedded"
    assert numbers["frames"] == len(vizdoom.parse(vizdoom.SCRIPT))
    assert numbers["calls"] == 27 * numbers["frames"]
    clip = diagonal.media.video.read(tmp_path / "out.mp4")
    assert clip.shape == (numbers["frames"], 288, 384, 3)  # three times as large, to be seen


def test_a_start_that_does_not_exist_names_those_that_do(tmp_path: Path) -> None:
    done = subprocess.run([COMMAND, "generate", "--start", "moon"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "lamps, gate" in done.stderr
    assert not list(tmp_path.iterdir())


def test_shrunk_weights_come_back_within_half_a_step() -> None:
    state = {"a": torch.randn(5, 7), "b": torch.randn(3), "c": torch.randn(2, 3, 4, 4), "zero": torch.zeros(2, 3)}
    back = checkpoints.restore(checkpoints.shrink(state))
    assert back.keys() == state.keys()
    step = state["a"].abs().amax(1, keepdim=True) / 127
    assert ((back["a"] - state["a"]).abs() <= 0.51 * step + 1e-3 * state["a"].abs()).all()
    torch.testing.assert_close(back["c"].float(), state["c"], atol=1e-3, rtol=1e-3)
    assert not back["zero"].any()
    assert checkpoints.restore(dict(state)).keys() == state.keys()
