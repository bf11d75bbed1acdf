"""Peak signal-to-noise ratio: 10 log10(1 / MSE) of each frame in [0, 1], all channels together; 100 where equal."""

from __future__ import annotations

import torch
from torch import Tensor

from diagonal.evaluation.metrics import About, Metric, Reference, Video
from diagonal.evaluation.statistics import FloatArray

EQUAL = 1e-10  # mean squared errors below this are none
MOST = 100.0  # decibels of equal frames


def psnr(made: Tensor, true: Tensor) -> Tensor:
    """Decibels of each frame of (..., C, H, W) uint8."""
    error = made.float().sub_(true).square_().flatten(-3).mean(-1) / 255**2
    return torch.where(error < EQUAL, MOST, -10 * error.clamp(min=EQUAL).log10())


class Psnr(Metric):
    """Decibels to the true frames; the mean over frames, not of the error."""

    about = About("common_metrics_on_video_quality, calculate_psnr", Reference.PAIR)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        assert true is not None
        decibels: FloatArray = psnr(made.frames_TCHW, true.frames_TCHW).double().numpy()
        return decibels
