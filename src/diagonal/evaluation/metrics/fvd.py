"""Frechet video distance (Unterthiner et al., 2018): I3D's 400 logits, and the Frechet distance of two sets of clips.

Every clip gives one feature. The variants differ in preprocessing and in the divisor of the covariance:

    common-metrics  shorter side to 224, the middle cut out; n - 1; i3d_torchscript.pt
    videogpt        the same picture; n - 1; i3d_pretrained_400.pt
    cd-fvd          stretched to 224 x 224; n; i3d_pretrained_400.pt

StyleGAN-V's own path resizes inside its archive in a way that is not published, so it is not here. A covariance of 400
numbers needs at least 400 clips, 2048 by custom; for fewer see kvd and jedi. Variants must not be mixed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from diagonal import checkpoints
from diagonal.evaluation.distances import frechet
from diagonal.evaluation.metrics import About, Better, Metric, Reference, Setting, Video, WeightsFile
from diagonal.evaluation.statistics import FloatArray, Interval, resampled
from diagonal.networks import i3d
from diagonal.networks.opening import filled
from diagonal.networks.pictures import resized, shorter_side

SCRIPTED = WeightsFile("i3d_torchscript.pt", "https://github.com/universome/stylegan-v (Evaluation)")
PRETRAINED = WeightsFile(
    "i3d_pretrained_400.pt", "https://github.com/wilson1yan/VideoGPT (fvd/fvd.py names the address)"
)
FILES = {"common-metrics": SCRIPTED, "videogpt": PRETRAINED, "cd-fvd": PRETRAINED}


class Features:
    """I3D from a file, and a variant's way to show it a clip."""

    def __init__(self, setting: Setting) -> None:
        path = setting.path(FILES[setting.variant])
        state = checkpoints.read(path)
        epsilon = i3d.epsilon_of(state)
        self.network = filled(lambda: i3d.I3D(epsilon), state, str(path)).to(setting.device)
        self.setting = setting

    @torch.inference_mode()
    def __call__(self, video: Video) -> FloatArray:
        """One feature, (1, 400)."""
        pixels = shown(video.frames_TCHW.to(self.setting.device), self.setting.variant)
        found: FloatArray = self.network(pixels.transpose(0, 1)[None]).cpu().double().numpy()
        return found


def shown(frames_TCHW: Tensor, variant: str) -> Tensor:
    """Frames as a variant shows them to the network, in [-1, 1]."""
    pixels = frames_TCHW.float() / 255
    if variant == "cd-fvd":
        return 2 * resized(pixels, (i3d.SIDE, i3d.SIDE)) - 1
    return 2 * cut(shorter_side(pixels, i3d.SIDE, up=True)) - 1


def cut(pixels: Tensor) -> Tensor:
    """The square in the middle; an odd pixel more is left over below and to the right."""
    height, width = pixels.shape[-2:]
    top, left = (height - i3d.SIDE) // 2, (width - i3d.SIDE) // 2
    return pixels[..., top : top + i3d.SIDE, left : left + i3d.SIDE]


class Fvd(Metric):
    """Frechet distance of I3D features to real clips."""

    about = About(
        "Unterthiner et al., Towards accurate generative models of video, 2018",
        Reference.SET,
        Better.LOWER,
        variants=tuple(FILES),
        own_files={name: (file,) for name, file in FILES.items()},
        frames=i3d.FRAMES,
        clips=2,
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.features = Features(setting)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        return self.features(made)

    def total(self, made: Sequence[FloatArray], real: Sequence[FloatArray]) -> Interval:
        first, second = (torch.from_numpy(np.concatenate(one)) for one in (made, real))
        correction = 0 if self.setting.variant == "cd-fvd" else 1
        return resampled(lambda some: frechet(first[some], second, correction), len(first), draws=20)
