"""Spatial information (ITU-T P.910): the standard deviation over pixels of the Sobel gradient of the luma, 0 to 255.

A rollout that blurs loses it. The recommendation takes the largest of a video; here it is the mean over frames.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from diagonal.evaluation.flow import brightness
from diagonal.evaluation.metrics import About, Better, Metric, Video
from diagonal.evaluation.statistics import FloatArray


class SpatialInformation(Metric):
    """How much edge there is in frames; a description, to be held against that of real videos."""

    about = About("ITU-T P.910", better=Better.NEITHER, side=3)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        across = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
        luma = brightness(made.frames_TCHW)[:, None]
        edges = F.conv2d(luma, torch.stack([across, across.T])[:, None]).square().sum(1).sqrt()
        found: FloatArray = edges.flatten(1).std(1, correction=0).double().numpy()
        return found
