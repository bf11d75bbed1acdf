"""VBench's dynamic degree: the share of videos that move, by RAFT.

Frames are taken at about 8 a second. Of each pair the largest 5 % of the flow's lengths are averaged; a pair is fast if
that exceeds 6 min(H, W) / 256 pixels, and a video moves if at least round(4 n / 16) pairs of its n frames are. With
two frames that is none, and any video moves; a single frame never does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from diagonal.evaluation.metrics import About, Better, Metric, Setting, Video, WeightsFile
from diagonal.evaluation.statistics import FloatArray
from diagonal.networks import raft
from diagonal.networks.correlation import padded
from diagonal.networks.opening import opened

WEIGHTS = WeightsFile("raft-things.pth", "https://github.com/princeton-vl/RAFT (demos, models.zip)")
FASTEST, LIMIT, SIDE = 0.05, 6.0, 256
RATE = 8  # frames a second that are looked at


class DynamicDegree(Metric):
    """Share of videos that move; a description more than a merit: a still scene need not."""

    about = About(
        "Huang et al., VBench, 2024; Teed and Deng, RAFT, 2020",
        better=Better.NEITHER,
        files=(WEIGHTS,),
        frames=2,
        side=raft.SIDE,
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.network = opened(raft.Raft, setting.path(WEIGHTS), setting.device)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        return degree(partial(speed, self.network), made, self.setting.device)


def degree(speed_of: Callable[[Tensor, Tensor], float], video: Video, device: torch.device | str) -> FloatArray:
    """Whether a video moves, 0 or 1, by how fast its pairs of frames are."""
    frames = video.frames_TCHW[:: max(1, round(video.fps / RATE))].to(device)
    scores = [speed_of(first, second) for first, second in itertools.pairwise(frames)]
    return np.array([float(moves(scores, min(frames.shape[-2:])))])


@torch.inference_mode()
def speed(
    network: nn.Module,
    first_CHW: Tensor,
    second_CHW: Tensor,
    share: float = FASTEST,
    multiple: int = raft.MULTIPLE,
) -> float:
    """The mean of the largest lengths of the flow, in pixels; the padding counts, as it does in VBench."""
    flow = network(*(padded(frame[None].float(), multiple) for frame in (first_CHW, second_CHW)))
    lengths = flow.square().sum(1).sqrt().flatten()
    return float(lengths.topk(int(share * lengths.numel())).values.mean())


def moves(scores: list[float], side: int) -> bool:
    """Whether enough pairs are fast, for frames whose shorter side is so long."""
    frames = len(scores) + 1
    needed = round(4 * frames / 16)
    return bool(scores) and sum(score > LIMIT * side / SIDE for score in scores) >= needed
