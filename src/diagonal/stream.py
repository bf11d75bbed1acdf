"""A video while it is being made: token frames from the engine, decoded to pixels as they complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diagonal.engine.cache import KVCache
from diagonal.engine.decode import Frame, Span, Video, rollout
from diagonal.engine.protocols import TokenModel
from diagonal.engine.runner import make_runner
from diagonal.engine.sampler import Sampler
from diagonal.plan import Plan
from diagonal.video import VideoArray


@dataclass(frozen=True, slots=True)
class VideoFrame:
    """One generated frame: its index in the video (prompt included) and its pixels (H, W, 3); the ids of its token
    frame (rows, cols), which several frames may share, and of the action (suffix,) that led to it.

    For a batch of prompts, pixels, tokens and action have a batch dimension in front.
    """

    index: int
    pixels: VideoArray
    tokens: Tensor
    action: Tensor


@dataclass(frozen=True, slots=True)
class Clip:
    """A generated clip: frames (T, H, W, 3), ids of its token frames (N, rows, cols), and the model calls it took."""

    frames: VideoArray
    tokens: Tensor
    steps: int


@dataclass
class Stream:
    """A video while it is being made: iterate over it once. Made by `World.stream`."""

    model: TokenModel
    tokenizer: Any  # a VideoTokenizer
    video: Video
    known: int  # token frames of the prompt
    windows: list[tuple[Span, Plan]]
    sampler: Sampler
    batched: bool
    cache_dtype: torch.dtype
    on_step: Callable[[], object] = field(default=lambda: None)  # called after every model call

    @property
    def frames(self) -> int:
        """Frames that will be generated."""
        return (self.video.layout.grid.frames - self.known) * int(self.tokenizer.stride)

    @property
    def steps(self) -> int:
        """Model calls that will be made."""
        return sum(len(plan.steps) for _, plan in self.windows)

    def token_frames(self) -> Iterator[Frame]:
        """Frames as token ids (B, rows, cols) on the model's device, not decoded to pixels."""
        length = max(plan.layout.length for _, plan in self.windows)
        units = self.video.units_BTU
        cache = KVCache(self.model.cache_spec, len(units), length, units.device, self.cache_dtype)
        runner = make_runner(self.model, cache, self.sampler)
        return rollout(runner, self.video, self.windows, lambda: self.on_step())

    def __iter__(self) -> Iterator[VideoFrame]:
        tokenizer = self.tokenizer
        state: dict[str, Tensor] = {}
        index = 1 + (self.known - 1) * tokenizer.stride
        if tokenizer.stride > 1:
            # A decoder that makes several frames of one looks back on the frames before: let it see the prompt.
            grid = self.video.layout.grid
            cells = self.video.units_BTU[:, : self.known, : grid.frame_tokens]
            tokenizer.decode(cells.unflatten(2, (grid.rows, grid.cols)), state)
        for frame in self.token_frames():
            pixels_BTCHW = tokenizer.decode(frame.tokens[:, None], state)
            for pixels_BCHW in pixels_BTCHW.unbind(1):
                made = (pixels_BCHW.permute(0, 2, 3, 1).cpu().numpy(), frame.tokens.cpu(), frame.action.cpu())
                yield VideoFrame(index, *(made if self.batched else (part[0] for part in made)))
                index += 1
