"""VBench's motion smoothness: every other frame is made again by AMT-S from its neighbours, and compared.

(255 - m) / 255, m the mean absolute difference to the true frame in bytes. Of an even number of frames the last is not
used. Frames are never shrunk, as VBench does where a GPU's memory is short.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from diagonal.evaluation.metrics import About, Metric, Setting, Video, WeightsFile
from diagonal.evaluation.statistics import FloatArray
from diagonal.networks import amt
from diagonal.networks.correlation import padded
from diagonal.networks.opening import opened

WEIGHTS = WeightsFile("amt-s.pth", "https://github.com/MCG-NKU/AMT (pretrained models)")


class MotionSmoothness(Metric):
    """How well the frame between two can be told from them, 0 to 1."""

    about = About("Huang et al., VBench, 2024; Li et al., AMT, 2023", files=(WEIGHTS,), frames=3, side=amt.SIDE)

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.network = opened(amt.Amt, setting.path(WEIGHTS), setting.device)

    def look(self, made: Video, true: Video | None) -> FloatArray:
        return smoothness(self.network, made.frames_TCHW.to(self.setting.device), amt.MULTIPLE)


def smoothness(network: nn.Module, frames_TCHW: Tensor, multiple: int) -> FloatArray:
    """Of every other frame, how near a network comes to it that sees its neighbours, at sides of such multiples."""
    scores = []
    for first, between, second in zip(frames_TCHW[:-2:2], frames_TCHW[1:-1:2], frames_TCHW[2::2], strict=True):
        apart = (middle(network, first, second, multiple).float() - between).abs().mean()
        scores.append((255 - apart) / 255)
    found: FloatArray = torch.stack(scores).cpu().double().numpy()
    return found


@torch.inference_mode()
def middle(network: nn.Module, first_CHW: Tensor, second_CHW: Tensor, multiple: int = amt.MULTIPLE) -> Tensor:
    """The frame between two, as bytes, which VBench makes by cutting off."""
    height, width = first_CHW.shape[-2:]
    pair = (padded(frame[None].float() / 255, multiple) for frame in (first_CHW, second_CHW))
    made = network(*pair)[0]
    top, left = (-height % multiple) // 2, (-width % multiple) // 2
    shown: Tensor = 255 * made[:, top : top + height, left : left + width]
    return shown.byte()
