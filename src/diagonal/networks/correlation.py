"""Similarities of all positions of two pictures, looked up around places: what RAFT and AMT find motion with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def places(x_NCHW: Tensor) -> Tensor:
    """Column and row of each position, (N, 2, H, W)."""
    rows, cols = (torch.arange(size, device=x_NCHW.device, dtype=torch.float32) for size in x_NCHW.shape[-2:])
    both = torch.stack(torch.meshgrid(cols, rows, indexing="xy"))
    return both.expand(len(x_NCHW), -1, -1, -1)


def correlation_levels(first_NCHW: Tensor, second_NCHW: Tensor, levels: int = 4) -> list[Tensor]:
    """Similarity of every position of the first with all of the second, (N*H*W, 1, h, w), at halved sizes."""
    batch, channels, height, width = first_NCHW.shape
    matched = first_NCHW.flatten(2).transpose(1, 2) @ second_NCHW.flatten(2) / channels**0.5
    volumes = [matched.reshape(batch * height * width, 1, height, width)]
    for _ in range(levels - 1):
        volumes.append(F.avg_pool2d(volumes[-1], 2, 2))
    return volumes


def look_up(levels: list[Tensor], places_N2HW: Tensor, radius: int) -> Tensor:
    """Similarities around each place at every level, (N, levels * window, H, W).

    The window runs over columns first: the authors add its rows to the columns, and the weights know it so.
    """
    batch, _, height, width = places_N2HW.shape
    reach = torch.linspace(-radius, radius, 2 * radius + 1, device=places_N2HW.device)
    window = torch.stack(torch.meshgrid(reach, reach, indexing="ij"), -1)
    centre = places_N2HW.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2)
    found = []
    for level, volume in enumerate(levels):
        at = centre / 2**level + window
        size = torch.tensor(volume.shape[:-3:-1], device=at.device)  # width, height
        seen = F.grid_sample(volume, 2 * at / (size - 1) - 1, align_corners=True)
        found.append(seen.reshape(batch, height, width, -1))
    return torch.cat(found, -1).permute(0, 3, 1, 2).contiguous()


def warped(x_NCHW: Tensor, flow_N2HW: Tensor, beyond: str = "border") -> Tensor:
    """x as seen at p + flow; beyond the edge its last pixel goes on ('border'), or there is nothing ('zeros')."""
    size = torch.tensor(x_NCHW.shape[:-3:-1], device=x_NCHW.device)  # width, height
    at = (places(x_NCHW) + flow_N2HW).permute(0, 2, 3, 1)
    return F.grid_sample(x_NCHW, 2 * at / (size - 1) - 1, padding_mode=beyond, align_corners=True)


def padded(x_NCHW: Tensor, multiple: int) -> Tensor:
    """Sides brought to multiples by repeating the edge, half on each side."""
    height, width = (-size % multiple for size in x_NCHW.shape[-2:])
    return F.pad(x_NCHW, (width // 2, width - width // 2, height // 2, height - height // 2), mode="replicate")
