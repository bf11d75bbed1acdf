"""Structural similarity (Wang et al., 2004) in float64: a Gaussian of 11 pixels and sigma 1.5, the valid region, each
channel by itself, C1 = 0.01^2 and C2 = 0.03^2 on [0, 1]."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from diagonal.evaluation.metrics import About, Metric, Reference, Video
from diagonal.evaluation.statistics import FloatArray

SIZE, SIGMA = 11, 1.5
C1, C2 = 0.01**2, 0.03**2


def ssim(made_NCHW: Tensor, true_NCHW: Tensor) -> Tensor:
    """Similarity of each pair of pictures, uint8, (N,)."""
    x, y = (picture.double().flatten(0, 1)[:, None] / 255 for picture in (made_NCHW, true_NCHW))
    mean_x, mean_y = _blur(x), _blur(y)
    var_x, var_y = _blur(x * x) - mean_x**2, _blur(y * y) - mean_y**2
    covariance = _blur(x * y) - mean_x * mean_y
    above = (2 * mean_x * mean_y + C1) * (2 * covariance + C2)
    below = (mean_x**2 + mean_y**2 + C1) * (var_x + var_y + C2)
    return (above / below).reshape(len(made_NCHW), -1).mean(1)


def _blur(x_N1HW: Tensor) -> Tensor:
    """Weighted means of what lies whole inside the picture."""
    place = torch.arange(SIZE, dtype=x_N1HW.dtype, device=x_N1HW.device) - SIZE // 2
    weight = torch.exp(-(place**2) / (2 * SIGMA**2))
    weight = weight / weight.sum()
    return F.conv2d(F.conv2d(x_N1HW, weight.view(1, 1, -1, 1)), weight.view(1, 1, 1, -1))


class Ssim(Metric):
    """Structural similarity to the true frames."""

    about = About("Wang et al., Image quality assessment, 2004; common_metrics", Reference.PAIR, side=SIZE)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        assert true is not None
        pairs = zip(made.frames_TCHW, true.frames_TCHW, strict=True)
        found: FloatArray = torch.cat([ssim(one[None], other[None]) for one, other in pairs]).numpy()
        return found
