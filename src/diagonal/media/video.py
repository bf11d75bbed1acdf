"""Frames from files and into files: mp4 through PyAV, pictures through Pillow. Arrays are uint8, (T, H, W, 3)."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diagonal.media.files import atomic
from diagonal.media.files import check_target as check_name

VideoArray = npt.NDArray[np.uint8]

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
CONTAINERS = (".mp4", ".mov", ".mkv")
VIDEOS = (*CONTAINERS, ".webm", ".avi", ".m4v", ".gif")
MAX_BYTES = 8 * 2**30  # of decoded pixels held at once
SEEN = 288  # pixels high, at least nearly: small frames are enlarged


def read(source: str | Path, most: int | None = None, last: bool = False) -> VideoArray:
    """The frames of a video, a picture, or a folder of pictures (in the order of their names). `most`: only so many,
    the first ones, or the last ones with `last`."""
    path = Path(source)
    if most is not None and most < 1:
        raise ValueError(f"{most} frames asked for; at least 1 can be read")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give a video, a picture, or a folder of pictures")
    if path.is_dir():
        files = sorted((file for file in path.iterdir() if file.suffix.lower() in PICTURES), key=_numbered)
        if not files:
            raise ValueError(f"the folder {path} holds no pictures ({', '.join(PICTURES)})")
        used = files[-most:] if last and most is not None else files
        frames: Iterable[VideoArray] = map(_picture, used)
    elif path.suffix.lower() in PICTURES:
        frames = map(_picture, [path])
    elif path.suffix.lower() in VIDEOS:
        frames = _decode(path, None if last else most)
    else:
        raise ValueError(f"{path} is neither a video ({', '.join(VIDEOS)}) nor a picture ({', '.join(PICTURES)})")
    return _collect(path, frames, most, last)


@dataclass(frozen=True, slots=True)
class Header:
    """What a video says of itself, without decoding it."""

    frames: int | None  # None: it does not say
    height: int
    width: int
    fps: Fraction
    codec: str


def header(source: str | Path) -> Header:
    """What a video file says of itself."""
    import av

    try:
        with av.open(str(source)) as container:
            if not container.streams.video:
                raise ValueError(f"{source} has no video stream")
            stream = container.streams.video[0]
            fps, context = stream.average_rate, stream.codec_context
            if not (fps and context.height and context.width):
                raise ValueError(f"{source} does not say its size or its frame rate; encode it again")
            return Header(stream.frames or None, context.height, context.width, fps, context.name)
    except av.FFmpegError as error:
        raise ValueError(f"{source} cannot be read as video: truncated, damaged or none at all ({error})") from error


def read_luma(source: str | Path, most: int | None = None) -> VideoArray:
    """The luma plane (T, H, W) as a video file carries it, mostly 16 to 235: no way back from RGB gives just these."""
    planes: list[VideoArray] = []
    for frame in islice(_frames(Path(source), most), most):
        planar = frame if frame.format.is_planar and not frame.format.is_rgb else frame.reformat(format="yuv444p")
        rows = np.frombuffer(planar.planes[0], np.uint8).reshape(planar.height, -1)
        planes.append(rows[:, : planar.width].copy())
    return np.stack(planes)


def spread(source: str | Path, most: int) -> VideoArray:
    """At most so many frames (T, H, W, 3) from all over a video file, as far as it can be decoded. They are an odd
    number of frames apart: of what is in every second or fourth frame, some is among them."""
    path = Path(source)
    count = header(path).frames
    step = 1 if count is None else max(1, (count // most - 1) | 1)
    found: list[VideoArray] = []
    try:
        for index, frame in enumerate(_frames(path)):
            if index % step == 0 and len(found) < most:
                found.append(frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False))
    except ValueError:  # truncated or damaged: what came before it is looked at
        if not found:
            raise
    return np.stack(found)


def _collect(path: Path, frames: Iterable[VideoArray], most: int | None, last: bool) -> VideoArray:
    kept: deque[VideoArray] = deque(maxlen=most if last else None)
    for index, frame in enumerate(frames):
        if kept and frame.shape != kept[0].shape:
            raise ValueError(f"{path}: frame {index} is {_size(frame)}, the first is {_size(kept[0])}")
        kept.append(frame)
        if len(kept) == most and not last:
            break
        if len(kept) * frame.nbytes > MAX_BYTES:
            raise ValueError(f"{path} is too long to hold in memory; read fewer than {len(kept)} frames")
    if not kept:
        raise ValueError(f"{path} holds no frames")
    return np.stack(kept)


def _numbered(path: Path) -> list[tuple[int, str]]:
    """Order of names in which im_2 comes before im_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def _picture(path: Path) -> VideoArray:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
        raise ValueError(f"{path} is not a readable picture: {error}") from error


def _decode(path: Path, most: int | None) -> Iterator[VideoArray]:
    for frame in _frames(path, most):
        yield frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)


def _frames(path: Path, most: int | None = None) -> Iterator[Any]:
    """Frames as the decoder gives them."""
    import av

    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise ValueError(f"{path} has no video stream")
            expected, count = container.streams.video[0].frames, 0
            for frame in container.decode(video=0):
                yield frame
                count += 1
    except av.FFmpegError as error:
        raise ValueError(f"{path} cannot be read as video: truncated, damaged or no video at all ({error})") from error
    if count < min(expected, most or expected):
        raise ValueError(f"{path} is truncated: it announces {expected} frames and holds {count}")


class Writer:
    """Encodes frames as they come. Made by `writer`."""

    def __init__(self, container: Any, fps: int | Fraction, low_latency: bool, lossless: bool = False) -> None:
        self._container, self._fps = container, Fraction(fps)
        self._low_latency, self._lossless = low_latency, lossless
        self._stream: Any = None
        self.count = 0

    def write(self, frames: VideoArray) -> None:
        """Append frames (T, H, W, 3) or one frame (H, W, 3)."""
        import av

        for pixels in frames if frames.ndim == 4 else frames[None]:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            if self._stream is not None and (frame.height, frame.width) != (self._stream.height, self._stream.width):
                expected = f"{self._stream.height}x{self._stream.width}"
                raise ValueError(f"frame {self.count} is {_size(pixels)}, the first was {expected}")
            if self._stream is None:
                self._start(frame.height, frame.width)
            self._mux(self._stream.encode(frame))
            self.count += 1

    def _start(self, height: int, width: int) -> None:
        # Without x264's macroblock tree, which with AVX-512 makes another file of the same frames now and then.
        options = {"crf": "16", "preset": "veryfast", "x264-params": "mbtree=0"}
        if self._low_latency:
            options |= {"tune": "zerolatency"}
        if self._lossless:
            options = {"qp": "0", "preset": "veryfast"}
        codec = "libx264rgb" if self._lossless else "libx264"
        self._stream = self._container.add_stream(codec, rate=self._fps, options=options)
        self._stream.height, self._stream.width = height, width
        # 4:2:0 plays everywhere but needs even sides.
        self._stream.pix_fmt = "yuv420p" if height % 2 == width % 2 == 0 else "yuv444p"
        if self._lossless:
            self._stream.pix_fmt = "rgb24"
        if self._low_latency:
            self._stream.gop_size = 1  # every frame opens a fragment: a player shows it at once

    def finish(self) -> None:
        """Write what the encoder still holds."""
        if self._stream is None:
            raise ValueError("no frames were written: there is no video without one")
        self._mux(self._stream.encode())

    def _mux(self, packets: Iterable[Any]) -> None:
        for packet in packets:
            self._container.mux(packet)


def check_target(path: str | Path) -> None:
    """Refuse at once what `writer` would refuse later."""
    if str(path) != "-":
        check_name(path, *CONTAINERS)


@contextmanager
def writer(path: str | Path, fps: int | Fraction, lossless: bool = False) -> Iterator[Writer]:
    """Write a video frame by frame. The file appears when all is written; '-' streams fragmented mp4 to stdout.
    `lossless` keeps every pixel, for what is to be measured: few players show it."""
    import av

    check_target(path)
    streamed = str(path) == "-"
    with ExitStack() as stack:
        target: Any = sys.stdout.buffer if streamed else str(stack.enter_context(atomic(path)))
        form: Any = {}
        if streamed:
            form = {"format": "mp4", "options": {"movflags": "frag_keyframe+empty_moov+default_base_moof"}}
        container = av.open(target, "w", **form)
        try:
            output = Writer(container, fps, streamed, lossless)
            yield output
            output.finish()
        finally:
            container.close()


def to_be_seen(height: int) -> int:
    """How many times frames of this height are enlarged for a file that is to be looked at."""
    return max(1, SEEN // height)


def enlarge(frames: VideoArray, factor: int) -> VideoArray:
    """Every pixel as a square of `factor` pixels; frames are (..., H, W, 3)."""
    return frames if factor == 1 else frames.repeat(factor, axis=-3).repeat(factor, axis=-2)


def resize(frames: VideoArray, height: int, width: int) -> VideoArray:
    """Bilinear resize of every frame, aspect not kept."""
    from PIL import Image

    pictures = [Image.fromarray(frame).resize((width, height), Image.Resampling.BILINEAR) for frame in frames]
    return np.stack([np.asarray(picture) for picture in pictures])


def cover(frames: VideoArray, height: int, width: int) -> VideoArray:
    """Every frame scaled, its aspect kept, until it covers the size; then the middle is cut out."""
    old_height, old_width = frames.shape[-3:-1]
    factor = max(height / old_height, width / old_width)
    scaled = resize(frames, max(height, round(old_height * factor)), max(width, round(old_width * factor)))
    top, left = (scaled.shape[1] - height) // 2, (scaled.shape[2] - width) // 2
    return scaled[:, top : top + height, left : left + width]


def _size(frame: VideoArray) -> str:
    return f"{frame.shape[0]}x{frame.shape[1]}"


def write_picture(path: str | Path, pixels: VideoArray) -> None:
    """A PNG of pixels (H, W, 3), written atomically."""
    from PIL import Image

    with atomic(path) as temporary:
        Image.fromarray(pixels).save(temporary, format="PNG")
