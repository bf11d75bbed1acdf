"""The denoising loop, the same for every schedule of chunks, however they overlap in time.

A chunk of latent frames starts as noise. Each level of its schedule is one call of the model: from x_t = (1 - s) x0 + s
noise, with s the sigma of the level, the model predicts the velocity v = noise - x0, and a solver takes the chunk to
the next level. In models of few steps that is x0 = x_t - s v, noised afresh. `planning.lag` says which chunks are in
which call; as it is, one follows the other.

Every call overwrites a chunk's keys in the cache. What later chunks see is what its last call left: of the last level
(Diagonal Forcing), or of one more time that the finished chunk is shown (`context_level`).

    for chunk in denoise(model, cache, settings, text=lambda index: embeddings, frames=21): ...

`run` is the same for any `Denoiser`: models with other caches, or that see all of the video at once. Training runs the
same loop (`Gradient`): one call of a chunk carries gradient, and none of what is cached does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from diagonal.engine.chunks.cache import WindowCache
from diagonal.engine.chunks.denoisers import Guidance, Windowed
from diagonal.engine.chunks.protocols import Denoiser, DiffusionModel, Noise, Shown
from diagonal.engine.chunks.solvers import Renoise, Solver, noised
from diagonal.planning.denoising import ChunkSchedule
from diagonal.planning.lag import SEES_ALL, WAITS, Iteration, Part, Sees, iterations, overlaps
from diagonal.planning.segments import Cut


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
    sees: Sees = SEES_ALL
    solver: Callable[[], Solver] | None = None  # None: noise is drawn afresh at every level
    given_level: float = 0.0  # of latents that the video begins with, as the model is shown them; 0: clean
    pinned: Mapping[int, Tensor] = field(default_factory=dict)  # of a chunk: first latents that every call is shown


@dataclass(frozen=True, slots=True)
class Chunk:
    """A finished chunk: its index, the first of its latent frames in the video, and its latents (B, F, C, H, W)."""

    index: int
    start: int
    latents: Tensor
    changed: bool  # a new text took effect with this chunk
    calls: int  # of the model, since the chunk before it


Text = Callable[[int], Tensor]  # the prompt's embeddings (B or 1, rows, width) for a chunk; asked when the chunk begins


def denoise(
    model: DiffusionModel,
    cache: WindowCache,
    settings: DenoiseSettings,
    text: Text,
    frames: int | None = None,
    given_BFCHW: Tensor | None = None,
) -> Iterator[Chunk]:
    """Yield chunk after chunk of a causal model over a window, each as soon as it is done: see `run`."""
    yield from run(windowed(model, cache, settings), settings, text, frames, given_BFCHW)


def windowed(
    model: DiffusionModel, cache: WindowCache, settings: DenoiseSettings, guidance: Guidance | None = None
) -> Windowed:
    """A causal model over a window, as the loop asks it."""
    remember = settings.gradient is not None and settings.gradient.recompute
    options = {"keep_sink": settings.keep_sink, "remember": remember}
    made = Windowed(model, cache, settings.size, guidance=guidance, **options)
    cache.places(1, settings.chunk_frames)  # refuses now what would not fit once the window rolls
    return made


def run(
    denoiser: Denoiser,
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
    schedule = settings.schedule
    if settings.gradient is not None:
        if overlaps(schedule) or settings.sees.whole:
            raise ValueError("gradients asked for of chunks that overlap; leave out the lag: one chunk after the other")
        schedule = _Ending(schedule, settings.gradient)
    known = 0 if given_BFCHW is None else given_BFCHW.shape[1]
    plan = iterations(schedule, _count(frames, known, settings.chunk_frames), settings.sees)
    solver = settings.solver() if settings.solver else Renoise(settings.sigma, settings.noise)
    made = _Run(denoiser, settings, schedule, solver)
    current, changed, calls = text(0), set[int](), 0
    made.prompt(0, current)
    if given_BFCHW is not None:
        made.give(given_BFCHW)
    for iteration in plan:
        for chunk in iteration.begins:
            wanted = text(chunk) if chunk else current
            if wanted is not current:
                current = wanted
                changed.add(chunk)
                made.prompt(chunk, current)
                if settings.recache:
                    made.recache(chunk)
            made.begin(chunk, known + chunk * settings.chunk_frames)
        made.call(iteration)
        for chunk in iteration.finished:
            calls, before = denoiser.calls, calls
            start = known + chunk * settings.chunk_frames
            yield Chunk(chunk, start, made.finish(chunk), chunk in changed, calls - before)


def _count(frames: int | None, known: int, size: int) -> int | None:
    """Chunks to denoise."""
    if frames is None:
        return None
    if frames <= known or (frames - known) % size:
        after = f" after {known} given" if known else ""
        raise ValueError(
            f"{frames} latent frames asked for; this model makes {size} at a time{after}: {known + size}, ..."
        )
    return (frames - known) // size


@dataclass(frozen=True, slots=True)
class _Ending:
    """A schedule whose chunks end at the step that carries gradient."""

    whole: ChunkSchedule
    gradient: Gradient

    @property
    def shift(self) -> float:
        return self.whole.shift

    @property
    def lag(self) -> int | None:
        return self.whole.lag

    def levels(self, chunk: int) -> tuple[float, ...]:
        levels, taught = self.whole.levels(chunk), self.gradient.step(chunk)
        last = len(levels) - 1 if taught is None else taught
        if not 0 <= last < len(levels):
            raise ValueError(f"chunk {chunk} should end at step {last}; it has {len(levels)}, counted from 0")
        return levels[: last + 1]

    def context_level(self, chunk: int) -> float | None:
        levels, context = self.whole.levels(chunk), self.whole.context_level(chunk)
        if context is None and len(self.levels(chunk)) < len(levels):
            return levels[-1]  # the call that would have left the cache does not come
        return context


@dataclass(slots=True)
class _Chunk:
    """A chunk that is under way, or done and still shown."""

    start: int  # its first latent frame in the video
    levels: tuple[float, ...]
    x: Tensor  # at its present level, and in the end clean


@dataclass(slots=True)
class _Run:
    """The state of one video: the chunks in its calls, and the newest clean latents, which a new text is applied to."""

    denoiser: Denoiser
    settings: DenoiseSettings
    schedule: ChunkSchedule  # that of the settings, or where chunks end early for a gradient
    solver: Solver
    end: int = 0  # latent frames done
    chunks: dict[int, _Chunk] = field(default_factory=dict)
    given: list[Shown] = field(default_factory=list)  # what the video begins with, where it is in every call
    newest: list[Tensor] = field(default_factory=list)  # one (B, 1, C, H, W) per frame, at most a window

    def _mode(self, carries: bool = False) -> AbstractContextManager[None]:
        """Whether what is computed inside may be part of a gradient."""
        if self.settings.gradient is None:
            return torch.inference_mode()
        return torch.set_grad_enabled(carries and torch.is_grad_enabled())

    def prompt(self, chunk: int, text_BLC: Tensor) -> None:
        """Use another text from now on."""
        with self._mode(carries=True):
            self.denoiser.prompt(chunk, text_BLC)

    def give(self, latents_BFCHW: Tensor) -> None:
        """Take clean latents as the beginning of the video."""
        shape = self._shape(latents_BFCHW.shape[1])
        if latents_BFCHW.shape != shape:
            raise ValueError(f"latents of shape {tuple(latents_BFCHW.shape)} given to begin with; {shape} is needed")
        _check(latents_BFCHW, "the given latents")
        latents_BFCHW, size = latents_BFCHW.to(self.denoiser.device, torch.float32), self.settings.chunk_frames
        parts = latents_BFCHW.split(Cut.parts(latents_BFCHW.shape[1], size), 1)
        draws, level, reach = self._steps(0) + 2, self.settings.given_level, self.settings.sees.context_reach
        for index, clean in enumerate(parts):
            part = Part(index - len(parts), 0, level, reach, moves=False)
            if self.settings.sees.whole:
                self.given.append(Shown(part, self.end, self._noised(clean, level, (0, draws + index))))
            else:
                self._show(part, self.end, clean, (0, draws + index))
            self._done(clean)

    def begin(self, chunk: int, start: int) -> None:
        """Start a chunk from noise."""
        noise = self.settings.noise(chunk, 0, self._shape(self.settings.chunk_frames))
        self.chunks[chunk] = _Chunk(start, self.schedule.levels(chunk), noise)

    def call(self, iteration: Iteration) -> None:
        """One call of the model, which takes its chunks to their next levels."""
        carries = any(self._carries(part) for part in iteration.parts)
        oldest = iteration.parts[0].chunk
        self.chunks = {index: chunk for index, chunk in self.chunks.items() if index >= oldest}
        with self._mode(carries):
            shown = [self._shown(part) for part in iteration.parts]
            made = self.denoiser.velocities([*self.given, *shown], carries)[len(self.given) :]
            for part, velocity in zip(iteration.parts, made, strict=True):
                if part.moves:
                    self._move(part, velocity)

    def finish(self, chunk: int) -> Tensor:
        """The latents of a chunk that is done."""
        latents = self.chunks[chunk].x
        self.chunks[chunk].x = latents.detach()
        self._done(self.chunks[chunk].x)
        return latents

    def recache(self, chunk: int) -> None:
        """Compute the keys of the newest frames again under the present text: one call on their clean latents, which
        see all of each other."""
        count = self.denoiser.forget(self.end) if self.newest else 0
        if not count:
            return
        steps = self._steps(chunk)
        # Keys of the last denoising call cannot be had again: that latent is gone. Clean ones stand in for them.
        part = Part(chunk, steps, self.schedule.context_level(chunk) or 0.0, moves=False)
        self._show(part, self.end - count, torch.cat(self.newest[-count:], 1), (chunk, steps + 1))

    def _carries(self, part: Part) -> bool:
        """Whether this is the step of a chunk whose call carries gradient."""
        gradient = self.settings.gradient
        return gradient is not None and part.moves and gradient.step(part.chunk) == part.step

    def _shown(self, part: Part) -> Shown:
        """A chunk as a call shows it: at its level, or if it is done, clean or noised to its context level."""
        chunk = self.chunks[part.chunk]
        if part.chunk in self.settings.pinned:
            known = self.settings.pinned[part.chunk]
            chunk.x = torch.cat([known, chunk.x[:, known.shape[1] :]], 1)
        if part.step >= len(chunk.levels):
            x = self._noised(chunk.x.detach(), part.level, (part.chunk, self._steps(part.chunk)))
            return Shown(part, chunk.start, x)
        first = replace(part, step=0) if part.step == WAITS else part
        return Shown(replace(part, level=self.solver.level(first)), chunk.start, chunk.x)

    def _move(self, part: Part, velocity: Tensor) -> None:
        """Take a chunk to its next level."""
        chunk = self.chunks[part.chunk]
        following = chunk.levels[part.step + 1] if part.step + 1 < len(chunk.levels) else None
        chunk.x = self.solver.step(part, chunk.x, velocity, following)
        if following is None and chunk.x.device.type == "cpu":
            check_chunk(chunk.x, part.chunk, chunk.start)

    def _show(self, part: Part, start: int, clean: Tensor, draw: tuple[int, int]) -> None:
        """Leave the keys of latents in the cache, noised to a level; 0 means clean."""
        with self._mode():
            self.denoiser.velocities([Shown(part, start, self._noised(clean, part.level, draw))], False)

    def _noised(self, clean: Tensor, level: float, draw: tuple[int, int]) -> Tensor:
        if not level:
            return clean
        return noised(clean, self.settings.sigma(level), self.settings.noise(*draw, tuple(clean.shape)))

    def _steps(self, chunk: int) -> int:
        """Steps of a chunk that does not end early."""
        return len(self.settings.schedule.levels(chunk))

    def _done(self, clean: Tensor) -> None:
        self.end += clean.shape[1]
        if self.denoiser.window:
            self.newest = [*self.newest, *clean.split(1, 1)][-self.denoiser.window :]

    def _shape(self, frames: int) -> tuple[int, ...]:
        return (self.denoiser.batch, frames, self.denoiser.channels, *self.settings.size)


def check_chunk(latents: Tensor, index: int, start: int) -> None:
    """Refuse a chunk ((B,) F, C, H, W) of numbers that nothing good can come of. The loop does so on a CPU. A look at a
    GPU's numbers would wait for it: there it is for whoever takes them to the host."""
    _check(latents, f"chunk {index} (latent frames {start} to {start + latents.shape[-4] - 1})")


def _check(latents: Tensor, what: str) -> None:
    if not bool(torch.isfinite(latents).all()):
        raise ValueError(f"{what} came out as NaN or infinite; the weights or the prompt embeddings are damaged")
