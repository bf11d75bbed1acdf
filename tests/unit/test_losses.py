"""The terms of the distillation objective: their values, their gradients, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from diagonal.training.latents import losses
from diagonal.training.latents.losses import MOTIONS, LossWeights
from tests.conftest import golden

SHAPE = (2, 5, 3, 6, 8)


def latents(seed: int, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gradient(loss: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.clone().requires_grad_(True)
    loss(x).backward()
    assert x.grad is not None
    return x.grad


# The recorded reference


def test_dmd_is_the_recorded_one() -> None:
    data = golden("wan/dmd_loss.safetensors")
    x, fake = data["x"], data["fake_cond"]
    real = losses.guided(data["real_cond"], data["real_uncond"], 4.0)  # recorded as cond + 3 (cond - uncond)
    torch.testing.assert_close(losses.dmd_gradient(x, real, fake), data["grad"], rtol=1e-5, atol=1e-6)
    assert losses.dmd(x, real, fake).item() == pytest.approx(data["loss_motion0"].item(), rel=1e-6)
    ours = gradient(lambda x: losses.dmd(x, real, fake), x)
    torch.testing.assert_close(ours, data["xgrad_motion0"], rtol=1e-5, atol=1e-9)


def test_the_direction_of_the_motion_term_is_the_recorded_one_but_ours_moves_the_generator() -> None:
    data = golden("wan/dmd_loss.safetensors")
    x, fake = data["x"], data["fake_cond"]
    real = losses.guided(data["real_cond"], data["real_uncond"], 4.0)
    ours = losses.dmd_gradient(*map(losses.differences, (x, real, fake)))
    torch.testing.assert_close(ours, data["grad_motion"], rtol=1e-5, atol=1e-6)
    assert torch.equal(data["xgrad_motion0"], data["xgrad_motion1"])  # what was recorded: no gradient at all
    moved = gradient(lambda x: losses.flow_dmd(x, real, fake, losses.differences), x)
    # d/dx of a difference: what a frame has too much, the next has too little.
    wanted = torch.zeros_like(x)
    wanted[:, 1:] += ours / ours.numel()
    wanted[:, :-1] -= ours / ours.numel()
    torch.testing.assert_close(moved, wanted, rtol=1e-4, atol=1e-9)


# Every term moves the generator, each in a way of its own


@pytest.mark.parametrize("motion", MOTIONS.values(), ids=MOTIONS)
def test_every_term_has_a_gradient_of_its_own(motion: losses.Motion) -> None:
    x, real, fake, video = (latents(seed) for seed in range(4))
    terms: dict[str, Callable[[Tensor], Tensor]] = {
        "dmd": lambda x: losses.dmd(x, real, fake),
        "regression": lambda x: losses.regression(x, video),
        "flow_dmd": lambda x: losses.flow_dmd(x, real, fake, motion),
        "flow_regression": lambda x: losses.flow_regression(x, video, motion),
    }
    found = {name: gradient(term, x).flatten() for name, term in terms.items()}
    for name, one in found.items():
        assert one.isfinite().all() and one.norm() > 1e-5, name
        for other in found:
            if other != name:
                assert abs(torch.cosine_similarity(one, found[other], dim=0)) < 0.99, (name, other)
    weights = LossWeights(0.5, 2.0, 3.0, 0.25, 0.125)
    whole = gradient(lambda x: losses.total({name: term(x) for name, term in terms.items()}, weights), x)
    mixed = 0.5 * found["dmd"] + 2 * found["regression"] + 0.75 * found["flow_dmd"] + 0.375 * found["flow_regression"]
    torch.testing.assert_close(whole.flatten(), mixed, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("motion", MOTIONS.values(), ids=MOTIONS)
def test_gradients_of_regressions_are_finite_differences(motion: losses.Motion) -> None:
    shape = (1, 3, 2, 4, 4)
    x, video = latents(0, shape).double().requires_grad_(True), latents(1, shape).double()
    assert torch.autograd.gradcheck(lambda x: losses.regression(x, video), (x,))
    assert torch.autograd.gradcheck(lambda x: losses.flow_regression(x, video, motion), (x,))
    assert torch.autograd.gradcheck(lambda x: losses.flow_matching(x, video, 2 * video), (x,))


@pytest.mark.parametrize("motion", MOTIONS.values(), ids=MOTIONS)
def test_regressions_are_least_at_the_teachers_video(motion: losses.Motion) -> None:
    x = latents(0)
    assert losses.regression(x, x) == 0 and losses.flow_regression(x, x, motion) == 0
    assert not gradient(lambda y: losses.flow_regression(y, x, motion), x).any()
    assert losses.flow_regression(x, x.flip(1), motion) > 0


# DMD


def test_dmd_steps_from_the_fake_to_the_real() -> None:
    x, real, fake = (latents(seed) for seed in range(3))
    step = -gradient(lambda x: losses.dmd(x, real, fake), x)
    for sample in range(2):
        distance = (x[sample] - real[sample]).abs().mean()
        torch.testing.assert_close(
            step[sample] * x.numel(), (real[sample] - fake[sample]) / distance, rtol=1e-4, atol=1e-5
        )


def test_a_sample_does_not_know_of_the_others() -> None:
    x, real, fake = (latents(seed) for seed in range(3))
    both = losses.dmd_gradient(x, real, fake)
    assert torch.equal(both[1:], losses.dmd_gradient(x[1:], real[1:], fake[1:]))


def test_where_everyone_agrees_nothing_moves() -> None:
    x = latents(0)
    assert not losses.dmd_gradient(x, x, x).any()  # 0 / 0
    assert losses.dmd(x, x, x) == 0


@pytest.mark.parametrize(("real", "fake", "who"), [(float("nan"), 0, "teacher"), (0, float("inf"), "critic")])
def test_scores_that_are_no_numbers_are_refused(real: float, fake: float, who: str) -> None:
    x = latents(0)
    with pytest.raises(ValueError, match=f"the {who} answered NaN or infinite"):
        losses.dmd(x, x + real, x + fake)


def test_a_video_that_is_no_number_gives_no_number() -> None:
    assert losses.dmd(latents(0) * float("nan"), latents(1), latents(2)).isnan()


# Motion


def blobs(down: float, right: float, frames: int = 3) -> Tensor:
    """Smooth latents that move by (down, right) cells a frame, (1, F, 2, 16, 20)."""
    rows, cols = torch.meshgrid(torch.arange(16.0), torch.arange(20.0), indexing="ij")
    made = []
    for frame in range(frames):
        y, x = rows - frame * down, cols - frame * right
        made.append(torch.stack([torch.sin(y / 2.5) * torch.cos(x / 3), torch.cos(y / 3 + x / 4)]))
    return torch.stack(made)[None]


@pytest.mark.parametrize(("down", "right"), [(0.0, 0.0), (0.5, 0.0), (0.0, -0.7), (0.6, 0.4)])
def test_the_flow_field_finds_how_a_pattern_moves(down: float, right: float) -> None:
    inside = losses.flow_field(2 * blobs(down, right))[..., 4:-4, 4:-4]
    found = inside.mean(dim=(0, 1, 3, 4))
    torch.testing.assert_close(found, torch.tensor([down, right]), atol=0.08, rtol=0.15)


def test_a_flat_or_a_constant_video_has_no_motion() -> None:
    assert not losses.flow_field(torch.ones(SHAPE)).any()
    assert not losses.differences(latents(0)[:, :1].expand(SHAPE)).any()
    assert losses.flow_field(latents(0)).shape == (2, 4, 2, 6, 8)


# The total


def test_terms_that_do_not_count_are_left_out() -> None:
    assert list(LossWeights(regression=0, motion=0).factors()) == ["dmd"]
    assert list(LossWeights(spatial=0, flow=0).factors()) == ["regression", "flow_regression"]
    assert losses.total({"dmd": torch.tensor(2.0)}, LossWeights(3.0, 0, 0)).item() == 6
    with pytest.raises(ValueError, match=r"terms \['dmd', 'regression'\] given; the weights count \['dmd'\]"):
        losses.total({"dmd": torch.ones(()), "regression": torch.ones(())}, LossWeights(1, 0, 0))


@pytest.mark.parametrize("change", [{"spatial": -1.0}, {"motion": float("nan")}, {"flow": float("inf")}])
def test_impossible_weights_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be 0 or more"):
        LossWeights(**change)
    with pytest.raises(ValueError, match="one of them above 0"):
        LossWeights(0, 0, 0, 0, 0)
