"""What a student is trained on is what inference runs, and its gradient is that of a loop that knows no engine."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal.engine.attention import Dense, Plain
from diagonal.engine.chunks.cache import WindowSpec
from diagonal.engine.chunks.denoise import DenoiseSettings, Gaussian, Gradient, denoise
from diagonal.engine.chunks.masks import block_causal
from diagonal.planning.denoising import parse
from diagonal.planning.denoising.noise import FlowTable
from diagonal.training.latents.diffusion import recompute
from diagonal.training.latents.distill import Roll, rollout
from diagonal.training.latents.methods import Distillation
from tests.small_diffusion import CONFIG, CPU, SIZE, TOKENS, cache, method, student, texts

SCHEDULES = ["4322222", "5432", "even:steps=4", "even:steps=2,context=t100", "explicit:lists=1000-500/1000"]
LAST = 1 - 1e-9


def roll(frames: int, exit_at: float, switch: int | None = None, batch: int = 2) -> Roll:
    noise = Gaussian(range(7, 7 + batch), CPU)
    return Roll(frames, exit_at, switch, texts(batch, 0), texts(batch, 1), noise, SIZE)


def of(schedule: str, window: WindowSpec, chunk: int = 1, **changes: Any) -> Distillation:
    base = method("diagonal-distillation-prompts", **changes)
    preset = replace(
        base.preset,
        schedule=parse(schedule),
        chunk_frames=chunk,
        window_frames=window.frames,
        sink_frames=window.sink,
        relative_rope=window.relative,
    )
    return replace(base, preset=preset)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("window", [WindowSpec(6), WindowSpec(4, 1), WindowSpec(4, 1, relative=True)])
def test_a_rollout_to_the_last_step_is_inference_to_the_bit(schedule: str, window: WindowSpec) -> None:
    model, how, what = student(), of(schedule, window), roll(6, LAST)
    made = rollout(model, cache(model, 2, window), how, what)
    settings = DenoiseSettings(how.preset.schedule, FlowTable(5.0).sigma, what.noise, SIZE, 1)
    chunks = denoise(model, cache(model, 2, window), settings, lambda index: what.text_BLC, 6)
    assert made.requires_grad
    assert torch.equal(made, torch.cat([chunk.latents for chunk in chunks], 1))


def test_a_switch_and_a_past_without_gradient_are_inference_too() -> None:
    window = WindowSpec(4, 1)
    model, how, what = student(), of("4322222", window, scored=2, longest=7, switch=0.5), roll(7, LAST, switch=3)
    made = rollout(model, cache(model, 2, window), how, what)
    settings = DenoiseSettings(how.preset.schedule, FlowTable(5.0).sigma, what.noise, SIZE, 1)
    text = [what.text_BLC, what.later_BLC]
    chunks = list(denoise(model, cache(model, 2, window), settings, lambda index: text[index >= 3], 7))
    assert torch.equal(made, torch.cat([chunk.latents for chunk in chunks], 1))
    assert [chunk.index for chunk in chunks if chunk.changed] == [3]
    early = torch.autograd.grad(made[:, :5].sum(), list(model.parameters()), retain_graph=True, allow_unused=True)
    late = torch.autograd.grad(made[:, 5:].sum(), list(model.parameters()))
    assert not any(one is not None and one.any() for one in early) and all(one.any() for one in late)


# A loop that knows neither engine nor cache


def naive(model: Any, how: Distillation, what: Roll, frames: int) -> Tensor:
    """Chunk by chunk; the past goes through the model again, without gradient, with every call. No window, so that the
    keys of earlier chunks are those of the inputs that the cache was last written with."""
    size, schedule, table = how.preset.chunk_frames or 0, how.preset.schedule, FlowTable(how.preset.shift)
    text = model.embed_text(what.text_BLC)
    past: list[tuple[Tensor, float]] = []  # what each chunk was last fed as, and at which level
    outputs = []
    for chunk in range(frames // size):
        shape, levels = (len(what.text_BLC), size, CONFIG.channels, *SIZE), schedule.levels(chunk)
        stop = int(what.exit * len(levels))
        clean = what.noise(chunk, 0, shape)
        for step in range(stop + 1):
            share = table.sigma(levels[step])
            x = (1 - share) * clean.detach() + share * what.noise(chunk, step, shape) if step else clean
            with torch.set_grad_enabled(step == stop):
                clean = x - share * after(model, text, past, x, levels[step], size)
        outputs.append(clean)
        context = schedule.context_level(chunk)
        if context is None and stop == len(levels) - 1:
            past.append((x, levels[-1]))
            continue
        level = levels[-1] if context is None else context
        share = table.sigma(level)
        fed = clean.detach()
        if level:
            fed = (1 - share) * fed + share * what.noise(chunk, len(levels), shape)
        past.append((fed, level))
    return torch.cat(outputs, 1)


class Fixed(Plain):
    """Attention of the newest chunk to itself and to what an earlier call, without gradient, left of the past."""

    def __init__(self, frames: int, size: int, record: list[tuple[Tensor, Tensor]], writes: bool) -> None:
        self.mask = Dense(block_causal(frames, size).repeat_interleave(TOKENS, 0).repeat_interleave(TOKENS, 1))
        self.record, self.writes = record, writes

    def layer(self, index: int) -> Any:
        self.index = index
        return self

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.writes:
            self.record.append((k.detach(), v.detach()))
            return self.mask.attend(q, k, v)
        past_k, past_v = self.record[self.index]
        both_k, both_v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        return torch.nn.functional.scaled_dot_product_attention(q, both_k, both_v)


def after(model: Any, text: Any, past: list[tuple[Tensor, float]], x: Tensor, level: float, size: int) -> Tensor:
    """The velocity of a chunk after its past."""
    record: list[tuple[Tensor, Tensor]] = []
    before = len(past) * size
    if past:
        with torch.no_grad():
            levels = torch.tensor([[one for _, one in past for _ in range(size)]])
            fed = torch.cat([one for one, _ in past], 1)
            memory = Fixed(before, size, record, writes=True)
            model(fed, levels, text, model.rope(torch.arange(before), 2, 3), memory)
    else:
        record = [(torch.zeros(len(x), 2, 0, 12),) * 2 for _ in range(CONFIG.layers)]
    places = model.rope(torch.arange(before, before + size), 2, 3)
    out: Tensor = model(x, torch.tensor([[level]]), text, places, Fixed(0, size, record, writes=False))
    return out


@pytest.mark.parametrize("exit_at", [0.0, 0.3, 0.6, LAST])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_outputs_and_gradients_are_those_of_a_naive_loop(schedule: str, exit_at: float) -> None:
    how, what = of(schedule, WindowSpec(6), chunk=2), roll(6, exit_at)
    target = torch.randn(2, 6, 2, *SIZE, generator=torch.Generator().manual_seed(9))
    found = []
    for way in (rollout, None):
        model = student()
        made = rollout(model, cache(model, 2, WindowSpec(6)), how, what) if way else naive(model, how, what, 6)
        ((made - target) ** 2).sum().backward()
        found.append((made.detach(), {name: one.grad for name, one in model.named_parameters()}))
    (ours, our_grads), (theirs, their_grads) = found
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    for name, grad in their_grads.items():
        assert our_grads[name] is not None and our_grads[name].any(), name
        torch.testing.assert_close(our_grads[name], grad, atol=2e-4, rtol=1e-3, msg=name)


@pytest.mark.parametrize("window", [WindowSpec(6), WindowSpec(4, 1), WindowSpec(4, 1, relative=True)])
@pytest.mark.parametrize("exit_at", [0.0, 0.6, LAST])
def test_computing_activations_again_changes_no_gradient(window: WindowSpec, exit_at: float) -> None:
    """Even where the window has rolled on since."""
    found = []
    for again in (False, True):
        model, how = student(), of("4322222", window, recompute=again)
        if again:
            recompute(model)
        made = rollout(model, cache(model, 2, window), how, roll(6, exit_at))
        made.square().sum().backward()
        found.append([made.detach(), *[one.grad for one in model.parameters()]])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


class Watched:
    """A model that notes the level of every call, and whether it carries gradient."""

    def __init__(self) -> None:
        self.model = student()
        self.config, self.cache_spec = self.model.config, self.model.cache_spec
        self.embed_text, self.rope, self.rotate = self.model.embed_text, self.model.rope, self.model.rotate
        self.calls: list[tuple[float, bool]] = []

    def __call__(self, x: Tensor, level: float, *rest: Any) -> Tensor:
        self.calls.append((level, torch.is_grad_enabled()))
        out: Tensor = self.model(x, level, *rest)
        return out


def taught(schedule: str, exit_at: float) -> list[float]:
    """The level of the call of each of three chunks that carries gradient."""
    watched: Any = Watched()
    rollout(watched, cache(watched, 1, WindowSpec(3)), of(schedule, WindowSpec(3), scored=3), roll(3, exit_at, batch=1))
    return [level for level, carries in watched.calls if carries]


def test_every_step_of_a_chunk_is_taught_as_often_as_its_others() -> None:
    every = [taught("4322222", (index + 0.5) / 12) for index in range(12)]
    first, second, third = (Counter(levels) for levels in zip(*every, strict=True))
    assert first == {1000: 3, 933: 3, 733: 3, 357: 3}
    assert second == {1000: 4, 933: 4, 357: 4}
    assert sorted(third.values()) == [6, 6]


def test_chunks_with_as_many_steps_are_taught_at_the_same_one() -> None:
    found = [taught("even:steps=4", exit_at) for exit_at in (0.1, 0.3, 0.6, 0.9)]
    assert found == [[level] * 3 for level in parse("even:steps=4").levels(0)]


@pytest.mark.parametrize("step", [-1, 4, 9])
def test_an_exit_that_a_chunk_does_not_have_is_refused(step: int) -> None:
    model, what = student(), roll(6, 0)
    settings = DenoiseSettings(
        parse("4"), FlowTable(5.0).sigma, what.noise, SIZE, 1, gradient=Gradient(lambda chunk: step)
    )
    with pytest.raises(ValueError, match=f"chunk 0 should end at step {step}; it has 4"):
        list(denoise(model, cache(model, 2, WindowSpec(6)), settings, lambda index: what.text_BLC, 6))


def test_without_gradient_wanted_there_is_none() -> None:
    model = student()
    with torch.no_grad():
        made = rollout(model, cache(model, 2, WindowSpec(4, 1)), of("4322222", WindowSpec(4, 1)), roll(6, 0.5))
    assert not made.requires_grad and not made.is_inference()
