"""VBench's imaging quality: MUSIQ trained on SPAQ, divided by 100. Variants say how large frames are made smaller.

longer              the longer side to 512, if it is larger (VBench's default)
shorter             the shorter side to 512, if it is larger
shorter-centercrop  the same, and the square in the middle
none                as they are
"""

from __future__ import annotations

import torch
from torch import Tensor

from diagonal.evaluation.metrics import About, Metric, Setting, Video, WeightsFile
from diagonal.evaluation.statistics import FloatArray
from diagonal.networks.musiq import Musiq
from diagonal.networks.opening import opened
from diagonal.networks.pictures import centre, resized

WEIGHTS = WeightsFile(
    "musiq_spaq_ckpt-358bb6af.pth", "https://github.com/chaofengc/IQA-PyTorch (releases, v0.1-weights)"
)
SIDE = 512


class ImagingQuality(Metric):
    """How clean the frames are, 0 to 1."""

    about = About(
        "Huang et al., VBench, 2024; Ke et al., MUSIQ, 2021",
        variants=("longer", "shorter", "shorter-centercrop", "none"),
        files=(WEIGHTS,),
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.network = opened(Musiq, setting.path(WEIGHTS), setting.device)

    @torch.inference_mode()
    def look(self, made: Video, true: Video | None) -> FloatArray:
        frames = made.frames_TCHW.split(1)
        scores = [self.network(shown(part.to(self.setting.device), self.setting.variant)) for part in frames]
        found: FloatArray = (torch.cat(scores) / 100).cpu().double().numpy()
        return found


def shown(frames_TCHW: Tensor, variant: str) -> Tensor:
    """Frames as a variant shows them, of 0 to 1; a resized side is rounded down: 511 for some odd sizes."""
    height, width = frames_TCHW.shape[-2:]
    side = max(height, width) if variant == "longer" else min(height, width)
    pixels = frames_TCHW.float()
    if variant != "none" and side > SIDE:
        scale = SIDE / side
        pixels = resized(pixels, (int(scale * height), int(scale * width)))
    return (centre(pixels, SIDE) if variant == "shorter-centercrop" else pixels) / 255
