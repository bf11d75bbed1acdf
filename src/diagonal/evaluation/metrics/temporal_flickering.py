"""VBench's temporal flickering: (255 - m) / 255, m the mean absolute difference of neighbouring frames, 0 to 255.

all     every video counts, though whatever moves flickers by this measure
static  only videos that VBench's filter takes for still: by RAFT, the mean of the largest 2 % of the flow exceeds
        3 min(H, W) / 256 in at most a = round(2 n / 16) pairs of n frames, and from the first to the last frame and
        back it does not exceed 2 a times that limit (none at all, where a is 0: up to 4 frames)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from diagonal.evaluation.clips import change
from diagonal.evaluation.metrics import About, Metric, Setting, UnfitError, Video
from diagonal.evaluation.metrics.dynamic_degree import SIDE, WEIGHTS, speed
from diagonal.evaluation.statistics import FloatArray, Interval, bootstrap
from diagonal.networks import raft
from diagonal.networks.opening import opened

FASTEST, LIMIT = 0.02, 3.0


class TemporalFlickering(Metric):
    """How still pixels stay from frame to frame, 1 where they all do."""

    about = About(
        "Huang et al., VBench, 2024 (temporal flickering, and its static filter)",
        variants=("all", "static"),
        own_files={"static": (WEIGHTS,)},
        frames=2,
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        filtered = setting.variant == "static"
        self.network = opened(raft.Raft, setting.path(WEIGHTS), setting.device) if filtered else None

    def look(self, made: Video, true: Video | None) -> FloatArray:
        still: FloatArray = 1 - change(made.frames_TCHW[None])[0].double().numpy()
        return still if self.network is None or self._static(self.network, made) else still[:0]

    def of_video(self, seen: FloatArray) -> float:
        return float(seen.mean()) if len(seen) else float("nan")

    def total(self, made: Sequence[FloatArray], real: Sequence[FloatArray]) -> Interval:
        if not any(len(seen) for seen in made):
            raise UnfitError("needs videos that stand still; VBench's filter lets none of these pass")
        return bootstrap(np.array([[self.of_video(seen)] for seen in made]))

    def _static(self, network: raft.Raft, made: Video) -> bool:
        frames = made.frames_TCHW.to(self.setting.device)
        side = min(frames.shape[-2:])
        if side < raft.SIDE:
            raise UnfitError(f"RAFT needs sides of at least {raft.SIDE} pixels; the video has {side}")
        pairs = [*itertools.pairwise(frames), (frames[0], frames[-1]), (frames[-1], frames[0])]
        return static([speed(network, first, second, FASTEST) for first, second in pairs], side)


def static(scores: list[float], side: int) -> bool:
    """Whether a video stands still, by the scores of its pairs and of its ends, there and back."""
    *pairs, there, back = scores
    limit, allowed = LIMIT * side / SIDE, round(2 * (len(pairs) + 1) / 16)
    return sum(score > limit for score in pairs) <= allowed and max(there, back) <= limit * 2 * allowed
