"""Frames as single images, for pages."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace

from diagonal.media.video import VideoArray

FORMATS = ("jpeg", "webp")


@dataclass(frozen=True, slots=True)
class Image:
    """A frame on its way to a page, and what is said of it."""

    frame: int
    pixels: VideoArray  # (H, W, 3)
    action: str
    schedule: str
    seq: int | None = None  # of the newest control that is seen in it
    calls: int = 0
    decode_ms: float = 0.0
    received: float | None = None  # when the oldest control came that is seen here first

    def after(self, dropped: Image) -> Image:
        """This image where the one before it is not sent: controls that were seen there first are seen here first."""
        return self if dropped.received is None else replace(self, received=dropped.received)


def encode(pixels: VideoArray, form: str, quality: int) -> bytes:
    """One image as a file."""
    from PIL import Image as Pictures

    file = io.BytesIO()
    # method 0: WebP's quickest, a tenth of the time of its default for some per cent of size
    options = {"subsampling": 0} if form == "jpeg" else {"method": 0}
    Pictures.fromarray(pixels).save(file, form, quality=quality, **options)
    return file.getvalue()
