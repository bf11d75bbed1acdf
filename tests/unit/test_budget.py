"""What distillation is predicted to take: the sizes and operations of Wan2.1-1.3B that are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from diagonal.catalog.names import find
from diagonal.engine.attention import Full
from diagonal.engine.chunks.bidirectional import velocity
from diagonal.training import budget
from diagonal.training.budget import StepCost, predict, spread, state_bytes
from diagonal.training.latents.methods import METHODS, Distillation
from diagonal.training.loop import EMA
from tests.small_diffusion import student
from tests.unit.test_parallel import task

TOKENS = 1560


def method(name: str = "diagonal-distillation-prompts", **changes: Any) -> Distillation:
    return replace(METHODS[name], recompute=True, **changes)


def test_the_operations_of_a_forward_are_those_of_the_model() -> None:
    variant = find("models", "wan/tiny")
    with torch.device("meta"):
        model: Any = variant.config.build()
        text = model.embed_text(torch.zeros(1, 16, 48))
        x = torch.zeros(1, 6, 16, 8, 12)
    with FlopCounterMode(display=False) as counter:
        velocity(model, x, torch.zeros(1, 1, device="meta"), text, Full())
    sizes = budget._Sizes.of(model, variant.config.text_length)
    # The embeddings and the head of so small a model still count.
    assert sizes.forward(6 * 24, 6 * 24) == pytest.approx(counter.get_total_flops(), rel=0.15)
    assert sizes.forward(6 * 24, 6 * 24) < counter.get_total_flops()


def test_the_numbers_of_wan() -> None:
    found = predict(find("models", "wan/1.3b"), method(), TOKENS)
    assert (found.parameters, found.tokens) == (1_418_996_800, 32_760)
    with torch.device("meta"):
        sizes = budget._Sizes.of(find("models", "wan/1.3b").config.build(), 512)
    chunk = 3 * TOKENS
    assert sizes.forward(chunk, chunk) == pytest.approx((11.71 + 4.48) * 1e12, rel=1e-3)  # of the first chunk
    assert sizes.forward(chunk, 7 * chunk) == pytest.approx((11.71 + 28.70) * 1e12, rel=1e-3)
    # 12 frames of the window, and 3 + 6 + 9 + 4 * 12 that calls with gradient saw, of 287.5 MB each.
    assert found.cache_gb == pytest.approx((12 + 66) * 0.28754, rel=1e-4)
    assert found.state_gb == pytest.approx(1.418996800 * 38)
    assert found.steps["generator"].peak_gb == found.state_gb + found.activations_gb + found.cache_gb


def test_what_makes_it_more() -> None:
    variant = find("models", "wan/1.3b")
    plain = predict(variant, method(), TOKENS)
    parts = predict(variant, method(), TOKENS, part=3)
    assert parts.activations_gb == pytest.approx(3 * plain.activations_gb)
    assert parts.steps["critic"].peak_gb > plain.steps["critic"].peak_gb
    assert parts.steps["critic"].sample_s == plain.steps["critic"].sample_s
    kept = predict(variant, replace(method(), recompute=False), TOKENS)
    assert kept.activations_gb > 5 * plain.activations_gb and kept.generator_tflop < plain.generator_tflop
    longer = predict(variant, method(longest=42), TOKENS)
    assert longer.cache_gb > plain.cache_gb and longer.critic_tflop > plain.critic_tflop
    uniform = predict(variant, method("self-forcing"), TOKENS)
    assert uniform.generator_tflop > plain.generator_tflop
    assert predict(variant, method("causvid"), TOKENS).cache_gb == 0
    assert predict(variant, method(), TOKENS, tflops=600).steps["critic"].sample_s == pytest.approx(
        plain.steps["critic"].sample_s / 2
    )


def test_a_batch_on_several_gpus() -> None:
    steps = {"generator": StepCost(6.0, 0.8, 90.0), "critic": StepCost(5.0, 0.4, 80.0)}
    one, eight = (spread(steps, 40 * 10**9, 5, batch=64, gpus=gpus) for gpus in (1, 8))
    assert one.turn_s == pytest.approx(64 * 6 + 0.8 + 5 * (64 * 5 + 0.4)) and one.peak_gb == 90
    assert eight.turn_s == pytest.approx(8 * 6 + 0.1 + 5 * (8 * 5 + 0.05))
    assert (eight.state_gb, eight.peak_gb) == (5, 55)


def test_the_state_is_that_of_a_task() -> None:
    """Bytes of all tensors that live between two steps of a real task, its EMA and its gradient counted."""
    one = task()
    ema = EMA(one.module, 0.9)
    for step in (0, 1):
        loss, _ = one.loss(step)
        loss.backward()
        for optimizer in one.optimizers:
            optimizer.step()
        if step == 0:
            one.module.zero_grad(set_to_none=True)
    moments = [value for optimizer in one.optimizers for state in optimizer.state.values() for value in state.values()]
    weights = [*one.module.parameters(), *one.teacher.parameters()]
    gradients = [parameter.grad for parameter in one.module.parameters() if parameter.grad is not None]
    held = sum(value.nbytes for value in [*weights, *gradients, *ema.weights, *moments] if value.ndim)
    parameters = sum(parameter.numel() for parameter in student().parameters())
    assert held == pytest.approx(state_bytes(parameters, teacher=4), rel=1e-3)
