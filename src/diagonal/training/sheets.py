"""Samples of a model while it is trained, as a picture: a row for each video, time to the right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from diagonal.media.video import write_picture

FRAMES = 10  # of a row


def write_sheet(video_BTCHW: Tensor, path: Path) -> None:
    """Frames of each video, evenly spaced."""
    video_BTCHW = video_BTCHW.cpu()
    chosen = np.linspace(0, video_BTCHW.shape[1] - 1, min(FRAMES, video_BTCHW.shape[1])).round().astype(int)
    rows = [torch.cat(list(video[chosen]), dim=-1) for video in video_BTCHW]
    write_picture(path, torch.cat(rows, dim=-2).permute(1, 2, 0).contiguous().numpy())
