"""Kernel video distance: 100 times the quadratic-kernel discrepancy of JEDi, on I3D's logits instead of V-JEPA's.

For few clips, where a Frechet distance has no covariance. Not comparable with JEDi, nor with FVD. Variants show clips
to the network as fvd does. `tats-own` is what TATS computes beside its FVD: the kernel (x.y / d + 1)^3, unbiased, and
not times 100.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from diagonal.evaluation.distances import polynomial_mmd
from diagonal.evaluation.metrics import About, Better, Metric, Reference, Setting, Video
from diagonal.evaluation.metrics.fvd import FILES, Features
from diagonal.evaluation.statistics import FloatArray, IntArray, Interval, resampled
from diagonal.networks import i3d

OWN, SHOWN = "tats-own", "tats"


class Kvd(Metric):
    """Kernel distance of I3D features to real clips."""

    about = About(
        "kernel of Luo et al., Beyond FVD, 2024, on the features of Unterthiner et al., 2018",
        Reference.SET,
        Better.LOWER,
        variants=(*FILES, OWN),
        own_files={name: (file,) for name, file in FILES.items()} | {OWN: (FILES[SHOWN],)},
        frames=i3d.FRAMES,
        clips=2,
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.features = Features(replace(setting, variant=SHOWN) if setting.variant == OWN else setting)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        return self.features(made)

    def total(self, made: Sequence[FloatArray], real: Sequence[FloatArray]) -> Interval:
        first, second = (torch.from_numpy(np.concatenate(one)) for one in (made, real))

        def distance(some: IntArray) -> float:
            if self.setting.variant == OWN:
                return polynomial_mmd(first[some], second, 3, 1, unbiased=True)
            return 100 * polynomial_mmd(first[some], second)

        return resampled(distance, len(first))
