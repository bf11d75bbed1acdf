"""Numbers about clips, where the answer is known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from diagonal.evaluation import clips
from diagonal.evaluation.distances import Reference, frechet
from diagonal.evaluation.flow import flow_magnitude, optical_flow
from diagonal.evaluation.statistics import resampled


def texture(height: int, width: int) -> Tensor:
    """A picture of blobs of several sizes, 0 to 1."""
    generator = torch.Generator().manual_seed(0)
    fine = F.avg_pool2d(torch.rand(1, 1, height + 8, width + 8, generator=generator), 9, 1)
    coarse = F.interpolate(
        torch.rand(1, 1, height // 8, width // 8, generator=generator), (height, width), mode="bicubic"
    )
    both = (fine + 0.5 * coarse)[0, 0]
    return (both - both.min()) / (both.max() - both.min())


def video(*frames: Tensor) -> Tensor:
    """One grey video (1, T, 3, H, W) of pictures of 0 to 1."""
    return torch.stack([(255 * frame).round().byte().expand(3, -1, -1) for frame in frames])[None]


# Flow


@pytest.mark.parametrize(("down", "right"), [(0, 0), (1, 0), (0, -3), (-2, 5), (4, -8), (0, 16)])
def test_the_flow_of_a_shifted_picture_is_its_shift(down: int, right: int) -> None:
    big = texture(160, 200)
    first, second = big[32:128, 36:164], big[32 - down : 128 - down, 36 - right : 164 - right]
    flow = optical_flow(first[None], second[None])
    assert flow.shape == (1, 2, 96, 128)
    middle = flow[0, :, 16:-16, 28:-28].flatten(1).median(1).values
    torch.testing.assert_close(middle, torch.tensor([down, right], dtype=torch.float32), atol=0.05, rtol=0)


def test_flow_is_of_each_pair_of_each_video_whatever_the_batch() -> None:
    big = texture(96, 132)
    still, moving = (video(*(big[:, at : at + 128] for at in places)) for places in ((2, 2, 2), (4, 2, 0)))
    lengths = flow_magnitude(torch.cat([still, moving]))
    assert lengths.shape == (2, 2) and lengths[0].tolist() == pytest.approx([0, 0], abs=1e-5)
    assert lengths[1, 0].item() == pytest.approx(2, abs=0.3)
    torch.testing.assert_close(flow_magnitude(torch.cat([still, moving]), batch=1), lengths)


# Looks


def test_a_blurred_picture_is_less_sharp_and_a_flat_one_not_at_all() -> None:
    sharp = texture(48, 64)
    blurred = F.avg_pool2d(sharp[None], 3, 1, 1, count_include_pad=False)[0]
    found = clips.laplacian_variance(video(sharp, blurred, torch.full((48, 64), 0.3)))[0]
    assert found[0] > 2 * found[1] > 0 and found[2].item() == pytest.approx(0, abs=1e-6)


def test_sharpness_of_single_bright_pixels_is_known() -> None:
    frame = torch.zeros(5, 5)
    frame[2, 2] = 1
    # Laplacians of the inner 3x3: -4 in the middle and 1 at its four neighbours, times 255; their mean is 0.
    assert clips.laplacian_variance(video(frame)).item() == pytest.approx(255**2 * (16 + 4) / 9, rel=1e-5)


def test_saturation_is_that_of_its_colours() -> None:
    frames = torch.zeros(1, 3, 3, 4, 4, dtype=torch.uint8)
    frames[:, 0] = 90
    frames[:, 1, 0] = 255
    frames[:, 2, 1, :2] = 102
    assert clips.saturation(frames)[0].tolist() == pytest.approx([0, 1, 0.2])


def test_colours_of_clips_of_one_kind_differ_as_much_as_told() -> None:
    frames = torch.zeros(6, 2, 3, 4, 4, dtype=torch.uint8)
    frames[0::2, :, :, :2] = 102  # half of a clip's pixels: its mean is 0.2
    kinds = torch.tensor([0, 0, 0, 0, 2, 2])  # nothing of kind 1
    assert clips.colour_spread(frames, kinds).mean == pytest.approx(0.1)
    assert clips.colour_spread(frames, torch.tensor([0, 1, 0, 1, 0, 1])).mean == pytest.approx(0)  # one colour each


def test_change_is_the_mean_difference_of_neighbours_and_does_not_wrap_around() -> None:
    black, white = torch.zeros(4, 6), torch.ones(4, 6)
    assert clips.change(video(black, white, white, black))[0].tolist() == [1, 0, 1]


# Distances


def test_the_distance_of_a_moved_distribution_is_how_far_it_was_moved() -> None:
    samples = torch.randn(500, generator=torch.Generator().manual_seed(1))
    assert clips.wasserstein(samples, samples[torch.randperm(500)]) == 0
    assert clips.wasserstein(samples, samples + 0.7) == pytest.approx(0.7, rel=1e-5)
    assert clips.wasserstein(torch.tensor([0.0, 1.0]), torch.tensor([0.5])) == pytest.approx(0.5)
    assert clips.wasserstein(samples, samples.repeat(3)) == pytest.approx(0, abs=1e-9)
    with pytest.raises(ValueError, match="needs samples of both; 0 and 500 given"):
        clips.wasserstein(samples[:0], samples)


def test_the_frechet_distance_of_gaussians_is_the_closed_form() -> None:
    mean, other = torch.tensor([1.0, -2.0], dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)
    one, two = torch.diag(torch.tensor([4.0, 9.0])).double(), torch.diag(torch.tensor([1.0, 16.0])).double()
    # Of diagonal covariances: |m1 - m2|^2 + sum (s1 - s2)^2.
    assert Reference.of(other, two).distance(mean, one) == pytest.approx(10 + 1 + 1)


def test_the_frechet_distance_of_clips_is_that_of_all_their_features_and_its_interval_holds_it() -> None:
    generator = torch.Generator().manual_seed(2)
    made, true = (torch.randn(12, 7, 5, generator=generator) + shift for shift in (0.5, 0))
    found = clips.frechet_distance(made, true)
    assert found.mean == pytest.approx(frechet(made.flatten(0, 1), true.flatten(0, 1)), rel=1e-9)
    assert found.low < found.mean < found.high
    assert clips.frechet_distance(made, true) == found  # the draws have a seed
    assert clips.frechet_distance(true, true).mean == pytest.approx(0, abs=1e-9)
    with pytest.raises(ValueError, match="needs 2 features"):
        clips.frechet_distance(made[:1, :1], true)


def test_intervals_of_a_statistic_are_as_wide_as_theory_says() -> None:
    values = np.random.default_rng(3).normal(size=400)
    found = resampled(lambda chosen: float(values[chosen].mean()), 400, draws=2000)
    assert found.mean == pytest.approx(values.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.08)


def test_f1_counts_over_all_clips() -> None:
    told = torch.tensor([[True, False, True], [False, False, True]])
    seen = torch.tensor([[True, True, False], [False, False, True]])
    assert clips.f1(told, seen) == pytest.approx(2 * 2 / 6)
    assert clips.f1(told, told) == 1 and clips.f1(told, ~told) == 0 and clips.f1(told[:0], told[:0]) == 1


def test_even_choices_reach_both_ends_and_never_repeat() -> None:
    assert clips.evenly(10, 4).tolist() == [0, 3, 6, 9]
    assert clips.evenly(3, 8).tolist() == [0, 1, 2]
