"""The denoising loop, the same for every chunk schedule.

A chunk of latent frames starts as noise. Each level of its schedule is one model call: from x_t = (1 - s) x0 + s noise,
with s the sigma of the level, the model's velocity v gives x0 = x_t - s v, which is noised afresh to the next level.
Every call overwrites the chunk's keys in the cache. What later chunks see is what the last call left: of the last level
(Diagonal Forcing), or of one more call on the finished chunk (`context_level`).

    for chunk in denoise(model, cache, settings, text=lambda index: embeddings, frames=21): ...

Training runs the same loop (`Gradient`): one call of a chunk carries gradient, and none of what is cached does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from diagonal.engine.attention import WIDE
from diagonal.engine.chunks.cache import WindowCache, WindowStep
from diagonal.engine.chunks.protocols import DiffusionModel, Rope, TextKV
from diagonal.planning.denoising import ChunkSchedule


class Noise(Protocol):
    """Where random numbers come from: standard normal, the same whenever chunk and step are the same."""

    def __call__(self, chunk: int, step: int, shape: tuple[int, ...]) -> Tensor:
        """Of this shape. Step 0 is what a chunk starts from, step i what its i-th level is noised with; the two steps
        behind its last level are for its context, and for the recached window before it."""
        ...


@dataclass(frozen=True, slots=True)
class Gaussian:
    """Random numbers by (seed, chunk, step): a stream can be begun anywhere, and sample b only depends on seeds[b]."""

    seeds: Sequence[int]
    device: torch.device

    def __call__(self, chunk: int, step: int, shape: tuple[int, ...]) -> Tensor:
        samples, generator = [], torch.Generator(self.device)
        for seed in self.seeds:
            state = np.random.SeedSequence([seed, chunk, step]).generate_state(1, np.uint64)[0]
            generator.manual_seed(int(state >> np.uint64(1)))
            samples.append(torch.randn(shape[1:], generator=generator, device=self.device))
        return torch.stack(samples)


@dataclass(frozen=True, slots=True)
class Gradient:
    """Where a rollout carries gradient, if the caller has it on.

    `step` names the level of a chunk whose call does; the chunk ends there, and what later chunks see is written as if
    it had gone on: at the context level, or at its last one. None: all levels, as in inference.
    """

    step: Callable[[int], int | None]
    recompute: bool = False  # activations are computed again in the backward pass, so the past must be kept for it


@dataclass(frozen=True, slots=True)
class DenoiseSettings:
    """How a video is denoised. `sigma` gives the noise level at a timestep."""

    schedule: ChunkSchedule
    sigma: Callable[[float], float]
    noise: Noise
    size: tuple[int, int]  # height and width of the latents
    chunk_frames: int = 3
    recache: bool = True  # when the text changes, compute the window's keys again under the new one
    keep_sink: bool = True  # but leave a sink that is older than the window as it is
    gradient: Gradient | None = None  # for training


@dataclass(frozen=True, slots=True)
class Chunk:
    """A finished chunk: its index, the first of its latent frames in the video, and its latents (B, F, C, H, W)."""

    index: int
    start: int
    latents: Tensor
    changed: bool  # a new text took effect with this chunk


Text = Callable[[int], Tensor]  # the prompt's embeddings (B or 1, rows, width) for a chunk; asked when the chunk begins


def denoise(
    model: DiffusionModel,
    cache: WindowCache,
    settings: DenoiseSettings,
    text: Text,
    frames: int | None = None,
    given_BFCHW: Tensor | None = None,
) -> Iterator[Chunk]:
    """Yield chunk after chunk, each as soon as it is done; `frames` latent frames in all, or without end.

    `text` is asked at the start of every chunk. Another tensor than before is a new prompt. `given_BFCHW` are clean
    latents that the video begins with, such as a picture's: they are counted in `frames`, fed in chunks (a shorter one
    first where they do not divide), and not yielded.
    """
    run = _Run(model, cache, settings)
    known = 0 if given_BFCHW is None else given_BFCHW.shape[1]
    chunks = _chunks(frames, known, settings.chunk_frames)
    current = text(0)
    run.prompt(current)
    if given_BFCHW is not None:
        run.give(given_BFCHW)
    for index in chunks:
        wanted = text(index) if index else current
        changed = wanted is not current
        if changed:
            current = wanted
            run.prompt(current)
            if settings.recache:
                run.recache(index)
        start = run.end
        yield Chunk(index, start, run.chunk(index), changed)


def _chunks(frames: int | None, known: int, size: int) -> Iterator[int]:
    """Indices of the chunks to denoise."""
    if frames is None:
        return count()
    if frames <= known or (frames - known) % size:
        after = f" after {known} given" if known else ""
        raise ValueError(
            f"{frames} latent frames asked for; this model makes {size} at a time{after}: {known + size}, ..."
        )
    return iter(range((frames - known) // size))


@dataclass(slots=True)
class _Run:
    """The state of one video: the text in use, and the newest latents, which a new text is applied to."""

    model: DiffusionModel
    cache: WindowCache
    settings: DenoiseSettings
    end: int = 0  # latent frames done
    text: TextKV = ()
    newest: list[Tensor] = field(default_factory=list)  # one (B, 1, C, H, W) per frame, at most a window

    def __post_init__(self) -> None:
        rows, cols = self._grid()
        if rows * cols != self.cache.frame_tokens:
            raise ValueError(
                f"latents of {self.settings.size} have {rows * cols} tokens; the cache is for {self.cache.frame_tokens}"
            )
        self.cache.restart(0)
        self.cache.places(1, self.settings.chunk_frames)  # refuses now what would not fit once the window rolls

    def _grid(self) -> tuple[int, int]:
        side, (height, width) = self.model.config.patch, self.settings.size
        if height % side or width % side or min(height, width) < side:
            raise ValueError(f"latents of {height}x{width} asked for; both sides must be multiples of {side}")
        return height // side, width // side

    def _mode(self, carries: bool = False) -> AbstractContextManager[None]:
        """Whether what is computed inside may be part of a gradient."""
        if self.settings.gradient is None:
            return torch.inference_mode()
        return torch.set_grad_enabled(carries and torch.is_grad_enabled())

    def prompt(self, text_BLC: Tensor) -> None:
        """Use another text from now on."""
        if text_BLC.ndim == 3 and text_BLC.shape[0] not in (1, self.cache.batch):
            raise ValueError(
                f"{text_BLC.shape[0]} prompts given for {self.cache.batch} videos; give one each, or one for all"
            )
        with self._mode(carries=True):
            self.text = self.model.embed_text(text_BLC)

    def give(self, latents_BFCHW: Tensor) -> None:
        """Take clean latents as the beginning of the video."""
        shape = self._shape(latents_BFCHW.shape[1])
        if latents_BFCHW.shape != shape:
            raise ValueError(f"latents of shape {tuple(latents_BFCHW.shape)} given to begin with; {shape} is needed")
        _check(latents_BFCHW, "the given latents")
        latents_BFCHW, size = latents_BFCHW.to(self.cache.k.device, torch.float32), self.settings.chunk_frames
        first = latents_BFCHW.shape[1] % size
        for part in (*latents_BFCHW[:, :first].split(size, 1), *latents_BFCHW[:, first:].split(size, 1)):
            if part.shape[1]:
                memory, rope = self._place(self.end, part.shape[1])
                self._feed(part, 0.0, (0, 0), rope, memory)
                self._done(part)

    def chunk(self, index: int) -> Tensor:
        """Denoise the next chunk."""
        schedule, sigma, gradient = self.settings.schedule, self.settings.sigma, self.settings.gradient
        shape = self._shape(self.settings.chunk_frames)
        memory, rope = self._place(self.end, self.settings.chunk_frames)
        levels, context = schedule.levels(index), schedule.context_level(index)
        taught = None if gradient is None else gradient.step(index)
        last = len(levels) - 1 if taught is None else taught
        if not 0 <= last < len(levels):
            raise ValueError(f"chunk {index} should end at step {last}; it has {len(levels)}, counted from 0")
        if context is None and last < len(levels) - 1:
            context = levels[-1]  # the call that would have left the cache does not come
        x = clean = self.settings.noise(index, 0, shape)
        for step, level in enumerate(levels[: last + 1]):
            with self._mode(carries=step == taught):
                if step:
                    x = self._noised(clean, level, self.settings.noise(index, step, shape))
                if step == taught and gradient is not None and gradient.recompute:
                    memory = memory.remembered()
                clean = x - sigma(level) * self._velocity(x, level, rope, memory)
        if clean.device.type == "cpu":
            check_chunk(clean, index, self.end)
        if context is not None:
            self._feed(clean.detach(), context, (index, len(levels)), rope, memory)
        self._done(clean.detach())
        return clean

    def recache(self, index: int) -> None:
        """Compute the keys of the window again under the present text: one call on its clean latents, which see all of
        each other. A sink that is older than the window is kept as it is, or else given up: the window's first frames
        become the new one."""
        if not self.newest:
            return
        window = self.cache.window
        count = min(self.end, window.frames)
        if self.settings.keep_sink and self.end - self.cache.origin > window.frames:
            count = window.frames - window.sink
        else:
            self.cache.restart(self.end - count)
        context, steps = self.settings.schedule.context_level(index), len(self.settings.schedule.levels(index))
        memory, rope = self._place(self.end - count, count)
        # Keys of the last denoising call cannot be had again: that latent is gone. Clean ones stand in for them.
        self._feed(torch.cat(self.newest[-count:], 1), context or 0.0, (index, steps + 1), rope, memory)

    def _place(self, start: int, frames: int) -> tuple[WindowStep, Rope]:
        """What depends on the place of a chunk alone: its slots, and the rotation of its tokens."""
        cache, device = self.cache, self.cache.k.device
        with self._mode():
            memory = cache.at(start, frames)
            shift = cache.sink_shift(start, frames)
            if shift:
                turn = self.model.rope(torch.full((1,), shift, device=device), 1, 1)
                cache.move_sink(lambda k: self.model.rotate(k, turn))
            return memory, self.model.rope(torch.arange(start, start + frames, device=device), *self._grid())

    def _feed(self, clean: Tensor, level: float, draw: tuple[int, int], rope: Rope, memory: WindowStep) -> None:
        """Leave the keys of latents in the cache, noised to a level; 0 means clean."""
        with self._mode():
            x = self._noised(clean, level, self.settings.noise(*draw, tuple(clean.shape))) if level else clean
            self._velocity(x, level, rope, memory)

    def _noised(self, clean: Tensor, level: float, noise: Tensor) -> Tensor:
        sigma = self.settings.sigma(level)
        return (1 - sigma) * clean + sigma * noise

    def _velocity(self, x: Tensor, level: float, rope: Rope, memory: WindowStep) -> Tensor:
        with sdpa_kernel(WIDE, set_priority=True):
            return self.model(x, level, self.text, rope, memory).float()

    def _done(self, clean: Tensor) -> None:
        self.end += clean.shape[1]
        self.newest = [*self.newest, *clean.split(1, 1)][-self.cache.window.frames :]

    def _shape(self, frames: int) -> tuple[int, ...]:
        return (self.cache.batch, frames, self.model.config.channels, *self.settings.size)


def check_chunk(latents: Tensor, index: int, start: int) -> None:
    """Refuse a chunk ((B,) F, C, H, W) of numbers that nothing good can come of. The loop does so on a CPU. A look at a
    GPU's numbers would wait for it: there it is for whoever takes them to the host."""
    _check(latents, f"chunk {index} (latent frames {start} to {start + latents.shape[-4] - 1})")


def _check(latents: Tensor, what: str) -> None:
    if not bool(torch.isfinite(latents).all()):
        raise ValueError(f"{what} came out as NaN or infinite; the weights or the prompt embeddings are damaged")
