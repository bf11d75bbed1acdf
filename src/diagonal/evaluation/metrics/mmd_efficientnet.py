"""100 times JEDi's kernel discrepancy on features of EfficientNet-Lite0, a proxy for few clips. It is no JEDi.

Variants are those of fd_efficientnet: how frames look, and how they change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from diagonal.evaluation.distances import polynomial_mmd
from diagonal.evaluation.metrics import About, Better, Metric, Reference, Setting, Video
from diagonal.evaluation.metrics.fd_efficientnet import VARIANTS, WEIGHTS, Features
from diagonal.evaluation.statistics import FloatArray, Interval, resampled


class MmdEfficientnet(Metric):
    """Kernel distance of EfficientNet features to real clips: a proxy."""

    about = About(
        "our own; Tan and Le, EfficientNet, 2019; kernel of Luo et al., 2024",
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
        ours = [torch.from_numpy(one) for one in made]
        theirs = torch.from_numpy(np.concatenate(real))

        def distance(chosen: object) -> float:
            return 100 * polynomial_mmd(torch.cat([ours[number] for number in np.asarray(chosen)]), theirs)

        return resampled(distance, len(ours), draws=20)
