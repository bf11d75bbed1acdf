"""Optical flow between frames, by the method of Lucas and Kanade (1981) over a pyramid: our own, small, on any device.

A displacement d of a patch solves brightness constancy, second(p + d) = first(p), by least squares. That is right for
small d only, so it is solved on a coarse picture first; each finer one corrects what the coarser found.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SMALLEST = 12  # pixels of the coarsest picture's shorter side, at least
ROUNDS = 3  # corrections at each size
REACH = 7  # pixels along each side of the patches whose displacement is asked for
STEP = 2.0  # pixels that one correction may be; more is beyond what a linear picture of the patch can tell
# Of a brightness of 0 to 1: added where a patch has too little structure to say in which direction it moved.
STIFFNESS = 1e-4


def flow_magnitude(video_BTCHW: Tensor, batch: int = 512) -> Tensor:
    """Mean length of the displacements between consecutive frames, in pixels, (B, T-1)."""
    grey_BTHW = brightness(video_BTCHW) / 255
    first, second = grey_BTHW[:, :-1].flatten(0, 1), grey_BTHW[:, 1:].flatten(0, 1)
    lengths = [
        optical_flow(one, other).square().sum(1).sqrt().flatten(1).mean(1)
        for one, other in zip(first.split(batch), second.split(batch), strict=True)
    ]
    return torch.cat(lengths).reshape(len(video_BTCHW), -1)


def brightness(video: Tensor) -> Tensor:
    """Luma (..., H, W), 0 to 255, of (..., 3, H, W) uint8."""
    weights = torch.tensor([0.299, 0.587, 0.114], device=video.device)
    return torch.einsum("...chw,c->...hw", video.float(), weights)


def optical_flow(first_NHW: Tensor, second_NHW: Tensor) -> Tensor:
    """Displacements (N, 2, H, W) in pixels, down and to the right, that turn the first pictures into the second."""
    sizes = [(first_NHW[:, None], second_NHW[:, None])]
    while min(sizes[-1][0].shape[-2:]) >= 2 * SMALLEST:
        sizes.append((F.avg_pool2d(sizes[-1][0], 2), F.avg_pool2d(sizes[-1][1], 2)))
    flow = torch.zeros(len(first_NHW), 2, *sizes[-1][0].shape[-2:], device=first_NHW.device)
    for first, second in reversed(sizes):
        if flow.shape[-2:] != first.shape[-2:]:
            flow = 2 * F.interpolate(flow, first.shape[-2:], mode="bilinear", align_corners=False)
        for _ in range(ROUNDS):
            flow = flow + _correction(first, _moved(second, flow))
    return flow


def _correction(first: Tensor, second: Tensor) -> Tensor:
    """(S + stiffness) d = -b with S = mean g g^T and b = mean g (second - first), g the spatial gradient."""
    middle, change = (first + second) / 2, second - first
    down, right = _slope(middle)
    dd, rr, dr, dt, rt = _mean(torch.cat([down * down, right * right, down * right, down * change, right * change], 1))
    dd, rr = dd + STIFFNESS, rr + STIFFNESS
    found = torch.stack([dr * rt - rr * dt, dr * dt - dd * rt], dim=1) / (dd * rr - dr.square())[:, None]
    return found * (STEP / found.square().sum(1, keepdim=True).sqrt().clamp(min=STEP))


def _slope(x_N1HW: Tensor) -> tuple[Tensor, Tensor]:
    """Central differences, down and to the right; one-sided at the edges."""
    down, right = torch.gradient(x_N1HW, dim=(-2, -1))
    return down, right


def _mean(x_NCHW: Tensor) -> tuple[Tensor, ...]:
    """Means over patches, each of the channels by itself."""
    return F.avg_pool2d(x_NCHW, REACH, 1, REACH // 2, count_include_pad=False).unbind(1)


def _moved(x_N1HW: Tensor, flow_N2HW: Tensor) -> Tensor:
    """Pictures as seen at p + d; beyond the edge their last pixel goes on."""
    height, width = x_N1HW.shape[-2:]
    rows = torch.arange(height, device=x_N1HW.device)[:, None] + flow_N2HW[:, 0]
    cols = torch.arange(width, device=x_N1HW.device) + flow_N2HW[:, 1]
    places = torch.stack([2 * cols / (width - 1) - 1, 2 * rows / (height - 1) - 1], dim=-1)
    return F.grid_sample(x_N1HW, places, mode="bilinear", padding_mode="border", align_corners=True)
