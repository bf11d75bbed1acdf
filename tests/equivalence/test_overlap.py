"""Chunks that overlap in time against a loop that knows no cache: every call over the whole video under a mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal.engine.attention import Dense, Full
from diagonal.engine.chunks.cache import WindowSpec
from diagonal.engine.chunks.denoise import DenoiseSettings, Gaussian, Gradient, denoise, run, windowed
from diagonal.engine.chunks.denoisers import Guidance, Whole
from diagonal.engine.chunks.masks import block_causal
from diagonal.engine.chunks.protocols import Memory, Rope, TextKV
from diagonal.engine.chunks.solvers import Euler, Renoise, UniPC
from diagonal.planning.denoising import parse
from diagonal.planning.lag import Part, Sees, iterations, most_together
from tests.wan import SIZE, TOKENS, Steps, new_cache, recorded_model, sigma

CPU = torch.device("cpu")
SIDE = 2  # latent frames of a chunk
FORCING: Any = parse("forcing:steps=6,lag=2")
RENOISED = Steps(((1000.0, 900.0, 700.0, 400.0), (1000.0, 700.0, 400.0), (1000.0, 400.0)), lag=1)
NOISED = replace(RENOISED, context=200.0, lag=2)


@pytest.fixture(scope="module")
def model() -> Any:
    return recorded_model()


class Watched:
    """A model that keeps what its calls are shown, at which levels, and what comes."""

    def __init__(self, model: Any) -> None:
        self.model, self.config, self.cache_spec = model, model.config, model.cache_spec
        self.embed_text, self.rope, self.rotate = model.embed_text, model.rope, model.rotate
        self.shown: list[Tensor] = []
        self.levels: list[Any] = []
        self.flows: list[Tensor] = []

    def __call__(self, x_BFCHW: Tensor, level: float | Tensor, text: TextKV, rope: Rope, memory: Memory) -> Tensor:
        flow: Tensor = self.model(x_BFCHW, level, text, rope, memory)
        self.shown.append(x_BFCHW)
        self.levels.append(level)
        self.flows.append(flow)
        return flow


def words(seed: int, batch: int = 1) -> Tensor:
    return torch.randn(batch, 5, 48, generator=torch.Generator().manual_seed(seed))


def always(text: Tensor) -> Callable[[int], Tensor]:
    return lambda index: text


def plain(schedule: Any, seeds: tuple[int, ...] = (7,), **changes: Any) -> DenoiseSettings:
    """Settings of a schedule: those of the shift 8 are for the solver of many steps."""
    made: dict[str, Any] = {"solver": (lambda: UniPC(schedule)) if schedule.shift == 8 else None} | changes
    return DenoiseSettings(schedule, sigma, Gaussian(seeds, CPU), SIZE, SIDE, **made)


def made(
    model: Any, settings: DenoiseSettings, chunks: int = 5, window: WindowSpec | None = None, **more: Any
) -> Tensor:
    """All latents of a run through the cache."""
    window, batch = window or WindowSpec(SIDE * chunks + more.pop("known", 0)), more.pop("batch", 1)
    text, given = more.pop("text", always(words(0))), more.pop("given", None)
    frames = SIDE * chunks + (0 if given is None else given.shape[1])
    found = denoise(model, new_cache(model, window, batch), settings, text, frames, given)
    return torch.cat([chunk.latents for chunk in found], 1)


def close(ours: Tensor, theirs: Tensor, most: float = 2e-5) -> None:
    assert (ours - theirs).abs().max() <= most * max(1.0, float(theirs.abs().max()))


@dataclass(frozen=True)
class Naive:
    """Every chunk of the video in every call, whether it waits, moves or is done: nothing is kept from call to call but
    the latents, and where there is no context level, the latent of a chunk's last call."""

    model: Any
    settings: DenoiseSettings
    seen: Tensor  # (F, F) of frames
    guidance: float = 1.0
    given: Tensor | None = None

    def latents(self, chunks: int) -> Tensor:
        schedule, shape = self.settings.schedule, (1, SIDE, 16, *SIZE)
        solver: Any = self.settings.solver() if self.settings.solver else Renoise(sigma, self.settings.noise)
        x = [self.settings.noise(chunk, 0, shape) for chunk in range(chunks)]
        firsts = [Part(chunk, 0, schedule.levels(chunk)[0]) for chunk in range(chunks)]
        shown = [(one, solver.level(part)) for one, part in zip(x, firsts, strict=True)]
        for iteration in iterations(schedule, chunks):
            for part in iteration.parts:
                shown[part.chunk] = (x[part.chunk], solver.level(part) if part.moves else part.level)
                if part.level and not part.moves:
                    drawn = self.settings.noise(part.chunk, len(schedule.levels(part.chunk)), shape)
                    noisy = (1 - sigma(part.level)) * x[part.chunk] + sigma(part.level) * drawn
                    shown[part.chunk] = (noisy, part.level)
            flows = self.flow(shown).split(SIDE, 1)
            for part in iteration.parts:
                if part.moves:
                    following = [*schedule.levels(part.chunk), None][part.step + 1]
                    x[part.chunk] = solver.step(part, x[part.chunk], flows[part.chunk], following)
        return torch.cat(x, 1)

    def flow(self, shown: list[tuple[Tensor, float]]) -> Tensor:
        given = torch.zeros(1, 0, 16, *SIZE) if self.given is None else self.given
        known, mask = given.shape[1], self.seen.repeat_interleave(TOKENS, 0).repeat_interleave(TOKENS, 1)
        levels = [0.0] * known + [level for _, level in shown for _ in range(SIDE)]
        x, rope = (
            torch.cat([given, *(one for one, _ in shown)], 1),
            self.model.rope(torch.arange(len(levels)), 4, 6),
        )
        texts = [self.model.embed_text(words(0)), self.model.embed_text(words(1))]
        flows = [self.model(x, torch.tensor(levels)[None], text, rope, Dense(mask)) for text in texts]
        made: Tensor = flows[1] + self.guidance * (flows[0] - flows[1])
        return made[:, known:]


def naive(model: Any, settings: DenoiseSettings, chunks: int, seen: Tensor, guidance: float = 1.0) -> Tensor:
    return Naive(model, settings, seen, guidance).latents(chunks)


@pytest.mark.parametrize(
    "schedule",
    [FORCING, RENOISED, NOISED, replace(RENOISED, lag=0), replace(NOISED, lag=9), parse("forcing:steps=4,lag=1")],
)
def test_active_chunks_over_a_cache_are_the_whole_video_under_a_causal_mask(model: Any, schedule: Any) -> None:
    settings = plain(schedule)
    close(made(model, settings), naive(model, settings, 5, block_causal(5 * SIDE, SIDE)))


@pytest.mark.parametrize("window", [WindowSpec(6, 2), WindowSpec(4), WindowSpec(5, 1)])
@pytest.mark.parametrize("schedule", [FORCING, RENOISED])
def test_each_chunk_sees_what_its_own_window_holds(model: Any, window: WindowSpec, schedule: Any) -> None:
    """Whatever is in the call beside it: the cache holds so many frames more."""
    settings, ahead = plain(schedule), (most_together(schedule, 5) - 1) * SIDE
    ours = made(model, settings, 5, replace(window, ahead=ahead))
    close(ours, naive(model, settings, 5, block_causal(5 * SIDE, SIDE, window)))
    assert (ours - made(model, settings)).abs().max() > 1e-3


@pytest.mark.parametrize("reach", [(1,), (2, 1), (3, 2, 1)])
def test_how_far_a_chunk_sees_may_change_with_its_steps(model: Any, reach: tuple[int, ...]) -> None:
    """What it does not see cannot change it: other noise in chunks beyond its reach leaves it as it is."""
    schedule = FORCING
    settings = plain(schedule, sees=Sees(reach, context_reach=1))
    first = made(model, settings)

    def other(chunk: int, step: int, shape: tuple[int, ...]) -> Tensor:
        return Gaussian((8 if chunk == 0 else 7,), CPU)(chunk, step, shape)

    second = made(model, replace(settings, noise=other))
    same = [torch.equal(*(one[:, c * SIDE : (c + 1) * SIDE] for one in (first, second))) for c in range(5)]
    assert same == [False, *(chunk >= 1 and reach == (1,) for chunk in range(1, 5))]
    alone = plain(replace(schedule, lag=None), sees=Sees((1,), context_reach=1))
    if reach == (1,):
        close(first, made(model, alone))


@pytest.mark.parametrize("schedule", [replace(FORCING, lag=6), replace(FORCING, lag=50)])
def test_a_lag_of_all_steps_is_one_chunk_after_the_other(model: Any, schedule: Any) -> None:
    """The same video; the finished chunk is shown beside the first step of the next one, not by itself."""
    sequential = plain(replace(schedule, lag=None))
    close(made(model, plain(schedule)), made(model, sequential))
    calls = [len(list(iterations(one, 5))) for one in (schedule, sequential.schedule)]
    assert calls == [30, 35]


def test_a_lag_of_all_steps_without_a_context_call_is_the_same_to_the_bit(model: Any) -> None:
    schedule = Steps(((1000.0, 900.0, 400.0),))
    assert torch.equal(made(model, plain(schedule)), made(model, plain(replace(schedule, lag=3))))


@pytest.mark.parametrize("guidance", [1.0, 5.0])
@pytest.mark.parametrize("schedule", [FORCING, replace(FORCING, lag=0)])
def test_under_full_attention_all_chunks_are_in_every_call(model: Any, schedule: Any, guidance: float) -> None:
    settings = plain(schedule, sees=Sees(whole=True))
    whole = Whole(model, SIZE, 1, CPU, Guidance(guidance, words(1)))
    chunks = list(run(whole, settings, always(words(0)), 5 * SIDE))
    latents = torch.cat([chunk.latents for chunk in chunks], 1)
    close(latents, naive(model, settings, 5, torch.ones(5 * SIDE, 5 * SIDE, dtype=torch.bool), guidance))
    expected = len(list(iterations(schedule, 5)))
    assert whole.calls == sum(chunk.calls for chunk in chunks) == 2 * expected


def test_a_lag_of_none_at_all_under_full_attention_is_the_teacher(model: Any) -> None:
    """All chunks at one level is one chunk of the whole video."""
    every = plain(parse("forcing:steps=5,lag=0"), sees=Sees(whole=True))
    noise = torch.cat([every.noise(chunk, 0, (1, SIDE, 16, *SIZE)) for chunk in range(5)], 1)
    teacher = parse("teacher:steps=5")
    one = DenoiseSettings(
        teacher,
        sigma,
        lambda chunk, step, shape: noise,
        SIZE,
        5 * SIDE,
        sees=Sees(whole=True),
        solver=lambda: UniPC(teacher),
    )
    latents = [
        torch.cat([c.latents for c in run(Whole(model, SIZE, 1, CPU), how, always(words(0)), 5 * SIDE)], 1)
        for how in (every, one)
    ]
    close(latents[0], latents[1])
    x, solver, text = noise, UniPC(teacher), model.embed_text(words(0))
    for iteration in iterations(teacher, 1):
        (part,) = iteration.parts
        flow = model(x, solver.level(part), text, model.rope(torch.arange(5 * SIDE), 4, 6), Full())
        x = solver.step(part, x, flow, 1.0 if part.step < 4 else None)
    close(latents[1], x)


def test_guidance_through_two_caches_is_guidance_without_any(model: Any) -> None:
    settings, window = plain(FORCING), WindowSpec(5 * SIDE)
    guidance = Guidance(6.0, words(1), new_cache(model, window))
    denoiser = windowed(model, new_cache(model, window), settings, guidance)
    chunks = list(run(denoiser, settings, always(words(0)), 5 * SIDE))
    latents = torch.cat([chunk.latents for chunk in chunks], 1)
    close(latents, naive(model, settings, 5, block_causal(5 * SIDE, SIDE), 6.0), 1e-4)
    assert [chunk.calls for chunk in chunks] == [12, 4, 4, 4, 4]


def test_a_solver_remembers_each_chunk_for_itself(model: Any) -> None:
    """With Euler, which remembers nothing, the result is another one; both end clean."""
    settings = plain(FORCING)
    straight = replace(settings, solver=Euler)
    ours, other = made(model, settings), made(model, straight)
    close(other, naive(model, straight, 5, block_causal(5 * SIDE, SIDE)))
    assert (ours - other).abs().max() > 1e-3


@pytest.mark.parametrize("schedule", [FORCING, RENOISED])
def test_a_stream_without_end_is_a_batch_run_and_samples_do_not_know_of_each_other(model: Any, schedule: Any) -> None:
    window, text = WindowSpec(6, 2, ahead=SIDE * 4), torch.cat([words(0), words(1)])
    both = made(model, plain(schedule, (7, 8)), 6, window, batch=2, text=always(text))
    for sample, seed in enumerate((7, 8)):
        alone = denoise(model, new_cache(model, window), plain(schedule, (seed,)), always(text[sample : sample + 1]))
        for chunk in islice(alone, 4):
            close(chunk.latents[0], both[sample, chunk.start : chunk.start + SIDE])


def test_chunks_are_handed_out_as_they_finish(model: Any) -> None:
    watched, seen = Watched(model), []
    for chunk in denoise(watched, new_cache(model, WindowSpec(10)), plain(FORCING), always(words(0)), 10):
        seen.append((chunk.index, chunk.calls, len(watched.shown)))
    assert seen == [(0, 6, 6), (1, 2, 8), (2, 2, 10), (3, 2, 12), (4, 2, 14)]
    chunks = [x.shape[1] // SIDE for x in watched.shown]
    assert chunks == [1, 1, 2, 2, 3, 3, 4, 3, 4, 3, 3, 2, 2, 1]  # with those that are shown for the cache


@pytest.mark.parametrize("known", [SIDE, 1, 3])
def test_given_latents_are_seen_clean_by_all_that_follows(model: Any, known: int) -> None:
    settings, given = plain(FORCING), torch.randn(1, known, 16, *SIZE, generator=torch.Generator().manual_seed(3))
    frames = known + 3 * SIDE
    ends = [end for end in range(known % SIDE, frames + 1, SIDE) if end]  # a shorter chunk first
    seen = (
        torch.arange(frames)[None]
        < torch.tensor([next(e for e in ends if e > frame) for frame in range(frames)])[:, None]
    )
    theirs = Naive(model, settings, seen, given=given).latents(3)
    close(made(model, settings, 3, WindowSpec(frames), given=given), theirs)


def test_under_full_attention_what_is_given_stays_in_every_call(model: Any) -> None:
    given = torch.randn(1, 3, 16, *SIZE, generator=torch.Generator().manual_seed(3))
    settings, watched = plain(FORCING, sees=Sees(whole=True)), Watched(model)
    chunks = list(run(Whole(watched, SIZE, 1, CPU), settings, always(words(0)), 3 + 2 * SIDE, given))
    assert [chunk.start for chunk in chunks] == [3, 5] and len(watched.shown) == 8
    assert all(torch.equal(x[:, :3], given) for x in watched.shown)
    assert all(level[0, :3].tolist() == [0.0] * 3 for level in watched.levels)


@pytest.mark.parametrize("keep_sink", [True, False])
@pytest.mark.parametrize("window", [WindowSpec(14), WindowSpec(6, 2, ahead=6), WindowSpec(4, ahead=6)])
def test_a_new_text_holds_for_all_chunks_under_way_and_is_recached(
    model: Any, window: WindowSpec, keep_sink: bool
) -> None:
    old, new, count = words(0), words(1), 7
    settings = plain(FORCING, keep_sink=keep_sink)
    kept, switched, plainly = (
        made(model, how, count, window, text=text)
        for how, text in (
            (settings, always(old)),
            (settings, lambda index: old if index < 5 else new),
            (replace(settings, recache=False), lambda index: old if index < 5 else new),
        )
    )
    chunks = [slice(chunk * SIDE, (chunk + 1) * SIDE) for chunk in range(count)]
    # Chunk 5 begins in iteration 10, in which chunks 0 to 2 are done.
    assert [torch.equal(kept[:, one], switched[:, one]) for one in chunks] == [True] * 3 + [False] * 4
    assert [torch.equal(plainly[:, one], switched[:, one]) for one in chunks] == [True] * 3 + [False] * 4


def test_pinned_latents_are_in_every_call_of_their_chunk_and_move_from_there(model: Any) -> None:
    known = torch.zeros(1, 1, 16, *SIZE)
    settings = plain(FORCING, pinned={1: known}, solver=Euler)
    watched = Watched(model)
    made = denoise(watched, new_cache(model, WindowSpec(6)), settings, always(words(0)), 6)
    chunks = [chunk.latents for chunk in made]
    for (x, flow), one in zip(zip(watched.shown, watched.flows, strict=True), iterations(FORCING, 3), strict=True):
        for index, part in enumerate(one.parts):
            first = slice(index * SIDE, index * SIDE + 1)
            assert (part.chunk == 1) == torch.equal(x[:, first], known)
            if part.chunk == 1 and part.step == 5:
                close(chunks[1][:, :1], -part.level / 1000 * flow[:, first])  # one step away from what is known


def test_what_cannot_be_is_refused(model: Any) -> None:
    taught = plain(FORCING, gradient=Gradient(lambda chunk: 0))
    with pytest.raises(ValueError, match="leave out the lag"):
        next(denoise(model, new_cache(model, WindowSpec(10)), taught, always(words(0)), 10))
    with pytest.raises(ValueError, match="relative positions"):
        WindowSpec(6, 2, relative=True, ahead=2)
    with pytest.raises(ValueError, match="without a cache of its own"):
        windowed(model, new_cache(model, WindowSpec(10)), plain(FORCING), Guidance(2.0, words(1)))
    with pytest.raises(ValueError, match="give its length"):
        next(denoise(model, new_cache(model, WindowSpec(10)), plain(replace(FORCING, lag=0)), always(words(0))))
