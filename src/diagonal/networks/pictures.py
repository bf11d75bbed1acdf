"""Pictures (N, C, H, W) as networks were trained to see them: resized without antialiasing, cut, normalised."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and deviation
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def resized(x_NCHW: Tensor, size: tuple[int, int], mode: str = "bilinear") -> Tensor:
    """Height and width changed, as float; bicubic may overshoot and is not clamped."""
    return F.interpolate(x_NCHW.float(), size, mode=mode, align_corners=False)


def shorter_side(x_NCHW: Tensor, side: int, mode: str = "bilinear", up: bool = False) -> Tensor:
    """The shorter side brought to `side`; the longer one is rounded down, or up."""
    height, width = x_NCHW.shape[-2:]
    whole = math.ceil if up else int
    shorter = min(height, width)
    size = (side, whole(side * width / height)) if height == shorter else (whole(side * height / width), side)
    return resized(x_NCHW, size, mode)


def centre(x_NCHW: Tensor, side: int) -> Tensor:
    """The square in the middle."""
    top, left = (round((size - side) / 2) for size in x_NCHW.shape[-2:])
    return x_NCHW[..., top : top + side, left : left + side]


def normalised(x_NCHW: Tensor, by: tuple[tuple[float, ...], tuple[float, ...]]) -> Tensor:
    """Pictures of 0 to 1 with the mean and deviation that a network knows taken out."""
    mean, deviation = (torch.tensor(part, device=x_NCHW.device).view(-1, 1, 1) for part in by)
    return (x_NCHW - mean) / deviation
