"""BRISQUE (Mittal et al., 2012) of each frame, as OpenCV's quality module computes it, with the model that it ships.

36 numbers of how natural brightness is, at full and at half size, by a support vector machine that was trained on what
people said of the LIVE pictures. It knows blur, noise and compression of photographs; of drawn worlds it is a proxy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from diagonal.evaluation import naturalness
from diagonal.evaluation.metrics import About, Better, Metric, Setting, Video, WeightsFile
from diagonal.evaluation.statistics import FloatArray

PLACE = "https://github.com/opencv/opencv_contrib (modules/quality/samples)"
MODEL, RANGE = (WeightsFile(f"brisque_{part}_live.yml", PLACE) for part in ("model", "range"))
FEATURES = 36
WORST = 100.0
LARGEST = 10**7  # bytes of a file


class Brisque(Metric):
    """How unnatural the frames are, 0 to 100."""

    about = About(
        "Mittal et al., No-reference image quality assessment in the spatial domain, 2012; OpenCV, quality module",
        better=Better.LOWER,
        files=(MODEL, RANGE),
        side=16,
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.judge = Judge.read(setting.path(MODEL), setting.path(RANGE))

    def look(self, made: Video, true: Video | None) -> FloatArray:
        found: FloatArray = self.judge(features(made.frames_TCHW.to(self.setting.device)).cpu()).double().numpy()
        return found


def features(frames_TCHW: Tensor) -> Tensor:
    """The 36 numbers of each frame, (T, 36)."""
    grey = naturalness.grey(frames_TCHW) / 255
    half = (grey.shape[1] // 2, grey.shape[2] // 2)
    smaller = F.interpolate(grey[:, None], half, mode="bicubic", align_corners=False)[:, 0]
    return torch.cat([_described(naturalness.normalised(one, 1 / 255)) for one in (grey, smaller)], 1)


def _described(x_THW: Tensor) -> Tensor:
    """18 numbers of a size: the shape of brightness and its mean square, then of each product of neighbours the shape,
    the mean, and the mean squares to both sides."""
    shape, left, right = naturalness.asymmetric(x_THW.flatten(1))
    found = [shape, (left**2 + right**2) / 2]
    wide, (height, width) = F.pad(x_THW, (1, 1, 1, 1)), x_THW.shape[1:]  # beyond the edge there is 0
    for down, across in naturalness.NEIGHBOURS:
        neighbour = wide[:, 1 + down : 1 + down + height, 1 + across : 1 + across + width]
        shape, left, right = naturalness.asymmetric((x_THW * neighbour).flatten(1))
        found += [shape, naturalness.scales(shape, left, right)[2], left**2, right**2]
    return torch.stack(found, 1)


@dataclass(frozen=True, slots=True)
class Judge:
    """A support vector machine: the sum of weights times exp(-gamma |x - vector|^2), minus an offset."""

    low_F: Tensor  # of each number, which becomes -1
    high_F: Tensor  # and 1
    vectors_NF: Tensor
    weights_N: Tensor
    offset: float
    gamma: float

    @classmethod
    def read(cls, model: Path, scale: Path) -> Judge:
        """From OpenCV's files, of which only the numbers are taken."""
        text, ranges = _text(model), _lists(_text(scale))
        *vectors, weights = _lists(text) or [[]]
        fit = len(weights) == len(vectors) > 0 and {len(vector) for vector in vectors} == {FEATURES}
        if not fit or [len(one) for one in ranges] != [2 * FEATURES]:
            raise ValueError(f"{model} and {scale} are no BRISQUE of {FEATURES} numbers: OpenCV's two files are needed")
        rows, sizes = (torch.tensor(one, dtype=torch.float64) for one in (vectors, weights))
        low, high = torch.tensor(ranges[0], dtype=torch.float64).chunk(2)
        return cls(low, high, rows, sizes, _number(text, "rho", model), _number(text, "gamma", model))

    def __call__(self, features_TF: Tensor) -> Tensor:
        scaled = 2 * (features_TF - self.low_F) / (self.high_F - self.low_F) - 1
        near = torch.exp(-self.gamma * torch.cdist(scaled, self.vectors_NF).square())
        return (near @ self.weights_N - self.offset).clamp(0, WORST)


def _text(path: Path) -> str:
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} has more than {LARGEST} bytes, which no file of BRISQUE has")
    return path.read_text(encoding="utf-8")


def _lists(text: str) -> list[list[float]]:
    """All lists of numbers, in order."""
    return [[float(one) for one in found.split(",")] for found in re.findall(r"\[([^\]]+)\]", text)]


def _number(text: str, name: str, path: Path) -> float:
    found = re.search(rf"^\s*{name}: (\S+)$", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"{path} is no support vector machine of OpenCV: {name} is missing")
    return float(found[1])
