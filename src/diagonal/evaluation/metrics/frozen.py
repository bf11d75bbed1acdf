"""Share of frames that repeat the one before: pairs whose mean absolute difference is below 0.001 of the range."""

from __future__ import annotations

from diagonal.evaluation.clips import change
from diagonal.evaluation.metrics import About, Better, Metric, Video
from diagonal.evaluation.statistics import FloatArray

STILL = 0.001  # FFmpeg's freezedetect takes the same at -60 dB


class Frozen(Metric):
    """How often a video stands still; real ones of the same kind say how often it should."""

    about = About("our own", better=Better.NEITHER, frames=2)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        still: FloatArray = (change(made.frames_TCHW[None])[0] < STILL).double().numpy()
        return still
