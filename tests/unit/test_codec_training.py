"""The codec's training: it learns pixels, every term counts, and the latents it gives are of mean 0 and deviation 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal.catalog.names import find
from diagonal.tokenizers import wan_vae
from diagonal.training.latents.codec import CodecTask
from diagonal.training.loop import RunConfig, fit
from diagonal.training.stages import build
from diagonal.worlds.recordings import Part


def moving(count: int, episode: int) -> Part:
    """Coloured bars that move to the side."""
    generator = torch.Generator().manual_seed(0)
    colour = torch.randint(256, (count // episode, 3), generator=generator).repeat_interleave(episode, 0)
    place = (torch.arange(count)[:, None] * 3 + torch.arange(64)) % 32 < 12
    frames = 0.8 * colour[:, None, None] + 50 * place[:, None, :, None]
    frames = frames.expand(-1, 40, -1, -1).to(torch.uint8)
    episodes = torch.arange(count // episode).repeat_interleave(episode)
    return Part(frames.contiguous(), torch.zeros(count, 1, dtype=torch.long), episodes)


def task(**changes: Any) -> CodecTask:
    module = build(find("tokenizers", "wan_vae/doom-tiny"), 0, "cpu")
    settings: dict[str, Any] = {
        "frames": 5,
        "batch": 4,
        "lr": 3e-3,
        "seed": 0,
        "kl_scale": 1e-4,
        "muon_lr": 0.01,
    } | changes
    return CodecTask(module, moving(80, 10), moving(40, 10), **settings)


def perceptual() -> dict[str, Tensor]:
    """A network of LPIPS's form with random weights."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((8, 3, 11), (8, 8, 5), (8, 8, 3), (8, 8, 3), (8, 8, 3))
    weights = {
        f"conv{i}.weight": torch.randn(o, n, k, k, generator=generator) * 0.1 for i, (o, n, k) in enumerate(sizes)
    }
    weights |= {f"conv{i}.bias": torch.zeros(8) for i in range(5)} | {f"lin{i}": torch.ones(8) for i in range(5)}
    return weights


def test_it_learns_and_ends_with_latents_of_unit_size(tmp_path: Path) -> None:
    learner = task()
    before = learner.evaluate()["val_psnr"]
    *_, last = fit(learner, RunConfig(steps=80, warmup=5, log_every=80, evaluate_every=80), tmp_path)
    assert last["val_psnr"] > before + 2 and (tmp_path / "sheet.png").exists()
    learner.settle(9)
    assert learner.evaluate()["val_psnr"] == pytest.approx(last["val_psnr"], abs=0.05)  # what is seen stays
    clips = learner.data.frames_NHWC[:80].unflatten(0, (8, 10))[:, :9].permute(0, 1, 4, 2, 3)
    latents = learner.module.encode(clips)
    assert latents.shape == (8, 5, 8, 5, 8)
    assert latents.mean((0, 1, 3, 4)).abs().max() < 0.5 and (latents.std((0, 1, 3, 4)).log().abs() < 0.5).all()


@pytest.mark.parametrize("change", [{"kl_scale": 1.0}, {"lpips_weights": perceptual()}], ids=["kl", "lpips"])
def test_every_term_of_the_loss_moves_the_gradient(change: dict[str, Any]) -> None:
    gradients = []
    for settings in ({}, change):
        learner = task(**settings)
        loss, _ = learner.loss(0)
        loss.backward()
        # The first layer's last channel and all before: every term goes through the encoder.
        gradients.append(learner.module.encoder["conv1"].weight.grad.clone())
    assert (gradients[0] - gradients[1]).abs().max() > 1e-4


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # which torch's compiler looks at
def test_what_a_gpu_compiles_is_one_graph_each_and_the_same_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoder, decoder and LPIPS: a break would leave the host many small graphs to launch."""
    # Only a CPU calls oneDNN by its name.
    monkeypatch.setattr(wan_vae, "convolve", lambda conv, clip, bias: conv._conv_forward(clip, conv.weight, bias))
    plain, traced = (task(lpips_weights=perceptual()) for _ in range(2))
    for part in (traced.module.encoder, traced.module.decoder):
        part.forward = torch.compile(part.forward, backend="eager", fullgraph=True)
    traced._distance = torch.compile(traced._distance, backend="eager", fullgraph=True)
    torch.testing.assert_close(traced.loss(0)[0], plain.loss(0)[0])


def test_clips_are_drawn_within_episodes_and_depend_on_the_step_alone() -> None:
    learner, other = task(), task()
    for step in range(4):
        assert torch.equal(learner.loss(step)[0], other.loss(step)[0])
        clips = learner._draw(learner.data, learner._starts, 0, step)
        # Within an episode the colours stay the same.
        assert all(len(clip[:, :, 0, :].flatten(2).amax((1, 2)).unique()) == 1 for clip in clips)


def test_a_channel_that_says_nothing_is_refused() -> None:
    learner = task()
    with torch.no_grad():
        learner.module.conv1.weight[0] = 0
    with pytest.raises(ValueError, match="a channel of the latents never changes"):
        learner.settle(5)


def test_a_recording_of_too_short_episodes_is_refused() -> None:
    with pytest.raises(ValueError, match="no episode of the recording has 11 frames"):
        task(frames=11)
