"""Numbers about videos. All take uint8 frames or plain vectors; none knows a model.

`frechet` is the Frechet distance between two sets of features; with the features of evaluation/idm.py it is
reported as `frechet_idm`, never as FVD.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diagonal.networks import lpips

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

AT_ONCE = 2**14  # numbers that a bootstrap looks up at a time


def psnr(made: Tensor, true: Tensor) -> Tensor:
    """Decibels of each frame of (..., C, H, W) uint8."""
    error = made.float().sub_(true).square_().flatten(-3).mean(-1)
    return 10 * (255**2 / error.clamp(min=1e-6)).log10()


def sharpness(video: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels of each frame, (...,)."""
    grey = video.float().mean(-3)
    across, down = grey.diff(dim=-1).abs().flatten(-2).mean(-1), grey.diff(dim=-2).abs().flatten(-2).mean(-1)
    return across + down


def lpips_distance(made: Tensor, true: Tensor, weights: Mapping[str, Tensor]) -> FloatArray:
    """LPIPS of each pair of frames of (..., C, H, W) uint8."""
    parts = []
    for ours, theirs in zip(made.flatten(0, -4).split(512), true.flatten(0, -4).split(512), strict=True):
        parts.append(lpips.distance(ours.float() / 127.5 - 1, theirs.float() / 127.5 - 1, weights))
    return torch.cat(parts).reshape(made.shape[:-3]).cpu().double().numpy()


def colour_jump(video_BTCHW: Tensor, bins: int = 6) -> Tensor:
    """Distance (0 to 1) between the colour histograms of consecutive frames, (B, T-1)."""
    return torch.stack([_colour_jump(video_TCHW, bins) for video_TCHW in video_BTCHW])


def _colour_jump(video_TCHW: Tensor, bins: int) -> Tensor:
    frames, _, height, width = video_TCHW.shape
    cells = (video_TCHW.long() * bins) // 256
    code = ((cells[:, 0] * bins + cells[:, 1]) * bins + cells[:, 2]).flatten(1)
    histogram = torch.zeros(frames, bins**3, device=code.device)
    histogram.scatter_add_(1, code, torch.ones_like(code, dtype=histogram.dtype))
    return histogram.diff(dim=0).abs().sum(-1) / (2 * height * width)


def frechet(first: Tensor, second: Tensor) -> float:
    """The Frechet distance of the Gaussians that two sets of features (N, F) suggest."""
    if min(len(first), len(second)) < 2:
        raise ValueError(f"a Frechet distance needs 2 features on each side; there are {len(first)} and {len(second)}")
    both = [features.double().cpu() for features in (first, second)]
    (mean, one), (other, two) = ((features.mean(0), torch.cov(features.T)) for features in both)
    return Reference.of(other, two).distance(mean, one)


@dataclass(frozen=True, slots=True)
class Reference:
    """A Gaussian that many distances are taken to: its mean, covariance, and the covariance's root, computed once."""

    mean_F: Tensor
    covariance_FF: Tensor
    root_FF: Tensor

    @classmethod
    def of(cls, mean_F: Tensor, covariance_FF: Tensor) -> Reference:
        values, vectors = torch.linalg.eigh(covariance_FF)
        return cls(mean_F, covariance_FF, vectors @ torch.diag(values.clamp(min=0).sqrt()) @ vectors.T)

    def distance(self, mean_F: Tensor, covariance_FF: Tensor) -> float:
        """|m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)), with m2 and C2 those of the reference."""
        # tr sqrt(C1 C2) = sum of the square roots of the eigenvalues of C2^(1/2) C1 C2^(1/2), which is symmetric.
        cross = torch.linalg.eigvalsh(self.root_FF @ covariance_FF @ self.root_FF).clamp(min=0).sqrt().sum()
        apart = (mean_F - self.mean_F).square().sum()
        return float(apart + covariance_FF.trace() + self.covariance_FF.trace() - 2 * cross)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def bootstrap(values: FloatArray, draws: int = 2000, seed: int = 0) -> Interval:
    """Resample clips, and seeds within them: `values` is (clips, seeds); entries may be missing (nan)."""
    rng = np.random.default_rng(seed)
    clips, seeds = values.shape
    means = np.empty(draws)
    each = max(1, AT_ONCE // values.size)  # draws: a call of numpy costs more than adding a hundred numbers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where all are missing, so is the mean
        for first in range(0, draws, each):
            some = min(each, draws - first)
            rows = rng.integers(clips, size=(some, clips, 1))
            columns = rng.integers(seeds, size=(some, clips, seeds))
            means[first : first + some] = np.nanmean(values[rows, columns], axis=(1, 2))
        return Interval(float(np.nanmean(values)), *(float(x) for x in np.nanquantile(means, (0.025, 0.975))))


def resampled(statistic: Callable[[IntArray], float], count: int, draws: int = 200, seed: int = 0) -> Interval:
    """A statistic of clips, given by their numbers, with its 95 % bootstrap interval over clips.

    Distances between distributions grow when clips are drawn twice, so the draws are moved to lie around the value of
    all clips: their spread counts, not their mean.
    """
    rng = np.random.default_rng(seed)
    value = statistic(np.arange(count))
    drawn = np.array([statistic(rng.integers(count, size=count)) for _ in range(draws)])
    low, high = np.quantile(drawn - drawn.mean(), (0.025, 0.975))
    return Interval(value, value + float(low), value + float(high))
