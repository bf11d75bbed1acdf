"""A video of tokens while it is being made: token frames from the engine, decoded to pixels as they complete."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from diagonal.engine.kernels.cpu import on_cpu
from diagonal.engine.sampler import Sampler
from diagonal.engine.tokens.decode import Frame, Span, Video, rollout
from diagonal.engine.tokens.live import LiveDecoder, LiveKind, live_rollout
from diagonal.engine.tokens.protocols import TokenModel
from diagonal.engine.tokens.runner import Kind, Runner, take_runner
from diagonal.engine.transfers import on_host
from diagonal.engine.warm import Warm
from diagonal.generation.clock import Clock, Elapsed
from diagonal.generation.session import Piece
from diagonal.planning.decoding.lossless import Lossless
from diagonal.planning.decoding.raster import Raster
from diagonal.planning.plan import Plan


@dataclass
class TokenSession:
    """A video of tokens while it is being made. Made by `World.stream`."""

    model: TokenModel
    tokenizer: Any  # a VideoTokenizer
    video: Video
    known: int  # token frames of the prompt
    windows: list[tuple[Span, Plan]]
    sampler: Sampler
    batched: bool
    cache_dtype: torch.dtype
    warm: Warm[Runner] = field(default_factory=Warm)
    live: Warm[LiveDecoder] = field(default_factory=Warm)
    call_inputs: int | None = None  # the same for every call
    on_call: Callable[[], object] = field(default=lambda: None)  # called after every model call
    _pieces: Generator[Piece] | None = None

    @property
    def frames(self) -> int:
        """New frames that will be made."""
        return (self.video.layout.grid.frames - self.known) * int(self.tokenizer.stride)

    @property
    def calls(self) -> int | None:
        """Model calls that will be made; None: not known ahead."""
        return None if self._lossless else sum(len(plan.steps) for _, plan in self.windows)

    def token_frames(self) -> Iterator[Frame]:
        """Frames as token ids (B, rows, cols) on the model's device, not decoded to pixels."""
        return self._rollout(self.on_call)[1]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Piece:
        if self._pieces is None:
            self._pieces = self._run()
        return next(self._pieces)

    def close(self) -> None:
        """Stop, and keep the cache for the next video."""
        self._pieces = self._pieces or self._run()
        self._pieces.close()

    @property
    def _lossless(self) -> bool:
        return isinstance(self.windows[0][1].order.schedule, Lossless)

    @property
    def _in_ring(self) -> bool:
        """Whether frames are decoded one by one: lossless ones, and those of raster that follow others on a CPU and in
        strict worlds. Both then feed what is known by the same calls, so that their tokens are equal where sums are."""
        raster = isinstance(self.windows[0][1].order.schedule, Raster) and self.known > 0
        plain = raster and not self.model.cache_spec.sparse
        return self._lossless or (plain and (self.call_inputs is not None or on_cpu(self.video.units_BTU.device)))

    def _rollout(self, on_call: Callable[[], object]) -> tuple[bool, Iterator[Frame]]:
        """Whether steps are captured, which are then queued far ahead of a GPU, and the frames."""
        layout = max((plan.layout for _, plan in self.windows), key=lambda one: one.length)
        units = self.video.units_BTU
        if self._in_ring:
            made_for = LiveKind(self.model, layout, len(units), units.device, self.cache_dtype, self.call_inputs)
            decoder = self.live.take(
                made_for, lambda: made_for.make(self.video.prefix_BP[0].tolist(), self.sampler.ids_U2)
            )
            frames = live_rollout(decoder, self.video, self.windows, self.sampler, on_call)
            return True, _afterwards(frames, lambda: self.live.give(made_for, decoder))
        kind = Kind(self.model, len(units), layout.length, units.device, self.cache_dtype, self.sampler.sampling)
        runner = take_runner(self.warm, kind, self.sampler)
        frames = rollout(runner, self.video, self.windows, on_call)
        give = (lambda: self.warm.give(kind, runner)) if runner.lasting else (lambda: None)
        return runner.lasting, _afterwards(frames, give)

    def _run(self) -> Generator[Piece]:
        stride, whole = int(self.tokenizer.stride), self.tokenizer.whole
        index = self.known * stride if whole else max(0, 1 + (self.known - 1) * stride)
        for made in self._made():
            frames, tokens, action = (part if self.batched else part[0] for part in made.parts)
            yield Piece(
                index,
                frames.numpy(),
                tokens,
                made.calls,
                made.model.seconds(),
                made.decoding.seconds(),
                actions=action,
            )
            index += len(made.parts[0][0])

    def _made(self) -> Iterator[_Made]:
        """Each token frame and its pixels, on the host.

        Steps that were captured are queued far ahead of the GPU. So there, a frame is decoded to pixels on a stream of
        its own while the steps of the next one run, and handed out once these are queued.
        """
        device = self.video.units_BTU.device
        counted, clock = _Counted(self.on_call), Clock(device)
        captured, rolled = self._rollout(counted)
        if self.tokenizer.whole:
            yield self._whole(rolled, counted, clock)
            return
        if not captured or not clock.cuda:
            state = self._seen()
            for frame, took in clock.timed(rolled):
                began = clock.mark()
                parts = tuple(part.cpu() for part in self._parts(frame, state))
                yield _Made(parts, counted.since(), took, Elapsed(began, clock.mark()))
            return
        side, waiting = torch.cuda.Stream(device), deque[_Made]()
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            state = self._seen()
        for frame, took in clock.timed(rolled):
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                began = clock.mark()
                parts = tuple(on_host(part) for part in self._parts(frame, state))
                frame.tokens.record_stream(side)
                frame.action.record_stream(side)
                waiting.append(_Made(parts, counted.since(), took, Elapsed(began, clock.mark())))
            if len(waiting) > 1:
                yield waiting.popleft().waited()
        yield from (last.waited() for last in waiting)

    def _whole(self, frames: Iterator[Frame], counted: _Counted, clock: Clock) -> _Made:
        """All frames at once, of a tokenizer that makes whole clips: it sees the given token frames too."""
        began, grid = clock.mark(), self.video.layout.grid
        actions = torch.stack([frame.action for frame in frames], dim=1)
        decoded = clock.mark()
        cells = self.video.units_BTU[:, :, : grid.frame_tokens].unflatten(2, (grid.rows, grid.cols))
        pixels: Tensor = self.tokenizer.decode(cells, {})[:, self.known * int(self.tokenizer.stride) :]
        parts = (pixels.permute(0, 1, 3, 4, 2).cpu(), cells[:, self.known :].cpu(), actions.cpu())
        return _Made(parts, counted.since(), Elapsed(began, decoded), Elapsed(decoded, clock.mark()))

    def _parts(self, frame: Frame, state: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Pixels (B, T, H, W, 3), tokens (B, 1, rows, cols) and action (B, 1, suffix) of a token frame."""
        tokens_BTHW = frame.tokens[:, None]
        pixels: Tensor = self.tokenizer.decode(tokens_BTHW, state)
        return pixels.permute(0, 1, 3, 4, 2), tokens_BTHW, frame.action[:, None]

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


def _afterwards(frames: Iterator[Frame], give: Callable[[], object]) -> Iterator[Frame]:
    """The same frames; then what they were made with is given back."""
    try:
        yield from frames
    finally:
        give()


@dataclass
class _Counted:
    """Counts model calls."""

    on_call: Callable[[], object]
    calls: int = 0

    def __call__(self) -> None:
        self.calls += 1
        self.on_call()

    def since(self) -> int:
        """Calls since this was asked last."""
        calls, self.calls = self.calls, 0
        return calls


class _Made(NamedTuple):
    """A token frame on its way: pixels, tokens and action, the calls it took, and the time of these and of decoding."""

    parts: tuple[Tensor, ...]
    calls: int
    model: Elapsed
    decoding: Elapsed

    def waited(self) -> _Made:
        """The same once it has arrived on the host."""
        if self.decoding.ready is not None:
            self.decoding.ready.synchronize()
        return self
