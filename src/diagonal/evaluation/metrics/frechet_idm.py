"""Frechet distance of Doom clips to real ones, on features of our own network that tells actions from pairs of frames.

It sees motion, and knows Doom alone. It is no FVD: numbers of other games or networks must not be compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from diagonal.checkpoints import ASSETS
from diagonal.evaluation.clips import frechet_distance
from diagonal.evaluation.metrics import About, Better, Metric, Reference, Setting, Video
from diagonal.evaluation.statistics import FloatArray, Interval
from diagonal.networks.inverse_dynamics import Config, judge
from diagonal.networks.opening import opened
from diagonal.worlds.vizdoom import ACTIONS


class FrechetIdm(Metric):
    """Frechet distance of inverse-dynamics features to real clips; the weights come with the package."""

    about = About("our own; the form of Heusel et al., 2017", Reference.SET, Better.LOWER, frames=2, clips=2)

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.network = opened(Config(len(ACTIONS)).build, ASSETS / "judge", setting.device)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        _, features = judge(self.network, made.frames_TCHW[None].to(self.setting.device))
        found: FloatArray = features[0].cpu().double().numpy()
        return found

    def total(self, made: Sequence[FloatArray], real: Sequence[FloatArray]) -> Interval:
        ours, theirs = (torch.from_numpy(np.stack(one)) for one in (made, real))
        return frechet_distance(ours, theirs)
