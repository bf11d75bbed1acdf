"""VBench's background consistency: the formula of subject consistency on features of CLIP ViT-B/32."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from diagonal.evaluation.consistency import consistency, frame_weighted
from diagonal.evaluation.metrics import About, Metric, Setting, Video, WeightsFile
from diagonal.evaluation.statistics import FloatArray, Interval
from diagonal.networks import clip
from diagonal.networks.opening import opened
from diagonal.networks.pictures import CLIP, centre, normalised, shorter_side

WEIGHTS = WeightsFile("ViT-B-32.pt", "https://github.com/openai/CLIP (clip/clip.py names the address)")


class BackgroundConsistency(Metric):
    """How much the scene stays what it is, 0 to 1."""

    about = About("Huang et al., VBench, 2024; Radford et al., CLIP, 2021", files=(WEIGHTS,), frames=2)

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.network = opened(clip.B32.build, setting.path(WEIGHTS), setting.device)

    @torch.inference_mode()
    def look(self, made: Video, true: Video | None) -> FloatArray:
        frames = made.frames_TCHW.split(8)
        return consistency(torch.cat([self.network(shown(part.to(self.setting.device))) for part in frames]))

    def total(self, made: Sequence[FloatArray], real: Sequence[FloatArray]) -> Interval:
        return frame_weighted(made)


def shown(frames_TCHW: torch.Tensor) -> torch.Tensor:
    """Frames as CLIP sees them: bicubic, which may overshoot, the square in the middle."""
    return normalised(centre(shorter_side(frames_TCHW, clip.SIDE, "bicubic"), clip.SIDE) / 255, CLIP)
