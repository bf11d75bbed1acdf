"""Numbers about generated clips: how they look, how they move, and how far two sets of them are from each other.

Videos are uint8 (B, T, 3, H, W), on any device. Nothing here knows a model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from diagonal.evaluation.distances import Reference
from diagonal.evaluation.flow import brightness
from diagonal.evaluation.statistics import Interval, resampled


def evenly(total: int, count: int) -> Tensor:
    """`count` numbers below `total`, or all of them, evenly spaced."""
    return torch.linspace(0, total - 1, min(count, total)).round().long()


def sharpness(video: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels of each frame, (...,)."""
    grey = video.float().mean(-3)
    across, down = grey.diff(dim=-1).abs().flatten(-2).mean(-1), grey.diff(dim=-2).abs().flatten(-2).mean(-1)
    return across + down


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


def laplacian_variance(video_BTCHW: Tensor) -> Tensor:
    """Sharpness of each frame, (B, T): the variance of the Laplacian of its luma (of 0 to 255)."""
    grey_NHW = brightness(video_BTCHW).flatten(0, 1)
    kernel = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]], device=grey_NHW.device)
    edges = F.conv2d(grey_NHW[:, None], kernel[None, None])
    return edges.flatten(1).var(1, correction=0).reshape(video_BTCHW.shape[:2])


def saturation(video_BTCHW: Tensor) -> Tensor:
    """Chroma of each frame, (B, T): the mean difference of a pixel's largest and smallest colour, 0 to 1."""
    chroma = video_BTCHW.amax(2).float() - video_BTCHW.amin(2)
    return chroma.flatten(2).mean(2) / 255


def change(video_BTCHW: Tensor) -> Tensor:
    """Motion as pixels see it, (B, T-1): the mean absolute difference of consecutive frames, 0 to 1."""
    return video_BTCHW.float().diff(dim=1).abs().flatten(2).mean(2) / 255


def colour_spread(video_BTCHW: Tensor, kind_B: Tensor) -> Interval:
    """How much clips of one kind differ in colour, 0 to 1, with an interval over clips: the standard deviation of the
    mean colours of its clips, averaged over kinds. A model that paints a place always in the same colour is near 0."""
    colour_BC = torch.stack([clip.double().mean((0, 2, 3)) / 255 for clip in video_BTCHW]).cpu()
    own_KB = F.one_hot(kind_B.cpu()).T.double()

    def spread(chosen: object) -> float:
        drawn_KB = own_KB * torch.bincount(torch.as_tensor(chosen), minlength=len(colour_BC))
        count_K1 = drawn_KB.sum(1, keepdim=True)
        mean_KC = drawn_KB @ colour_BC / count_K1.clamp(min=1)
        var_KC = drawn_KB @ colour_BC**2 / count_K1.clamp(min=1) - mean_KC**2
        return float(var_KC.clamp(min=0).mean(1).sqrt()[count_K1[:, 0] > 1].mean())

    return resampled(spread, len(colour_BC))


def wasserstein(first: Tensor, second: Tensor) -> float:
    """Distance of two distributions of numbers, given by samples: the area between their cumulative shares."""
    one, two = (values.flatten().double().sort().values for values in (first, second))
    if not (len(one) and len(two)):
        raise ValueError(f"a distance of distributions needs samples of both; {len(one)} and {len(two)} given")
    places = torch.cat([one, two]).sort().values
    below = [torch.searchsorted(values, places[:-1], right=True).double() / len(values) for values in (one, two)]
    return float(((below[0] - below[1]).abs() * places.diff()).sum())


def f1(told_NM: Tensor, seen_NM: Tensor) -> float:
    """Of things that are told and things that are seen, over all clips: 2 both / (told + seen); 1 where there are
    none."""
    both, all_of_them = int((told_NM & seen_NM).sum()), int(told_NM.sum() + seen_NM.sum())
    return 2 * both / all_of_them if all_of_them else 1.0


def frechet_distance(made_BTF: Tensor, true_BTF: Tensor) -> Interval:
    """The Frechet distance of the features of two sets of clips, with an interval over the clips of the first.

    Every clip is reduced to its sums, so that drawing clips anew costs no look at their features.
    """
    count, sums, squares = _sums(made_BTF)
    reference = Reference.of(*_moments(*(part.sum(0) for part in _sums(true_BTF))))

    def distance(chosen: object) -> float:
        often = torch.bincount(torch.as_tensor(chosen), minlength=len(count)).double()  # how often each clip was drawn
        total = (often @ squares.flatten(1)).unflatten(0, squares.shape[1:])
        return reference.distance(*_moments(often @ count, often @ sums, total))

    return resampled(distance, len(made_BTF))


def _sums(features_BTF: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How many features each clip has, their sum and the sum of their outer products."""
    wide = features_BTF.double()
    count = torch.full((len(wide),), wide.shape[1], dtype=torch.float64)
    return count, wide.sum(1).cpu(), torch.einsum("btf,btg->bfg", wide, wide).cpu()


def _moments(count: Tensor, total: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance."""
    if count < 2:
        raise ValueError(f"a Frechet distance needs 2 features on each side; there are {int(count)}")
    mean = total / count
    return mean, (squares - count * torch.outer(mean, mean)) / (count - 1)
