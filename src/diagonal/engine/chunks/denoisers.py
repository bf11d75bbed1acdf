"""A diffusion transformer with the texts and caches of one video, as the denoising loop asks it for velocities.

    Windowed   causal: the chunks of a call over a cache of finished ones
    Whole      bidirectional: all latents in every call, and no cache

Both take guidance: the velocity without the prompt plus `scale` times the difference that the prompt makes. That is a
second call, and a second cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from diagonal.engine.attention import WIDE, Full
from diagonal.engine.chunks.cache import WindowCache, WindowStep
from diagonal.engine.chunks.overlap import OverlapStep, Span, together
from diagonal.engine.chunks.protocols import DiffusionModel, Memory, Rope, Shown, TextKV


@dataclass(frozen=True, slots=True)
class Guidance:
    """Classifier-free guidance by embeddings (1 or B, rows, width) of what to be guided away from, often nothing."""

    scale: float
    negative_BLC: Tensor
    cache: WindowCache | None = None  # of the calls without the prompt; a bidirectional model has none


Placed = tuple[
    tuple[WindowStep | OverlapStep, ...], Rope
]  # each cache as a call sees it, and the rotation of its tokens


class Windowed:
    """A causal model over a window of keys and values."""

    def __init__(
        self,
        model: DiffusionModel,
        cache: WindowCache,
        size: tuple[int, int],
        *,
        keep_sink: bool = True,
        remember: bool = False,
        guidance: Guidance | None = None,
    ) -> None:
        self.model, self.cache, self.size, self.guidance = model, cache, size, guidance
        self.keep_sink, self.remember = keep_sink, remember
        self.calls = 0
        self._texts: tuple[TextKV, ...] = ()
        self._spans: tuple[Span, ...] = ()  # of the last call
        self._placed: Placed | None = None
        if guidance is not None and (guidance.cache is None or guidance.cache.window != cache.window):
            raise ValueError("guidance given without a cache of its own, like the one of the calls with the prompt")
        self.caches = (cache,) if guidance is None or guidance.cache is None else (cache, guidance.cache)
        rows, cols = grid(model, size)
        if rows * cols != cache.frame_tokens:
            raise ValueError(f"latents of {size} have {rows * cols} tokens; the cache is for {cache.frame_tokens}")
        for one in self.caches:
            one.restart(0)

    @property
    def batch(self) -> int:
        return self.cache.batch

    @property
    def device(self) -> torch.device:
        return self.cache.k.device

    @property
    def channels(self) -> int:
        return self.model.config.channels

    @property
    def window(self) -> int:
        return self.cache.window.frames

    def prompt(self, chunk: int, text_BLC: Tensor) -> None:
        """Another text for all calls from now on: chunks that are under way go on under it."""
        self._texts = embedded(self.model, text_BLC, self.guidance, self._texts, self.batch)

    def velocities(self, shown: Sequence[Shown], carries: bool) -> Sequence[Tensor]:
        memories, rope = self._place(shown)
        if carries and self.remember:
            memories = tuple(one.remembered() if isinstance(one, WindowStep) else one for one in memories)
        self.calls += len(memories)
        return guided(self.model, shown, self._texts, (rope, memories), self.guidance)

    def forget(self, end: int) -> int:
        """A sink that is older than the window is kept as it is, or else given up: the window's first frames become the
        new one."""
        window, self._placed = self.cache.window, None
        if self.keep_sink and end - self.cache.origin > window.frames:
            return window.frames - window.sink
        count = min(end, window.frames)
        for cache in self.caches:
            cache.restart(end - count)
        return count

    def _place(self, shown: Sequence[Shown]) -> Placed:
        """What depends on the place of the chunks alone: their slots, and the rotation of their tokens."""
        spans = tuple(Span(one.start, one.start + one.frames, self._reach(one)) for one in shown)
        if self._placed is None or spans != self._spans:
            with torch.no_grad():
                self._spans, self._placed = spans, self._places(spans)
        return self._placed

    def _reach(self, shown: Shown) -> int | None:
        return None if shown.part.reach is None else shown.part.reach * shown.frames

    def _places(self, spans: tuple[Span, ...]) -> Placed:
        start, frames = spans[0].start, spans[-1].end - spans[0].start
        rope = rope_of(self.model, torch.arange(start, start + frames, device=self.device), self.size)
        if len(spans) > 1 or spans[0].reach is not None or self.cache.window.ahead:
            return tuple(together(cache, spans) for cache in self.caches), rope
        memories = tuple(cache.at(start, frames) for cache in self.caches)
        for cache in self.caches:
            self._move_sink(cache, cache.sink_shift(start, frames))
        return memories, rope

    def _move_sink(self, cache: WindowCache, shift: int) -> None:
        if shift:
            turn = self.model.rope(torch.full((1,), shift, device=self.device), 1, 1)
            cache.move_sink(lambda k: self.model.rotate(k, turn))


class Whole:
    """A bidirectional model: every call shows it all latents, each chunk at its level."""

    def __init__(
        self,
        model: DiffusionModel,
        size: tuple[int, int],
        batch: int,
        device: torch.device,
        guidance: Guidance | None = None,
    ) -> None:
        self.model, self.size, self.batch, self.device, self.guidance = model, size, batch, device, guidance
        self.calls = self.window = 0
        self._texts: tuple[TextKV, ...] = ()
        self._ropes: dict[int, Rope] = {}
        grid(model, size)

    @property
    def channels(self) -> int:
        return self.model.config.channels

    def prompt(self, chunk: int, text_BLC: Tensor) -> None:
        """Another text for all calls from now on."""
        self._texts = embedded(self.model, text_BLC, self.guidance, self._texts, self.batch)

    def velocities(self, shown: Sequence[Shown], carries: bool) -> Sequence[Tensor]:
        frames = sum(one.frames for one in shown)
        if frames not in self._ropes:
            self._ropes = {frames: rope_of(self.model, torch.arange(frames, device=self.device), self.size)}
        self.calls += len(self._texts)
        place = (self._ropes[frames], [Full()] * len(self._texts))
        return guided(self.model, shown, self._texts, place, self.guidance)

    def forget(self, end: int) -> int:
        """Nothing is kept."""
        return 0


def guided(
    model: DiffusionModel,
    shown: Sequence[Shown],
    texts: Sequence[TextKV],
    place: tuple[Rope, Sequence[Memory]],
    guidance: Guidance | None,
) -> Sequence[Tensor]:
    """The velocities of chunks in one call, or with guidance in two: a text and a memory each."""
    rope, memories = place
    frames = [one.frames for one in shown]
    if len(shown) == 1:
        x, level = shown[0].x_BFCHW, shown[0].part.level
        flows = [_flow(model, x, level, text, rope, memory) for text, memory in zip(texts, memories, strict=True)]
    else:
        x, levels = torch.cat([one.x_BFCHW for one in shown], 1), [one.part.level for one in shown]
        each = torch.tensor(levels, dtype=torch.float64).repeat_interleave(torch.tensor(frames))[None].to(x.device)
        flows = [_flow(model, x, each, text, rope, memory) for text, memory in zip(texts, memories, strict=True)]
    whole = flows[0] if guidance is None else flows[1] + guidance.scale * (flows[0] - flows[1])
    return torch.split(whole, frames, 1)


def _flow(model: DiffusionModel, x: Tensor, level: float | Tensor, text: TextKV, rope: Rope, memory: Memory) -> Tensor:
    with sdpa_kernel(WIDE, set_priority=True):
        return model(x, level, text, rope, memory).float()


def embedded(
    model: DiffusionModel, text_BLC: Tensor, guidance: Guidance | None, before: tuple[TextKV, ...], batch: int
) -> tuple[TextKV, ...]:
    """Keys and values of a text, and of what to be guided away from, which stays as it was."""
    if text_BLC.ndim == 3 and text_BLC.shape[0] not in (1, batch):
        raise ValueError(f"{text_BLC.shape[0]} prompts given for {batch} videos; give one each, or one for all")
    text = model.embed_text(text_BLC)
    if guidance is None:
        return (text,)
    return text, before[1] if before else model.embed_text(guidance.negative_BLC)


def grid(model: DiffusionModel, size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of tokens of latents of this size."""
    side, (height, width) = model.config.patch, size
    if height % side or width % side or min(height, width) < side:
        raise ValueError(f"latents of {height}x{width} asked for; both sides must be multiples of {side}")
    return height // side, width // side


def rope_of(model: DiffusionModel, frames_F: Tensor, size: tuple[int, int]) -> Rope:
    """The rotation of every token of latent frames with these positions."""
    return model.rope(frames_F, *grid(model, size))
