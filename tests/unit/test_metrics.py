"""Numbers about videos, where the answer is known beforehand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diagonal.evaluation.clips import colour_jump, sharpness
from diagonal.evaluation.distances import frechet
from diagonal.evaluation.metrics.psnr import psnr
from diagonal.evaluation.rollouts import Clips, cut, obeyed, stability
from diagonal.evaluation.statistics import Interval, bootstrap, correlation, ranks
from diagonal.worlds.recordings import Part
from diagonal.worlds.vizdoom import ACTIONS


def flat(*values: int, height: int = 4, width: int = 6) -> Tensor:
    """One video (1, T, 3, H, W) whose frames are grey."""
    return torch.tensor(values, dtype=torch.uint8)[None, :, None, None, None].expand(1, -1, 3, height, width).clone()


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(seed)).byte()


# Pictures


@pytest.mark.parametrize(("difference", "decibels"), [(255, 0.0), (1, 48.1308), (16, 24.0484), (51, 13.9794)])
def test_psnr_of_a_constant_difference_is_known(difference, decibels):
    made = psnr(flat(difference), flat(0))
    assert made.shape == (1, 1)
    assert made.item() == pytest.approx(decibels, abs=1e-3)


def test_psnr_of_equal_frames_is_large_and_finite():
    video = noise(2, 3, 3, 8, 8)
    assert (psnr(video, video) == 100).all()


def test_psnr_is_of_each_frame_and_does_not_wrap_around():
    made, true = noise(2, 3, 3, 8, 8), noise(2, 3, 3, 8, 8, seed=1)
    both = psnr(made, true)
    assert both.shape == (2, 3)
    assert both[1, 2].item() == pytest.approx(psnr(made[1, 2], true[1, 2]).item())
    torch.testing.assert_close(both, psnr(true, made))
    error = float((made[0, 0].double() - true[0, 0].double()).square().mean())
    assert both[0, 0].item() == pytest.approx(10 * math.log10(255**2 / error), rel=1e-5)


def test_sharpness_of_a_flat_picture_is_zero():
    assert sharpness(flat(0, 77, 255)).tolist() == [[0.0, 0.0, 0.0]]


def test_sharpness_of_stripes_is_their_height_and_blur_lowers_it():
    stripes = flat(0, height=8, width=8)
    stripes[..., 1::2] = 100
    assert sharpness(stripes).item() == pytest.approx(100.0)
    assert sharpness(stripes.mT).item() == pytest.approx(100.0)
    assert sharpness((stripes // 2).byte()).item() == pytest.approx(50.0)


def test_colours_of_a_still_video_do_not_jump():
    still = noise(1, 1, 3, 8, 8).expand(2, 5, 3, 8, 8)
    assert (colour_jump(still) == 0).all()
    assert colour_jump(still).shape == (2, 4)


def test_from_black_to_white_is_the_whole_distance():
    assert colour_jump(flat(0, 255, 255, 0)).tolist() == [[1.0, 0.0, 1.0]]


def test_colours_jump_by_the_share_of_pixels_that_change():
    video = flat(0, 0, height=4, width=4)
    video[0, 1, :, 0] = 255
    assert colour_jump(video).item() == pytest.approx(0.25)


def test_moving_pixels_without_changing_colours_is_no_jump():
    frame = noise(1, 1, 3, 8, 8)
    assert colour_jump(torch.cat([frame, frame.roll((3, 2), (-1, -2))], dim=1)).item() == 0


def test_a_change_of_any_single_colour_is_seen():
    for channel in range(3):
        video = flat(0, 0)
        video[0, 1, channel] = 255
        assert colour_jump(video).item() == pytest.approx(1.0)


# Frechet


def gaussian(mean: Any, covariance: Any, count: int = 400) -> Tensor:
    """Vectors whose sample mean and covariance are exactly these."""
    mean, covariance = (torch.as_tensor(value, dtype=torch.float64) for value in (mean, covariance))
    raw = torch.randn(count, len(mean), generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    raw = raw - raw.mean(0)
    white = raw @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(raw.T))).T
    made: Tensor = white @ torch.linalg.cholesky(covariance).T + mean
    return made


def test_frechet_of_equal_sets_is_zero():
    features = gaussian([1.0, -2.0, 0.5], torch.tensor([[2.0, 0.3, 0.0], [0.3, 1.0, 0.1], [0.0, 0.1, 0.5]]))
    assert frechet(features, features) == pytest.approx(0, abs=1e-6)
    assert frechet(features, features[torch.randperm(400)]) == pytest.approx(0, abs=1e-6)


def test_frechet_of_shifted_sets_is_the_square_of_the_shift():
    features = gaussian([0.0, 0.0], torch.eye(2))
    assert frechet(features, features + torch.tensor([3.0, -4.0])) == pytest.approx(25, abs=1e-6)


def test_frechet_of_diagonal_gaussians_is_the_closed_form():
    first = gaussian([0.0, 1.0], torch.diag(torch.tensor([4.0, 9.0])))
    second = gaussian([1.0, 1.0], torch.diag(torch.tensor([1.0, 16.0])), count=300)
    assert frechet(first, second) == pytest.approx(1 + (2 - 1) ** 2 + (3 - 4) ** 2, abs=1e-6)


def test_frechet_of_gaussians_that_do_not_commute_is_the_closed_form():
    """In two dimensions tr sqrt(M) = sqrt(tr M + 2 sqrt(det M))."""
    one, two = torch.tensor([[2.0, 0.8], [0.8, 1.0]]), torch.tensor([[1.0, -0.5], [-0.5, 3.0]])
    product = one @ two
    cross = math.sqrt(float(product.trace()) + 2 * math.sqrt(float(torch.linalg.det(product))))
    expected = 2 + float(one.trace() + two.trace()) - 2 * cross
    first, second = gaussian([0.0, 0.0], one), gaussian([1.0, 1.0], two, count=300)
    assert frechet(first, second) == pytest.approx(expected, abs=1e-5)
    assert frechet(second, first) == pytest.approx(expected, abs=1e-5)


def test_frechet_of_fewer_vectors_than_dimensions_is_a_number():
    value = frechet(torch.randn(5, 20), torch.randn(6, 20))
    assert math.isfinite(value) and value > 0


# Intervals


def test_an_interval_covers_the_mean():
    values = np.random.default_rng(0).normal(3, 1, size=(30, 3))
    made = bootstrap(values)
    assert made.mean == pytest.approx(values.mean())
    assert made.low < made.mean < made.high
    assert made.high - made.low == pytest.approx(2 * 1.96 / math.sqrt(90), rel=0.5)


def test_an_interval_shrinks_with_more_clips():
    values = np.random.default_rng(0).normal(size=(400, 1))
    few, many = bootstrap(values[:25], draws=500), bootstrap(values, draws=500)
    assert (many.high - many.low) < (few.high - few.low) / 2


def test_seeds_of_one_clip_are_no_more_clips():
    """Clips differ, seeds do not: sixteen seeds leave the interval as wide as one does."""
    clips = np.random.default_rng(0).normal(size=(20, 1))
    one, sixteen = bootstrap(clips, draws=800), bootstrap(np.repeat(clips, 16, axis=1), draws=800)
    assert (sixteen.high - sixteen.low) == pytest.approx(one.high - one.low, rel=0.15)


def test_about_nineteen_of_twenty_intervals_cover_the_truth():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(100):
        made = bootstrap(rng.normal(size=(40, 1)), draws=200)
        hits += made.low <= 0 <= made.high
    assert 87 <= hits <= 99


def test_the_same_seed_gives_the_same_interval():
    values = np.random.default_rng(0).normal(size=(10, 2))
    assert bootstrap(values, seed=3) == bootstrap(values, seed=3)
    assert bootstrap(values, seed=3) != bootstrap(values, seed=4)


def test_equal_values_have_an_interval_of_no_width():
    assert bootstrap(np.full((5, 2), 0.25)) == Interval(0.25, 0.25, 0.25)


def test_missing_values_do_not_count():
    values = np.random.default_rng(0).normal(size=(40, 2))
    values[::4, 0] = np.nan
    made = bootstrap(values, draws=300)
    assert made.mean == pytest.approx(np.nanmean(values))
    assert made.low < made.mean < made.high


def test_a_single_value_among_missing_ones_is_an_interval_without_warnings():
    """Many draws hold no value at all: they say nothing, and nobody is told off."""
    values = np.full((6, 1), np.nan)
    values[2, 0] = 0.5
    assert bootstrap(values, draws=200) == Interval(0.5, 0.5, 0.5)


def test_only_missing_values_give_no_number_and_no_warning():
    made = bootstrap(np.full((4, 2), np.nan), draws=50)
    assert all(math.isnan(value) for value in (made.mean, made.low, made.high))


def test_an_interval_reads_as_text():
    assert str(Interval(0.5, 0.25, 0.75)) == "0.500 [0.250, 0.750]"


# Obedience


def actions(*names: str) -> Tensor:
    return torch.tensor([ACTIONS.index(name) for name in names])[None, None]


EVERY = ("left", "right", "forward+left", "forward+right", "noop")


def test_a_judge_who_sees_what_was_given_finds_all_obeyed():
    given = actions(*EVERY)
    assert {name: one.mean for name, one in obeyed(given, given).items()} == {
        "actions_obeyed": 1.0,
        "turns_obeyed": 1.0,
        "walking_turns_obeyed": 1.0,
    }


def test_a_turn_the_right_way_counts_whether_walking_or_not():
    made = obeyed(actions("forward+left", "right", "left", "left", "attack"), actions(*EVERY))
    assert made["actions_obeyed"].mean == pytest.approx(1 / 5)
    assert made["turns_obeyed"].mean == 1.0
    assert made["walking_turns_obeyed"].mean == 0.5


def test_a_turn_the_wrong_way_and_no_turn_do_not_count():
    made = obeyed(actions("right", "noop", "forward+right", "forward", "noop"), actions(*EVERY))
    assert made["actions_obeyed"].mean == pytest.approx(1 / 5)
    assert made["turns_obeyed"].mean == 0.0
    assert made["walking_turns_obeyed"].mean == 0.0


def test_obedience_is_an_interval_over_clips_and_seeds():
    given = actions("left", "forward+right").expand(8, 3, 2)
    seen = given.clone()
    seen[:4, :, 0] = ACTIONS.index("right")
    made = obeyed(seen, given)
    assert made["turns_obeyed"].mean == 0.5
    assert 0 <= made["turns_obeyed"].low < 0.5 < made["turns_obeyed"].high <= 1
    assert made["walking_turns_obeyed"] == Interval(1.0, 1.0, 1.0)


def test_clips_without_turns_say_nothing_about_turns():
    given = actions("forward", "noop").expand(3, 2, 2)
    made = obeyed(given, given)
    assert made["actions_obeyed"].mean == 1.0
    assert math.isnan(made["turns_obeyed"].mean)


def test_one_clip_with_a_turn_among_many_without_is_enough():
    given = actions("forward", "noop").expand(5, 1, 2).clone()
    given[2, 0, 1] = ACTIONS.index("left")
    assert obeyed(given, given)["turns_obeyed"] == Interval(1.0, 1.0, 1.0)


# Long rollouts


CONTEXT, LENGTH = 2, 26


def scroll(clips: int = 3, frames: int = CONTEXT + LENGTH) -> Tensor:
    """A camera that pans over a strip of coloured stripes, (N, T, 3, H, W): colours come and go slowly."""
    generator = torch.Generator().manual_seed(0)
    strip = (torch.rand(clips, 3, 1, 80, generator=generator) * 128).byte()
    strip = strip.expand(-1, -1, 12, -1)
    return torch.stack([strip[..., t : t + 32] for t in range(frames)], dim=1)


def walk(frames: Tensor) -> Clips:
    taken = torch.zeros(len(frames), frames.shape[1] - 1, dtype=torch.long)
    taken[:, ::3] = ACTIONS.index("left")
    return Clips(frames, taken, CONTEXT)


def shares(made: dict[str, Any]) -> tuple[float, float, float]:
    return made["without_switch"], made["without_collapse"], made["sound"].mean


def test_true_frames_are_sound():
    clips = walk(scroll())
    made = stability(clips, clips.true)
    assert made["clips"] == 3
    assert shares(made) == (1.0, 1.0, 1.0)


def test_a_planted_switch_of_texture_is_found_in_its_clip():
    clips = walk(scroll())
    videos = clips.true.clone()
    videos[1, 13:] = 255 - videos[1, 13:]  # other colours, as sharp as before
    assert shares(stability(clips, videos)) == pytest.approx((2 / 3, 1.0, 2 / 3))


def test_a_jump_is_measured_against_the_same_action():
    """A cut that the true frames show for turning alone is a switch where nobody turns."""
    frames = scroll()
    taken = torch.zeros(3, CONTEXT + LENGTH - 1, dtype=torch.long)
    taken[0, 20] = ACTIONS.index("attack")
    frames[0, 21:] = 255 - frames[0, 21:]
    clips = Clips(frames, taken, CONTEXT)
    assert shares(stability(clips, clips.true)) == (1.0, 1.0, 1.0)
    early = clips.true.clone()
    early[0] = scroll()[0, CONTEXT:]
    early[0, 9:] = 255 - early[0, 9:]  # a cut under another action
    assert shares(stability(clips, early)) == pytest.approx((2 / 3, 1.0, 2 / 3))


def dull(video: Tensor) -> Tensor:
    """The same picture with a tenth of its contrast."""
    mean = video.float().mean((-1, -2), keepdim=True)
    return (mean + 0.1 * (video.float() - mean)).round().byte()


def forgiving() -> Clips:
    """True frames that flash once: no jump of colours is too large."""
    frames = scroll()
    frames[2, 5], frames[2, 6] = 255 * (frames[2, 5] > 64), 255 - frames[2, 6]
    clips = Clips(frames, torch.zeros(3, CONTEXT + LENGTH - 1, dtype=torch.long), CONTEXT)
    limit = colour_jump(frames).max()
    assert limit == 1
    return clips


@pytest.mark.parametrize(("begin", "end", "sound"), [(4, 14, False), (16, 26, False), (4, 13, True), (0, 26, False)])
def test_ten_dull_frames_in_a_row_are_a_collapse(begin, end, sound):
    clips = forgiving()
    videos = clips.true.clone()
    videos[0, begin:end] = dull(videos[0, begin:end])
    share = 1.0 if sound else 2 / 3
    assert shares(stability(clips, videos)) == pytest.approx((1.0, share, share))


def test_a_grey_end_is_both_a_switch_and_a_collapse():
    clips = walk(scroll())
    videos = clips.true.clone()
    videos[2, 8:] = 90
    assert shares(stability(clips, videos)) == pytest.approx((2 / 3, 2 / 3, 2 / 3))


# Clips


def test_clips_are_cut_within_episodes_with_the_actions_between_their_frames():
    count = 30
    frames = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(-1, 2, 2, 3)
    part = Part(frames, torch.arange(count)[:, None], torch.arange(count) // 10)
    clips = cut(part, count=6, context=2, frames=4)
    assert clips.frames.shape == (6, 6, 3, 2, 2)
    assert clips.true.shape == (6, 4, 3, 2, 2)
    numbers = clips.frames[:, :, 0, 0, 0].long()
    assert torch.equal(numbers, numbers[:, :1] + torch.arange(6))
    assert (numbers // 10 == numbers[:, :1] // 10).all()
    assert torch.equal(clips.actions, numbers[:, :-1])
    assert len(numbers[:, 0].unique()) == 6


def test_more_clips_than_the_recording_has_room_for_are_refused():
    part = Part(torch.zeros(10, 2, 2, 3, dtype=torch.uint8), torch.zeros(10, 1), torch.arange(10) // 5)
    with pytest.raises(ValueError, match="2 places for clips of 5 frames; 3 are needed"):
        cut(part, count=3, context=2, frames=3)


# Ranks


def test_equal_numbers_share_the_mean_of_their_places():
    assert ranks(np.array([3.0, 1.0, 3.0, 7.0])).tolist() == [2.5, 1.0, 2.5, 4.0]


def test_rank_correlation_is_that_of_any_rising_curve_and_has_an_interval():
    values = np.random.default_rng(0).normal(size=60)
    rising = correlation(values, np.exp(values), draws=100)
    assert rising.mean == pytest.approx(1) and rising.low == pytest.approx(1)
    falling = correlation(values, -values, draws=100)
    assert falling.mean == pytest.approx(-1)
    other = correlation(values, np.random.default_rng(1).normal(size=60), draws=400)
    assert other.low < 0 < other.high and other.high - other.low > 0.2
