"""Fragmented MP4: every chunk of frames is bytes that a player can show at once, and all bytes together are one file.

FFmpeg's muxer cannot be told that a fragment ends now. So every chunk has an encoder and a muxer of its own, which go
on counting time where the one before ended; of all but the first the header, which is the same, is cut off.
"""

from __future__ import annotations

import io
from fractions import Fraction

import av
import numpy as np

from diagonal.media.video import VideoArray

OPTIONS = {"preset": "ultrafast", "tune": "zerolatency", "crf": "18"}
FLAGS = "frag_keyframe+empty_moov+default_base_moof+frag_discont+skip_trailer"
HEADER = (b"ftyp", b"moov")  # boxes that come once


class FragmentedMp4:
    """The bytes of a video, chunk by chunk."""

    def __init__(self, fps: Fraction) -> None:
        self._fps, self._frames, self._chunks = fps, 0, 0

    def chunk(self, frames: VideoArray) -> bytes:
        """Encode frames (T, H, W, 3) as one fragment."""
        file, self._chunks = io.BytesIO(), self._chunks + 1
        # Times stay as they are, and fragments are counted on.
        going_on = {"avoid_negative_ts": "disabled", "fragment_index": str(self._chunks)}
        with av.open(file, "w", format="mp4", options={"movflags": FLAGS, **going_on}) as container:
            stream = container.add_stream("libx264", rate=self._fps, options=OPTIONS)
            stream.height, stream.width = frames.shape[1:3]
            # 4:2:0 plays everywhere but needs even sides.
            stream.pix_fmt = "yuv420p" if stream.height % 2 == stream.width % 2 == 0 else "yuv444p"
            stream.gop_size = len(frames)  # one fragment
            for pixels in frames:
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
                frame.pts, frame.time_base = self._frames, 1 / self._fps
                container.mux(stream.encode(frame))
                self._frames += 1
            container.mux(stream.encode())
        data = file.getvalue()
        return data if self._chunks == 1 else b"".join(box for name, box in boxes(data) if name not in HEADER)


def boxes(data: bytes) -> list[tuple[bytes, bytes]]:
    """The boxes of an MP4 at its top: the name of each, and all of its bytes."""
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append((data[at + 4 : at + 8], data[at : at + size]))
        at += size
    return found
