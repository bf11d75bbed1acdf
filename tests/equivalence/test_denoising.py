"""The denoising loop against what it must equal: one forward, another order of asking, a run begun elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal.engine.attention import Full
from diagonal.engine.chunks.cache import WindowCache, WindowSpec
from diagonal.engine.chunks.denoise import DenoiseSettings, Gaussian, denoise, run
from diagonal.engine.chunks.denoisers import Guidance, Whole
from diagonal.engine.chunks.masks import block_causal, dense
from diagonal.engine.chunks.solvers import UniPC
from diagonal.engine.heads import joined
from diagonal.models.wan import VARIANTS
from diagonal.planning.denoising.teacher import Teacher
from diagonal.planning.lag import Sees
from tests.tiny import build
from tests.wan import SIZE, TOKENS, Recorder, Steps, new_cache, recorded_model, sample_whole, sigma, video

CPU = torch.device("cpu")
DIAGONAL = Steps(((1000.0, 900.0, 400.0), (1000.0, 400.0)))
CLEAN = Steps(((1000.0, 700.0),), context=0.0)
NOISED = Steps(((1000.0, 700.0),), context=200.0)


@pytest.fixture(scope="module")
def model() -> Any:
    return recorded_model()


def words(seed: int, batch: int = 1) -> Tensor:
    return torch.randn(batch, 5, 48, generator=torch.Generator().manual_seed(seed))


def plain(schedule: Any = DIAGONAL, seeds: tuple[int, ...] = (7,)) -> DenoiseSettings:
    return DenoiseSettings(schedule, sigma, Gaussian(seeds, CPU), SIZE)


def always(text: Tensor) -> Callable[[int], Tensor]:
    return lambda index: text


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_one_big_chunk_is_a_bidirectional_forward(model: Any) -> None:
    settings = replace(plain(Steps(((1000.0,),))), chunk_frames=6)
    latents, _ = video(model, WindowSpec(6), settings, always(words(0)), 6)
    noise = settings.noise(0, 0, (1, 6, 16, *SIZE))
    flow = model(noise, 1000.0, model.embed_text(words(0)), model.rope(torch.arange(6), 4, 6), Full())
    close(latents, noise - flow)


@pytest.mark.parametrize(
    ("window", "chunk"), [(WindowSpec(12), 3), (WindowSpec(6, 3), 3), (WindowSpec(5, 1), 1), (WindowSpec(7, 2), 4)]
)
def test_chunks_through_the_cache_are_one_forward_under_the_training_mask(
    model: Any, window: WindowSpec, chunk: int
) -> None:
    """Training equals inference: frames of several levels, each seeing what the window holds."""
    x = torch.randn(1, 12, 16, *SIZE, generator=torch.Generator().manual_seed(0))
    text, cache = model.embed_text(words(0)), new_cache(model, window)
    level = torch.linspace(900, 100, 12)[None]
    parts = [
        model(
            x[:, start : start + chunk],
            level[:, start : start + chunk],
            text,
            model.rope(torch.arange(start, start + chunk), 4, 6),
            cache.at(start, chunk),
        )
        for start in range(0, 12, chunk)
    ]
    memory = dense(block_causal(12, chunk, window), TOKENS)
    close(torch.cat(parts, 1), model(x, level, text, model.rope(torch.arange(12), 4, 6), memory))


@pytest.mark.parametrize("schedule", [DIAGONAL, CLEAN, NOISED])
def test_a_stream_is_a_batch_run_and_samples_do_not_know_of_each_other(model: Any, schedule: Steps) -> None:
    window, text = WindowSpec(7, 2), torch.cat([words(0), words(1)])
    both = list(denoise(model, new_cache(model, window, 2), plain(schedule, (7, 8)), always(text), 12))
    assert [(chunk.index, chunk.start) for chunk in both] == [(0, 0), (1, 3), (2, 6), (3, 9)]
    for sample, seed in enumerate((7, 8)):
        alone = always(text[sample : sample + 1])
        endless = denoise(model, new_cache(model, window), plain(schedule, (seed,)), alone)
        for chunk, other in zip(islice(endless, 4), both, strict=True):
            close(chunk.latents[0], other.latents[sample])


def test_a_seed_gives_the_same_video_and_another_seed_another(model: Any) -> None:
    first, again, other = (video(model, WindowSpec(6), plain(seeds=(s,)), always(words(0)), 6)[0] for s in (7, 7, 8))
    assert torch.equal(first, again)
    assert (first - other).abs().max() > 0.1
    noise, shape = Gaussian((7,), CPU), (1, 100)
    drawn = [noise(chunk, step, shape) for chunk in range(3) for step in range(3)]
    assert len({tuple(one.flatten().tolist()) for one in drawn}) == 9
    assert torch.equal(Gaussian((6, 7), CPU)(1, 2, (2, 100))[1:], noise(1, 2, shape))


def test_a_cache_can_be_used_again(model: Any) -> None:
    cache = new_cache(model, WindowSpec(6, 3, relative=True))
    first, again = (
        torch.cat([chunk.latents for chunk in denoise(model, cache, plain(), always(words(0)), 15)]) for _ in range(2)
    )
    assert torch.equal(first, again)


@pytest.mark.parametrize("schedule", [DIAGONAL, CLEAN, NOISED])
@pytest.mark.parametrize("keep_sink", [True, False])
@pytest.mark.parametrize("relative", [True, False])
def test_a_text_that_changes_while_streaming_is_a_run_that_switches_there(
    model: Any, schedule: Steps, keep_sink: bool, relative: bool
) -> None:
    window, settings = WindowSpec(6, 3, relative), replace(plain(schedule), keep_sink=keep_sink)
    texts = {"now": words(0)}
    session = []
    for chunk in denoise(model, new_cache(model, window), settings, lambda index: texts["now"], 15):
        session.append(chunk)
        if chunk.index == 2:
            texts["now"] = words(1)
    old, new = words(0), words(1)
    _, fresh = video(model, window, settings, lambda index: old if index < 3 else new, 15)
    _, kept = video(model, window, settings, always(old), 15)
    assert [chunk.index for chunk in session if chunk.changed] == [3]
    for ours, theirs, same in zip(session, fresh, kept, strict=True):
        assert torch.equal(ours.latents, theirs.latents)
        assert torch.equal(ours.latents, same.latents) == (ours.index < 3)


def test_recaching_and_keeping_the_sink_are_choices(model: Any) -> None:
    old, new = words(0), words(1)
    results = []
    for recache, keep in ((True, True), (True, False), (False, True), (False, False)):
        settings = replace(plain(CLEAN), recache=recache, keep_sink=keep)
        results.append(video(model, WindowSpec(9, 3), settings, lambda index: old if index < 4 else new, 15)[0])
    before, after = zip(*((latents[:, :12], latents[:, 12:]) for latents in results), strict=True)
    assert all(torch.equal(latents, before[0]) for latents in before)
    assert torch.equal(after[2], after[3])  # nothing is recached: nothing to keep
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (after[one] - after[other]).abs().max() > 1e-4


class Protected:
    """The released rule for a sink that is kept: the whole window is fed, what would fall on the sink is dropped."""

    def __init__(self, cache: Any, sink: int) -> None:
        self.cache, self.sink = cache, sink

    def layer(self, index: int) -> Any:
        self.index = index
        return self

    def attend_latents(self, heads: Any) -> Tensor:
        return joined(self.attend(*heads.split()))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keep = self.sink * TOKENS
        for buffer, new in ((self.cache.k[self.index], k), (self.cache.v[self.index], v)):
            buffer[:, keep:] = new.transpose(1, 2)[:, keep:]
        return Full().attend(q, self.cache.k[self.index].transpose(1, 2), self.cache.v[self.index].transpose(1, 2))


def test_a_kept_sink_is_what_the_released_code_keeps(model: Any) -> None:
    """Its six frames of which three are dropped are our three: the dropped ones were seen by nobody."""
    old, new, window = words(0), words(1), WindowSpec(6, 3)
    ours, theirs = new_cache(model, window), new_cache(model, window)
    chunks = [chunk.latents for chunk in denoise(model, ours, plain(CLEAN), always(old), 9)]
    theirs.k.copy_(ours.k)
    theirs.v.copy_(ours.v)
    clean = torch.cat(chunks, 1)[:, 3:]
    model(clean, 0.0, model.embed_text(new), model.rope(torch.arange(3, 9), 4, 6), Protected(theirs, 3))

    recorder, cache = Recorder(model), new_cache(model, window)
    run = denoise(recorder, cache, plain(CLEAN), lambda index: old if index < 3 else new, 12)
    list(islice(run, 3))
    calls = len(recorder.flows)
    state = cache.k.clone()
    assert torch.equal(state, ours.k)
    memory: list[Tensor] = []

    def watched(*call: Any) -> Any:
        memory.append(cache.k.clone())
        return model(*call)

    recorder.model = watched
    next(run)
    assert len(recorder.flows) == calls + 4  # recaching, two levels, and the clean pass
    assert torch.equal(memory[0], state)  # before recaching
    close(memory[1], theirs.k)  # and after
    assert (theirs.k[:, :, 72:] - state[:, :, 72:]).abs().max() > 1e-3


def test_given_latents_continue_a_video_as_if_it_had_been_made(model: Any) -> None:
    """With a clean cache, what was denoised and what is given are the same to a later chunk."""
    settings, window = plain(CLEAN), WindowSpec(7, 2)
    whole, _ = video(model, window, settings, always(words(0)), 12)
    later = replace(settings, noise=lambda chunk, step, shape: settings.noise(chunk + 2, step, shape))
    rest = list(denoise(model, new_cache(model, window), later, always(words(0)), 12, whole[:, :6]))
    assert [(chunk.index, chunk.start) for chunk in rest] == [(0, 6), (1, 9)]
    close(torch.cat([chunk.latents for chunk in rest], 1), whole[:, 6:])


@pytest.mark.parametrize(("known", "fed"), [(1, [1]), (3, [3]), (4, [1, 3]), (8, [2, 3, 3])])
def test_a_given_beginning_of_any_length_is_fed_clean_in_chunks(model: Any, known: int, fed: list[int]) -> None:
    latents = torch.randn(1, known, 16, *SIZE, generator=torch.Generator().manual_seed(0))
    recorder = Recorder(model)
    chunks = list(denoise(recorder, new_cache(model, WindowSpec(6, 1)), plain(), always(words(0)), known + 3, latents))
    assert [(chunk.index, chunk.start) for chunk in chunks] == [(0, known)]
    assert [flow.shape[1] for flow in recorder.flows] == [*fed, 3, 3, 3]
    start = 0
    for count, x0, flow in zip(fed, recorder.x0s, recorder.flows, strict=False):
        close(x0 + sigma(0.0) * flow, latents[:, start : start + count])
        start += count


def test_a_noised_context_is_noised(model: Any) -> None:
    first, second = (video(model, WindowSpec(6), plain(one), always(words(0)), 6)[0] for one in (CLEAN, NOISED))
    assert torch.equal(first[:, :3], second[:, :3])
    assert (first[:, 3:] - second[:, 3:]).abs().max() > 1e-3


def test_the_text_of_the_first_chunk_is_asked_for_once(model: Any) -> None:
    asked: list[int] = []

    def fresh(index: int) -> Tensor:
        asked.append(index)
        return words(0)  # another tensor each time: a new text each time

    latents = torch.zeros(1, 1, 16, *SIZE)
    chunks = list(denoise(model, new_cache(model, WindowSpec(6)), plain(), fresh, 7, latents))
    assert asked == [0, 1] and [chunk.changed for chunk in chunks] == [False, True]


def test_in_bfloat16_the_video_is_nearly_the_same(model: Any) -> None:
    small = recorded_model().bfloat16()
    cache = WindowCache(small.cache_spec, WindowSpec(6, 3, relative=True), TOKENS, 1, CPU, torch.bfloat16)
    ours = torch.cat([chunk.latents for chunk in denoise(small, cache, plain(), always(words(0)), 12)], 1)
    exact, _ = video(model, WindowSpec(6, 3, relative=True), plain(), always(words(0)), 12)
    assert ours.dtype == torch.float32
    assert (ours - exact).norm() < 0.03 * exact.norm()


def test_gradients_reach_every_weight() -> None:
    model: Any = build(VARIANTS["tiny"].config).requires_grad_(True)
    x = torch.randn(1, 6, 16, *SIZE, generator=torch.Generator().manual_seed(0))
    level = torch.tensor([[900.0] * 3 + [300.0] * 3])
    memory = dense(block_causal(6, 3), TOKENS)
    model(x, level, model.embed_text(words(0)), model.rope(torch.arange(6), 4, 6), memory).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


def test_gradients_reach_the_weights_through_a_chunk_with_a_cached_past() -> None:
    model: Any = build(VARIANTS["tiny"].config).requires_grad_(True)
    x = torch.randn(1, 6, 16, *SIZE, generator=torch.Generator().manual_seed(0))
    cache, text = new_cache(model, WindowSpec(6)), model.embed_text(words(0))
    loss = torch.zeros(())
    for start in (0, 3):
        rope, memory = model.rope(torch.arange(start, start + 3), 4, 6), cache.at(start, 3)
        with torch.no_grad():
            model(x[:, start : start + 3], 1000.0, text, rope, memory)
        loss = loss + model(x[:, start : start + 3], 400.0, text, rope, memory).square().sum()
        with torch.no_grad():
            model(x[:, start : start + 3], 0.0, text, rope, memory)
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


# The teacher


class Straight:
    """A model whose velocity only depends on the prompt: from noise to noise - velocity in a straight line."""

    config = VARIANTS["tiny"].config
    cache_spec = None

    def __init__(self) -> None:
        self.levels: list[float] = []

    def embed_text(self, text: Tensor) -> Any:
        return text.mean()

    def rope(self, *place: Any) -> Any:
        return None

    def __call__(self, x: Tensor, level: float, text: Any, rope: Any, memory: Any) -> Tensor:
        self.levels.append(level)
        return torch.full_like(x, float(text))


def teacher(model: Any, steps: int, guidance: Guidance | None, text: Tensor, noise: Tensor) -> Tensor:
    """All frames as one chunk that is in every call."""
    schedule, whole = Teacher(steps), Whole(model, SIZE, 1, CPU, guidance)
    how = DenoiseSettings(schedule, sigma, lambda *draw: noise, SIZE, noise.shape[1], sees=Sees(whole=True))
    (chunk,) = run(whole, replace(how, solver=lambda: UniPC(schedule)), always(text), noise.shape[1])
    assert chunk.calls == whole.calls == steps * (1 + (guidance is not None))
    return chunk.latents


@pytest.mark.parametrize(("steps", "guidance"), [(50, 5.0), (4, 0.5)])
def test_the_teacher_walks_the_guided_velocity_to_the_end(steps: int, guidance: float) -> None:
    model: Any = Straight()
    noise = torch.randn(1, 3, 16, *SIZE, generator=torch.Generator().manual_seed(0))
    text, negative = torch.full((1, 2, 48), 0.5), torch.full((1, 2, 48), 0.2)
    out = teacher(model, steps, Guidance(guidance, negative), text, noise)
    close(out, noise - (0.2 + guidance * 0.3))
    assert model.levels[0] > 990 and model.levels == sorted(model.levels, reverse=True)


@pytest.mark.parametrize("guidance", [None, 5.0])
def test_the_teacher_is_a_loop_over_bidirectional_forwards_to_the_bit(model: Any, guidance: float | None) -> None:
    noise = torch.randn(1, 3, 16, *SIZE, generator=torch.Generator().manual_seed(0))
    ours = teacher(model, 3, None if guidance is None else Guidance(guidance, words(1)), words(0), noise)
    if guidance is not None:
        assert torch.equal(ours, sample_whole(model, 3, (words(0), words(1)), guidance, noise))
    else:
        close(ours, sample_whole(model, 3, (words(0), words(1)), 1.0, noise))


# Bad input


def test_broken_weights_are_named_with_their_chunk(model: Any) -> None:
    broken = recorded_model()
    broken.blocks[1].ffn[2].bias[0] = torch.nan
    with pytest.raises(ValueError, match=r"chunk 0 \(latent frames 0 to 2\) came out as NaN"):
        next(denoise(broken, new_cache(model, WindowSpec(6)), plain(), always(words(0)), 6))


def test_a_broken_text_is_named_with_the_chunk_where_it_began(model: Any) -> None:
    broken = words(0) * torch.nan
    run = denoise(model, new_cache(model, WindowSpec(6)), plain(), lambda index: words(0) if index < 1 else broken, 6)
    next(run)
    with pytest.raises(ValueError, match=r"chunk 1 \(latent frames 3 to 5\)"):
        next(run)


@pytest.mark.parametrize(
    ("change", "words_of_it"),
    [
        ({"size": (7, 12)}, "latents of 7x12 asked for; both sides must be multiples of 2"),
        ({"size": (8, 14)}, r"have 28 tokens; the cache is for 24"),
        ({"chunk_frames": 5}, "5 latent frames fed at once; a window of 6 with a sink of 2 holds 1 to 4"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_runs(
    model: Any, change: dict[str, Any], words_of_it: str
) -> None:
    recorder = Recorder(model)
    with pytest.raises(ValueError, match=words_of_it):
        next(denoise(recorder, new_cache(model, WindowSpec(6, 2)), replace(plain(), **change), always(words(0)), 15))
    assert not recorder.flows


@pytest.mark.parametrize("frames", [0, 2, 4, -3])
def test_frames_that_are_no_chunks_are_refused(model: Any, frames: int) -> None:
    with pytest.raises(ValueError, match=f"{frames} latent frames asked for; this model makes 3 at a time: 3"):
        next(denoise(model, new_cache(model, WindowSpec(6)), plain(), always(words(0)), frames))


def test_given_latents_of_another_shape_or_broken_ones_are_refused(model: Any) -> None:
    for latents, message in (
        (torch.zeros(1, 1, 16, 8, 10), r"\(1, 1, 16, 8, 10\) given to begin with; \(1, 1, 16, 8, 12\) is needed"),
        (torch.full((1, 1, 16, *SIZE), torch.inf), "the given latents"),
    ):
        with pytest.raises(ValueError, match=message):
            next(denoise(model, new_cache(model, WindowSpec(6)), plain(), always(words(0)), 4, latents))


@pytest.mark.parametrize("shape", [(5, 48), (1, 5, 47), (1, 17, 48), (1, 0, 48)])
def test_embeddings_of_another_shape_are_refused(model: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"given; this model takes \(batch, rows, 48\) with 1 to 16 rows"):
        next(denoise(model, new_cache(model, WindowSpec(6)), plain(), always(torch.zeros(shape)), 6))


def test_more_prompts_than_videos_are_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="3 prompts given for 1 videos"):
        next(denoise(model, new_cache(model, WindowSpec(6)), plain(), always(words(0, 3)), 6))


@pytest.mark.parametrize("shape", [(1, 3, 16, 7, 12), (1, 3, 16, 8, 11), (1, 3, 15, 8, 12), (3, 16, 8, 12)])
def test_latents_that_are_no_patches_are_refused(model: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="height and width multiples of 2"):
        model(torch.zeros(shape), 0.0, model.embed_text(words(0)), model.rope(torch.arange(3), 4, 6), Full())
