"""The judge: inverse dynamics learns which way a picture moved, and sees the same alone and in a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal.networks.inverse_dynamics import Config, InverseDynamics, judge
from diagonal.training.judges.inverse_dynamics import JudgeTask
from diagonal.training.loop import RunConfig, fit
from diagonal.worlds.recordings import Part

LEFT, RIGHT = 0, 1
SMALL = Config(actions=2, channels=(16, 24, 32), features=32)


def panning(count: int, seed: int, episode: int = 10) -> Part:
    """A camera that steps left or right over a random wide picture, a new picture for each episode."""
    generator = torch.Generator().manual_seed(seed)
    frames, actions, episodes = [], [], []
    for number in range(count // episode):
        coarse = torch.rand(1, 3, 6, 24, generator=generator) * 255
        wide = torch.nn.functional.interpolate(coarse, size=(24, 128), mode="bilinear")[0]
        place = 48
        for _ in range(episode):
            action = int(torch.randint(2, (), generator=generator))
            frames.append(wide[:, :, place : place + 32].permute(1, 2, 0).byte())
            actions.append([action])
            episodes.append(number)
            place += 3 if action == RIGHT else -3
    return Part(torch.stack(frames), torch.tensor(actions), torch.tensor(episodes))


def network(config: Config = SMALL) -> InverseDynamics:
    torch.manual_seed(0)
    return config.build()


def video(part: Part, episode: int = 10) -> tuple[Tensor, Tensor]:
    """Episodes as videos (B, T, C, H, W), and the actions between their frames."""
    frames = part.frames_NHWC.unflatten(0, (-1, episode)).permute(0, 1, 4, 2, 3)
    return frames, part.actions_NA.unflatten(0, (-1, episode))[:, :-1, 0]


def test_the_judge_learns_left_from_right_and_sees_it_in_new_pictures(tmp_path: Any) -> None:
    task = JudgeTask(network(), panning(600, seed=0), panning(200, seed=1), batch=32, lr=2e-3, seed=0)
    lines = list(fit(task, RunConfig(steps=120, warmup=10, log_every=40), tmp_path))
    assert lines[-1]["val_accuracy"] > 0.95
    assert lines[-1]["accuracy"] > 0.9
    frames, actions = video(panning(300, seed=2))
    seen, _ = judge(task.module, frames)
    assert (seen == actions).float().mean() > 0.95
    # Played backwards, every turn goes the other way.
    backwards, _ = judge(task.module, frames.flip(1))
    assert (backwards.flip(1) == 1 - actions).float().mean() > 0.95


def test_pairs_never_join_two_episodes() -> None:
    part = panning(30, seed=0)
    seen: list[Tensor] = []
    task = JudgeTask(network(), part, part, batch=8, lr=1e-3, seed=0)

    class Spy(torch.nn.Module):
        def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
            seen.append(frames)
            return torch.zeros(len(frames), 2), torch.zeros(len(frames), 1)

    task.module = Spy()
    task.evaluate()
    pairs = torch.cat(seen)
    assert pairs.shape == (27, 2, 3, 24, 32)
    frames, _ = video(part)
    expected = torch.stack([frames[:, :-1], frames[:, 1:]], dim=2).flatten(0, 1)
    assert torch.equal(pairs, expected)


def test_a_batch_of_pairs_depends_on_the_seed_and_the_step_alone() -> None:
    part = panning(60, seed=0)
    first, again, other = (JudgeTask(network(), part, part, batch=8, lr=1e-3, seed=seed) for seed in (0, 0, 1))
    first.loss(0)
    losses = [task.loss(4)[0].item() for task in (first, again, other)]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("batch", [1, 4, 7, 512])
def test_the_judge_sees_in_a_batch_what_it_sees_alone(batch: int) -> None:
    torch.manual_seed(0)
    net = Config(actions=8, channels=(16, 24, 32), features=16).build().eval()
    frames, _ = video(panning(30, seed=3))
    actions, features = judge(net, frames, batch)
    assert actions.shape == (3, 9)
    assert features.shape == (3, 9, 16)
    for clip in range(3):
        for step in range(9):
            logits, alone = net(frames[clip : clip + 1, step : step + 2])
            torch.testing.assert_close(features[clip, step], alone[0].detach(), atol=1e-5, rtol=1e-4)
            assert actions[clip, step] == logits.argmax()


def test_a_single_video_is_judged_as_the_first_of_many() -> None:
    net = network().eval()
    frames, _ = video(panning(40, seed=4))
    many_actions, many_features = judge(net, frames)
    for clip in range(4):
        actions, features = judge(net, frames[clip : clip + 1])
        assert torch.equal(actions[0], many_actions[clip])
        torch.testing.assert_close(features[0], many_features[clip], atol=1e-5, rtol=1e-4)


def test_the_judge_takes_frames_of_any_size() -> None:
    net = network().eval()
    for height, width in ((24, 32), (96, 128), (50, 70)):
        frames = torch.randint(256, (1, 3, 3, height, width), generator=torch.Generator().manual_seed(0)).byte()
        actions, features = judge(net, frames)
        assert actions.shape == (1, 2)
        assert features.shape == (1, 2, 32)
