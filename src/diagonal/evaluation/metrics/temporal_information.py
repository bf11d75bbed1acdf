"""Temporal information (ITU-T P.910): the standard deviation over pixels of the difference of neighbouring lumas."""

from __future__ import annotations

from diagonal.evaluation.flow import brightness
from diagonal.evaluation.metrics import About, Better, Metric, Video
from diagonal.evaluation.statistics import FloatArray


class TemporalInformation(Metric):
    """How much pictures change; a description, to be held against that of real videos."""

    about = About("ITU-T P.910", better=Better.NEITHER, frames=2)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        changes = brightness(made.frames_TCHW).diff(dim=0).flatten(1)
        found: FloatArray = changes.std(1, correction=0).double().numpy()
        return found
