"""What becomes of a video that never ends: how it looks and moves from second to second.

Frames come as they are made and are forgotten once they are measured, so that minutes take no more memory than seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise

import torch
from torch import Tensor

from diagonal.evaluation.clips import frechet_distance
from diagonal.evaluation.distilled import looks
from diagonal.evaluation.statistics import Interval, bootstrap
from diagonal.networks.inverse_dynamics import InverseDynamics, judge

WINDOW = 10  # seconds whose features are compared with those of real clips

Curves = dict[str, list[Interval]]


def drift(
    pieces: Iterator[Tensor], seconds: int, fps: Fraction | int, idm: InverseDynamics, real_NTF: Tensor
) -> Curves:
    """Curves of several videos that are made at once, each second with its interval over videos: `sharpness`,
    `saturation`, `change`, `flow`; and `frechet_idm` of each ten seconds.

    `pieces` are the next frames (N, t, C, H, W) of all videos; no more are taken than the seconds need. `real_NTF` are
    the network's features of real clips.
    """
    if seconds < WINDOW or seconds % WINDOW:
        raise ValueError(f"{seconds} seconds given; drift is measured in tens of seconds: {WINDOW}, {2 * WINDOW}, ...")
    begins = [math.ceil(second * Fraction(fps)) for second in range(seconds + 1)]  # the first frame of each second
    curves: Curves = {}
    for window, video in enumerate(_spans(pieces, begins[::WINDOW])):
        _, features = judge(idm, video)
        curves.setdefault("frechet_idm", []).append(frechet_distance(features, real_NTF))
        bounds = [begin - begins[window * WINDOW] for begin in begins[window * WINDOW : (window + 1) * WINDOW + 1]]
        for name, values in looks(video).items():
            for first, last in pairwise(bounds):
                mean = values[:, first:last].double().mean(1)
                curves.setdefault(name, []).append(bootstrap(mean.numpy()[:, None]))
    return curves


def _spans(pieces: Iterator[Tensor], bounds: list[int]) -> Iterator[Tensor]:
    """Frames [first, last] of neighbouring bounds: with the first one of the next span, for pairs across them."""
    kept, start = next(pieces), bounds[0]
    for last in bounds[1:]:
        while kept.shape[1] < last - start + 1:
            kept = torch.cat([kept, next(pieces)], 1)
        yield kept[:, : last - start + 1]
        kept, start = kept[:, last - start :], last
