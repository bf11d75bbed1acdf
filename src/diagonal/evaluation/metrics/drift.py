"""How fast a look drifts away: the least-squares slope of a curve over frames, per 100 frames.

Nothing true is needed. Sharpness falls where a rollout blurs, saturation moves where colours run away. For curves to a
truth see `slope_per_100` of psnr, ssim and lpips.
"""

from __future__ import annotations

from diagonal.evaluation.clips import laplacian_variance, saturation, sharpness
from diagonal.evaluation.metrics import About, Better, Metric, Video
from diagonal.evaluation.statistics import FloatArray, slope

CURVES = {"sharpness": sharpness, "laplacian": laplacian_variance, "saturation": saturation}


class Drift(Metric):
    """The slope per 100 frames of how frames look."""

    about = About("our own", better=Better.NEITHER, variants=tuple(CURVES), frames=2, side=3)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        curve: FloatArray = CURVES[self.setting.variant](made.frames_TCHW[None])[0].double().numpy()
        return curve

    def of_video(self, seen: FloatArray) -> float:
        return slope(seen)
