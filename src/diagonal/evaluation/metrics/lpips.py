"""LPIPS (Zhang et al., 2018), version 0.1 on AlexNet, of each pair of frames.

`plain` averages each stage over its own positions, as the authors' code does by default. `spatial` enlarges the stages
to the frame first (spatial=True, as common_metrics does); the two differ a little.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from diagonal.evaluation.metrics import About, Better, Metric, Reference, Setting, Video, WeightsFile
from diagonal.evaluation.statistics import FloatArray
from diagonal.networks import lpips

WEIGHTS = WeightsFile(
    "lpips_alex_v0.1.safetensors",
    "conv0..4 of torchvision's AlexNet and lin0..4 of package lpips (lpips/weights/v0.1/alex.pth), as safetensors",
)


def lpips_distance(
    made: Tensor, true: Tensor, weights: Mapping[str, Tensor], spatial: bool = False, batch: int = 512
) -> FloatArray:
    """LPIPS of each pair of frames of (..., C, H, W) uint8."""
    parts = []
    for ours, theirs in zip(made.flatten(0, -4).split(batch), true.flatten(0, -4).split(batch), strict=True):
        parts.append(lpips.distance(ours.float() / 127.5 - 1, theirs.float() / 127.5 - 1, weights, spatial))
    found: FloatArray = torch.cat(parts).reshape(made.shape[:-3]).cpu().double().numpy()
    return found


class Lpips(Metric):
    """Perceptual distance to the true frames."""

    about = About(
        "Zhang et al., The Unreasonable Effectiveness of Deep Features, 2018",
        Reference.PAIR,
        Better.LOWER,
        variants=("plain", "spatial"),
        files=(WEIGHTS,),
        side=31,  # the third stage of a smaller picture is empty
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.weights = lpips.load(setting.path(WEIGHTS), setting.device)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        assert true is not None
        ours, theirs = (video.frames_TCHW.to(self.setting.device) for video in (made, true))
        return lpips_distance(ours, theirs, self.weights, self.setting.variant == "spatial", batch=8)
