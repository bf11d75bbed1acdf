"""Pictures and clips that clients send: told by their first bytes, never by their names, and never from elsewhere.

FFmpeg guesses formats, and some of them are lists of other files and addresses. So it is told which one this is, and
reads from memory alone.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from diagonal.media.video import VideoArray

MAX_PIXELS = 4096 * 4096  # of one frame
MAX_BYTES = 512 * 2**20  # of all decoded frames
KNOWN = "PNG, JPEG, WebP, MP4, MOV, WebM and MKV are taken"


def decoded(data: bytes, most: int, last: bool = False) -> VideoArray:
    """At most so many frames (T, H, W, 3) of a picture or clip: its first ones, or its last ones."""
    picture, container = _kind(data)
    frames = [_picture(data, picture)] if picture else [*_kept(_clip(data, container), most, last)]
    if not frames:
        raise ValueError("the clip holds no frames")
    return np.stack(frames)


def _kind(data: bytes) -> tuple[str, str]:
    """The format of a picture, or of a container."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG", ""
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG", ""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP", ""
    if data[4:8] == b"ftyp":
        return "", "mp4"
    if data.startswith(b"\x1aE\xdf\xa3"):
        return "", "matroska"
    raise ValueError(f"input_reference is no picture and no clip of a known kind; {KNOWN}")


def _picture(data: bytes, kind: str) -> VideoArray:
    from PIL import Image

    broken = OSError, SyntaxError, OverflowError
    try:
        with Image.open(io.BytesIO(data), formats=[kind]) as image:
            _check_size(*image.size)
            return np.asarray(image.convert("RGB"))
    except (*broken, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(f"input_reference is no readable {kind} picture: {error}") from error


def _clip(data: bytes, container: str) -> Iterator[VideoArray]:
    import av

    try:
        with av.open(io.BytesIO(data), "r", format=container) as opened:
            if not opened.streams.video:
                raise ValueError("input_reference has no video stream")
            for frame in opened.decode(video=0):
                _check_size(frame.width, frame.height)
                yield frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
    except (av.FFmpegError, OverflowError, MemoryError) as error:
        raise ValueError(f"input_reference cannot be read as video: truncated, damaged or none at all ({error})") from (
            error
        )


def _kept(frames: Iterator[VideoArray], most: int, last: bool) -> list[VideoArray]:
    kept: list[Any] = []
    total = 0
    for frame in frames:
        if kept and frame.shape != kept[0].shape:
            raise ValueError("the frames of the clip differ in size; encode it again")
        kept.append(frame)
        total += frame.nbytes
        if total > MAX_BYTES:
            raise ValueError(f"the clip is too long: at most {MAX_BYTES >> 20} MiB of pixels are decoded")
        if len(kept) > most:
            if not last:
                break
            kept.pop(0)
    return kept[:most]


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ValueError(f"input_reference is {width}x{height}; at most {MAX_PIXELS} pixels are taken")
