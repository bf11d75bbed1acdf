"""Kernel video distance: 100 times the quadratic-kernel discrepancy of JEDi, on I3D's logits instead of V-JEPA's.

For few clips, where a Frechet distance has no covariance. Not comparable with JEDi, nor with FVD. Variants show clips
to the network as fvd does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from diagonal.evaluation.distances import polynomial_mmd
from diagonal.evaluation.metrics import About, Better, Metric, Reference, Setting, Video
from diagonal.evaluation.metrics.fvd import FILES, Features
from diagonal.evaluation.statistics import FloatArray, Interval, resampled
from diagonal.networks import i3d


class Kvd(Metric):
    """Kernel distance of I3D features to real clips."""

    about = About(
        "kernel of Luo et al., Beyond FVD, 2024, on the features of Unterthiner et al., 2018",
        Reference.SET,
        Better.LOWER,
        variants=tuple(FILES),
        own_files={name: (file,) for name, file in FILES.items()},
        frames=i3d.FRAMES,
        clips=2,
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.features = Features(setting)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        return self.features(made)

    def total(self, made: Sequence[FloatArray], real: Sequence[FloatArray]) -> Interval:
        first, second = (torch.from_numpy(np.concatenate(one)) for one in (made, real))
        return resampled(lambda some: 100 * polynomial_mmd(first[some], second), len(first))
