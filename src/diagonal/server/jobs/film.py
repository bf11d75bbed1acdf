"""The files of a job: the video, signed like all others, a picture of its first frame, and a sheet of small ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from diagonal.media.files import atomic
from diagonal.media.video import VideoArray, read, spread
from diagonal.server.images import encode
from diagonal.server.jobs.store import SPRITESHEET, THUMBNAIL, VIDEO

ACROSS = 4  # pictures of a sheet, in both directions
TILE = 160  # pixels wide, at most


def pictures(place: Path) -> None:
    """Write thumbnail and sheet beside a video; their frames are the video's, with its watermark."""
    video = place / VIDEO
    _write(place / THUMBNAIL, encode(read(video, most=1)[0], "webp", 85))
    _write(place / SPRITESHEET, encode(sheet(spread(video, ACROSS * ACROSS)), "jpeg", 85))


def sheet(frames: VideoArray) -> VideoArray:
    """Frames (T, H, W, 3) as one picture, small, from left to right and down; what is left of the last row is black."""
    step = -(-frames.shape[2] // TILE)
    small = frames[:, ::step, ::step]
    across = min(ACROSS, len(small))
    down = -(-len(small) // across)
    empty = np.zeros((across * down - len(small), *small.shape[1:]), np.uint8)
    tiles = np.concatenate([small, empty]).reshape(down, across, *small.shape[1:])
    drawn: VideoArray = tiles.swapaxes(1, 2).reshape(down * small.shape[1], across * small.shape[2], 3)
    return drawn


def _write(path: Path, data: bytes) -> None:
    with atomic(path) as temporary:
        temporary.write_bytes(data)
