"""A watermark that is not seen: RivaGAN (Zhang, Xu, Cuesta-Infante, Veeramachaneni, 2019, "Robust invisible video
watermarking with attention"), 32 bits in every frame, by ONNX networks that `invisible-watermark` carries.

RivaGAN changes pixels by two levels at most, in a pattern that depends on the picture, and takes time for every pixel.
So the pattern is made for a picture of SIZE and enlarged to the frame's own size, which also lets it survive scaling.
Every `every`-th frame has a pattern of its own; those behind it carry the same one, which is read as well as long as
little moves. It is made stronger where its own reader would miss a bit. A reader weighs frames by the size of their
logits: those of a frame with its own pattern are several times as large as those of any other.
"""

from __future__ import annotations

import importlib.util
import os
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diagonal.media.provenance.payload import BITS, Payload, Soft, decode
from diagonal.media.video import VideoArray, resize

SIZE = (96, 128)  # height and width at which patterns are made and read
STRENGTHS = (1.0, 1.5, 2.0)  # times RivaGAN's own; the least one is taken that its reader reads
EVERY = 2  # frames of a file that share a pattern
LIVE = 4  # likewise of a stream, which is watched while it is made
LOOKED_AT = 24  # frames of a file that are read

Pattern = npt.NDArray[np.float32]


class Watermark:
    """Marks the frames of one video, in their order."""

    def __init__(self, payload: Payload, every: int = EVERY) -> None:
        if every < 1:
            raise ValueError(f"a new pattern every {every} frames asked for; at least 1")
        self.payload, self.every = payload, every
        self.frames, self.seconds = 0, 0.0  # marked, and what it took
        self._pattern: Pattern | None = None

    def mark(self, frames: VideoArray) -> VideoArray:
        """The next frames (T, H, W, 3) or one frame (H, W, 3), marked."""
        began = time.perf_counter()
        video = frames if frames.ndim == 4 else frames[None]
        marked = np.empty_like(video)
        for target, frame in zip(marked, video, strict=True):
            if self.frames % self.every == 0 or self._pattern is None:
                self._pattern = pattern(frame, self.payload.bits())
            target[...] = _added(frame, self._pattern)
            self.frames += 1
        self.seconds += time.perf_counter() - began
        return marked if frames.ndim == 4 else marked[0]

    def statement(self) -> dict[str, Any]:
        """What credentials say of it."""
        about = {"method": "RivaGAN, 32 bits", "family": self.payload.name, "run": self.payload.run}
        return about | {"new_pattern_every": self.every}


def check_installed(instead: str = "") -> None:
    """Refuse now what could neither mark nor read later. `instead`: what else the user can do."""
    try:
        _networks()
    except ImportError as error:
        raise ValueError(
            f"the watermark needs more packages ({error}): pip install 'diagonal[provenance]'{instead}"
        ) from error


def pattern(frame: VideoArray, bits: npt.NDArray[np.uint8]) -> Pattern:
    """What to add to the levels of a frame (H, W, 3), so that the bits are read from it."""
    small = resize(frame[None], *SIZE)
    made = _networks()[0].run(None, {"frame": _input(small), "data": bits[None].astype(np.float32)})[0]
    change = (np.clip(made[0, :, 0], -1, 1).transpose(1, 2, 0) - (small[0] / 127.5 - 1).astype(np.float32)) * 127.5
    whole, tried = _enlarged(change, frame.shape[0], frame.shape[1]), []
    for strength in STRENGTHS:
        scaled = strength * whole
        right = int(((read_frames(_added(frame, scaled)[None])[0] > 0) == bits).sum())
        if right == BITS:
            return scaled
        tried.append((right, -strength))
    return -max(tried)[1] * whole


def read_frames(frames: VideoArray) -> Soft:
    """For each frame (T, H, W, 3) the logits of the 32 bits: above zero for a one."""
    small, decoder = resize(frames, *SIZE), _networks()[1]
    read = [decoder.run(None, {"frame": _input(one[None])})[0][0] for one in small]
    return np.stack(read).astype(np.float64)


def find(frames: VideoArray) -> Payload | None:
    """The watermark in some frames of one video, by the sum of their logits, each frame's times their mean size: so a
    frame with a pattern of its own counts more than one without."""
    logits = read_frames(frames)
    return decode((logits * np.abs(logits).mean(1, keepdims=True)).mean(0))


def _added(frame: VideoArray, change: Pattern) -> VideoArray:
    changed: VideoArray = np.clip(np.rint(frame + change), 0, 255).astype(np.uint8)
    return changed


def _input(frames: VideoArray) -> npt.NDArray[np.float32]:
    """A frame (1, H, W, 3) as RivaGAN takes it: (1, 3, 1, H, W) from -1 to 1."""
    scaled: npt.NDArray[np.float32] = (frames.astype(np.float32) / 127.5 - 1).transpose(0, 3, 1, 2)[:, :, None]
    return scaled


def _enlarged(change: Pattern, height: int, width: int) -> Pattern:
    from PIL import Image

    planes = [
        Image.fromarray(np.ascontiguousarray(change[..., channel])).resize((width, height), Image.Resampling.BILINEAR)
        for channel in range(3)
    ]
    return np.stack([np.asarray(plane, dtype=np.float32) for plane in planes], axis=-1)


@cache
def _networks() -> tuple[Any, Any]:
    """The encoder and the decoder; their package, which wants other packages, is not imported."""
    import onnxruntime

    package = importlib.util.find_spec("imwatermark")
    if package is None or package.origin is None:
        raise ImportError("No module named 'imwatermark'")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS") or 0)  # 0: as many as there are cores
    options.log_severity_level = 3
    paths = [Path(package.origin).parent / f"rivagan_{name}.onnx" for name in ("encoder", "decoder")]
    return tuple(onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"]) for path in paths)
