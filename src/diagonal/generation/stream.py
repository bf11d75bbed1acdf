"""A video while it is being made: token frames from the engine, decoded to pixels as they complete."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diagonal.engine.sampler import Sampler
from diagonal.engine.tokens.decode import Frame, Span, Video, rollout
from diagonal.engine.tokens.protocols import TokenModel
from diagonal.engine.tokens.runner import Kind, Runner, Runners
from diagonal.media.video import VideoArray
from diagonal.planning.plan import Plan


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
    runners: Runners = field(default_factory=Runners)
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
        kind, runner = self._runner()
        return self._rollout(kind, runner)

    def _runner(self) -> tuple[Kind, Runner]:
        length = max(plan.layout.length for _, plan in self.windows)
        units = self.video.units_BTU
        kind = Kind(len(units), length, units.device, self.cache_dtype, self.sampler.sampling)
        return kind, self.runners.take(self.model, kind, self.sampler)

    def _rollout(self, kind: Kind, runner: Runner) -> Iterator[Frame]:
        try:
            yield from rollout(runner, self.video, self.windows, lambda: self.on_step())
        finally:
            self.runners.give(self.model, kind, runner)

    def __iter__(self) -> Iterator[VideoFrame]:
        index = 1 + (self.known - 1) * self.tokenizer.stride
        for pixels_BTHWC, tokens, action in self._made():
            for pixels_BHWC in pixels_BTHWC.unbind(1):
                made = (pixels_BHWC.numpy(), tokens, action)
                yield VideoFrame(index, *(made if self.batched else (part[0] for part in made)))
                index += 1

    def _made(self) -> Iterator[tuple[Tensor, ...]]:
        """Pixels (B, T, H, W, 3), tokens and action of each token frame, on the host.

        Steps that were captured are queued far ahead of the GPU. So there, a frame is decoded to pixels on a stream of
        its own while the steps of the next one run, and handed out once these are queued.
        """
        kind, runner = self._runner()
        frames = self._rollout(kind, runner)
        if not runner.lasting or kind.device.type != "cuda":
            state = self._seen()
            yield from (tuple(part.cpu() for part in self._parts(frame, state)) for frame in frames)
            return
        side, waiting = torch.cuda.Stream(kind.device), deque[tuple[tuple[Tensor, ...], torch.cuda.Event]]()
        side.wait_stream(torch.cuda.current_stream(kind.device))
        with torch.cuda.stream(side):
            state = self._seen()
        for frame in frames:
            side.wait_stream(torch.cuda.current_stream(kind.device))
            with torch.cuda.stream(side):
                parts = tuple(_on_host(part) for part in self._parts(frame, state))
                frame.tokens.record_stream(side)
                frame.action.record_stream(side)
            waiting.append((parts, side.record_event()))
            if len(waiting) > 1:
                yield _waited(*waiting.popleft())
        yield from (_waited(*last) for last in waiting)

    def _parts(self, frame: Frame, state: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        pixels: Tensor = self.tokenizer.decode(frame.tokens[:, None], state)
        return pixels.permute(0, 1, 3, 4, 2), frame.tokens, frame.action

    def _seen(self) -> dict[str, Tensor]:
        """The state of a decoder at the first new frame."""
        tokenizer = self.tokenizer
        state: dict[str, Tensor] = {}
        if tokenizer.stride > 1:
            # A decoder that makes several frames of one looks back on the frames before: let it see the prompt.
            grid = self.video.layout.grid
            cells = self.video.units_BTU[:, : self.known, : grid.frame_tokens]
            tokenizer.decode(cells.unflatten(2, (grid.rows, grid.cols)), state)
        return state


def _on_host(made: Tensor) -> Tensor:
    """A copy that nobody waits for."""
    return torch.empty(made.shape, dtype=made.dtype, pin_memory=True).copy_(made, non_blocking=True)


def _waited(parts: tuple[Tensor, ...], event: torch.cuda.Event) -> tuple[Tensor, ...]:
    event.synchronize()
    return parts
