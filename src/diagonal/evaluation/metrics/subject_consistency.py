"""VBench's subject consistency: DINO features of neighbouring frames, and of each frame and the first.

`one-process` weighs all frames alike, `several` takes the mean of clips, as VBench does on several GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from diagonal.evaluation.consistency import consistency, frame_weighted
from diagonal.evaluation.metrics import About, Metric, Setting, Video, WeightsFile
from diagonal.evaluation.statistics import FloatArray, Interval
from diagonal.networks.dino import Dino
from diagonal.networks.opening import opened
from diagonal.networks.pictures import IMAGENET, normalised, shorter_side

WEIGHTS = WeightsFile(
    "dino_vitbase16_pretrain.pth", "https://github.com/facebookresearch/dino (ViT-B/16, backbone only)"
)


class SubjectConsistency(Metric):
    """How much the subject stays what it is, 0 to 1."""

    about = About(
        "Huang et al., VBench, 2024; Caron et al., DINO, 2021",
        variants=("one-process", "several"),
        files=(WEIGHTS,),
        frames=2,
        side=16,
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.network = opened(Dino, setting.path(WEIGHTS), setting.device)

    @torch.inference_mode()
    def look(self, made: Video, true: Video | None) -> FloatArray:
        frames = made.frames_TCHW.split(8)
        features = [self.network(shown(part.to(self.setting.device))) for part in frames]
        return consistency(torch.cat(features))

    def total(self, made: Sequence[FloatArray], real: Sequence[FloatArray]) -> Interval:
        return super().total(made, real) if self.setting.variant == "several" else frame_weighted(made)


def shown(frames_TCHW: torch.Tensor) -> torch.Tensor:
    """Frames as DINO sees them: the shorter side at 224, nothing cut off, not rounded to bytes again."""
    return normalised(shorter_side(frames_TCHW, 224) / 255, IMAGENET)
