"""VBench's formula of consistency on features of EfficientNet-Lite0: a proxy for where DINO's file is not there."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from diagonal.evaluation.consistency import consistency, frame_weighted
from diagonal.evaluation.metrics import About, Metric, Setting, Video
from diagonal.evaluation.metrics.fd_efficientnet import WEIGHTS, Features
from diagonal.evaluation.statistics import FloatArray, Interval


class ConsistencyEfficientnet(Metric):
    """How much what is seen stays what it is, 0 to 1: a proxy."""

    about = About(
        "our own; Tan and Le, EfficientNet, 2019; formula of Huang et al., VBench, 2024", files=(WEIGHTS,), frames=2
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.features = Features(setting)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        return consistency(torch.from_numpy(self.features(made)))

    def total(self, made: Sequence[FloatArray], real: Sequence[FloatArray]) -> Interval:
        return frame_weighted(made)
