"""JEDi (Luo et al., Beyond FVD, 2024): 100 times the quadratic-kernel discrepancy of V-JEPA's features.

    100 (mean k(x, x') + mean k(y, y') - 2 mean k(x, y)),  k(x, y) = (x.y / 1280)^2, all pairs counted

It needs about a sixth of FVD's clips. Frames are all those of a clip, 16 by custom (--first 16); positions of other
lengths are interpolated, as the authors' code does. Variants say how frames are shown:

    resized  stretched to 224 x 224, which the network was trained on
    as-is    in their own size, as the authors' package does with what it is given
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from diagonal.evaluation.distances import polynomial_mmd
from diagonal.evaluation.metrics import About, Better, Metric, Reference, Setting, Video, WeightsFile
from diagonal.evaluation.statistics import FloatArray, Interval, resampled
from diagonal.networks import vjepa
from diagonal.networks.opening import opened
from diagonal.networks.pictures import IMAGENET, normalised, resized

ENCODER = WeightsFile("vith16.pth.tar", "https://github.com/facebookresearch/jepa (V-JEPA ViT-H, 16x224)")
PROBE = WeightsFile(
    "ssv2-probe.pth.tar", "https://github.com/facebookresearch/jepa (ViT-H/16, attentive probe of SSv2)"
)


class Jedi(Metric):
    """Kernel distance of V-JEPA features to real clips."""

    about = About(
        "Luo et al., Beyond FVD, 2024; Bardes et al., V-JEPA, 2024",
        Reference.SET,
        Better.LOWER,
        variants=("resized", "as-is"),
        files=(ENCODER, PROBE),
        frames=vjepa.TUBE,
        side=vjepa.PATCH,
        clips=2,
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        config, probe = vjepa.Config(), setting.path(PROBE)
        self.encoder = opened(config.encoder, setting.path(ENCODER), setting.device, vjepa.PART)
        self.pooler = opened(config.pooler, probe, setting.device, "classifier")

    @torch.inference_mode()
    def look(self, made: Video, true: Video | None) -> FloatArray:
        pixels = shown(made.frames_TCHW.to(self.setting.device), self.setting.variant)
        feature: FloatArray = self.pooler(self.encoder(pixels.transpose(0, 1)[None])).cpu().double().numpy()
        return feature

    def total(self, made: Sequence[FloatArray], real: Sequence[FloatArray]) -> Interval:
        first, second = (torch.from_numpy(np.concatenate(one)) for one in (made, real))
        return resampled(lambda some: 100 * polynomial_mmd(first[some], second), len(first))


def shown(frames_TCHW: Tensor, variant: str) -> Tensor:
    """Frames as a variant shows them to the network."""
    side = vjepa.Config().side
    pixels = resized(frames_TCHW, (side, side)) if variant == "resized" else frames_TCHW.float()
    return normalised(pixels / 255, IMAGENET)
