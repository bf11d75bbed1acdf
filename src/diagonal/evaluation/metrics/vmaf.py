"""VMAF v0.6.1 (Netflix), as package vmaf-torch computes it: within some hundredths of libvmaf.

It is fed the luma plane as the files carry it; frames without a file are converted, which moves scores by some tenths
(full-range grey would score 2.7 too low). Motion is that of the true video, so frames come in order, a few at a time
with a neighbour on each side.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diagonal.evaluation.flow import brightness
from diagonal.evaluation.metrics import About, Metric, Reference, Setting, UnfitError, Video
from diagonal.evaluation.statistics import FloatArray
from diagonal.media.video import read_luma

FEW = 8  # frames at a time


class Vmaf(Metric):
    """How near to the true video it looks to people, 0 to 100. `neg` gives nothing for sharpening."""

    about = About(
        "Netflix, VMAF v0.6.1; Aistov and Koroteev, VMAF re-implementation on PyTorch, 2023",
        Reference.PAIR,
        variants=("v0.6.1", "neg"),
        frames=2,
        side=32,
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        try:
            from vmaf_torch import VMAF
        except ImportError as error:
            raise UnfitError("needs the package vmaf-torch: pip install 'diagonal[eval]'") from error
        self.network: Any = VMAF(clip_score=True, NEG=setting.variant == "neg").to(setting.device).eval()

    @torch.inference_mode()
    def look(self, made: Video, true: Video | None) -> FloatArray:
        assert true is not None
        ours, theirs = (luma(video).to(self.setting.device) for video in (made, true))
        scores = []
        for first in range(0, len(ours), FEW):
            before, behind = max(0, first - 1), first + FEW + 1
            some = self.network(theirs[before:behind], ours[before:behind])[:, 0]
            scores.append(some[first - before :][:FEW])
        found: FloatArray = torch.cat(scores).cpu().double().numpy()
        return found


def luma(video: Video) -> Tensor:
    """The Y plane (T, 1, H, W), 16 to 235."""
    if video.path is None:
        return (16 + brightness(video.frames_TCHW) * 219 / 255).round()[:, None]
    return torch.from_numpy(read_luma(video.path, len(video.frames_TCHW)))[:, None].float()
