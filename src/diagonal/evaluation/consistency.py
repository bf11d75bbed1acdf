"""VBench's formula of consistency: how near the features of each frame are to the previous and to the first one's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from diagonal.evaluation.statistics import FloatArray, Interval, resampled


def consistency(features_TF: Tensor) -> FloatArray:
    """Of each frame from the second on: the mean of max(0, cosine to the previous) and max(0, cosine to the first)."""
    unit = F.normalize(features_TF.double(), dim=-1)
    previous, first = (unit[1:] * unit[:-1]).sum(-1), unit[1:] @ unit[0]
    found: FloatArray = ((previous.clamp(min=0) + first.clamp(min=0)) / 2).cpu().numpy()
    return found


def frame_weighted(values: Sequence[FloatArray]) -> Interval:
    """The mean over all frames of all clips, as VBench takes it in one process: longer clips weigh more."""
    sums, counts = (np.array(one) for one in zip(*((v.sum(), v.size) for v in values), strict=True))
    return resampled(lambda some: float(sums[some].sum() / counts[some].sum()), len(values), draws=2000)
