"""VBench's temporal flickering: (255 - m) / 255, m the mean absolute difference of neighbouring frames, 0 to 255.

VBench scores only videos that its static filter lets pass, for whatever moves flickers by this measure; here all are.
"""

from __future__ import annotations

from diagonal.evaluation.clips import change
from diagonal.evaluation.metrics import About, Metric, Video
from diagonal.evaluation.statistics import FloatArray


class TemporalFlickering(Metric):
    """How still pixels stay from frame to frame, 1 where they all do."""

    about = About("Huang et al., VBench, 2024 (temporal flickering, without the static filter)", frames=2)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        still: FloatArray = 1 - change(made.frames_TCHW[None])[0].double().numpy()
        return still
