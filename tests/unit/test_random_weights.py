"""Random weights: as ever in float32 on a CPU, and drawn in place otherwise."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from diagonal.catalog.names import find
from diagonal.generation.load import load
from tests.tiny import TINY


@pytest.mark.parametrize("name", TINY)
def test_float32_on_a_cpu_is_what_the_modules_make_of_the_seed(name: str) -> None:
    world = load(name, "random", seed=3)
    torch.manual_seed(3)
    model = find("models", name).config.build()
    for ours, theirs in zip(world.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", TINY)
def test_another_dtype_is_drawn_by_the_seed_at_unit_scale(name: str) -> None:
    worlds = [load(name, "random", dtype=torch.bfloat16, seed=seed) for seed in (3, 3, 4)]
    states = [world.model.state_dict() for world in worlds]
    for key, value in states[0].items():
        assert value.dtype == torch.bfloat16 and value.device.type == "cpu"
        assert torch.equal(value, states[1][key])
        if value.ndim == 1:
            assert set(value.tolist()) == {0.0 if key.endswith("bias") else 1.0}
        else:
            assert not torch.equal(value, states[2][key])
            assert float(value.float().square().sum(1).mean()) == pytest.approx(1, abs=0.1)
    assert not any(p.requires_grad for p in worlds[0].model.parameters()) and not worlds[0].model.training
    assert worlds[0].runner is worlds[0].model
    tokens = {p.dtype for p in worlds[0].tokenizer.parameters()}
    assert tokens == {torch.bfloat16}


def test_a_model_is_never_held_in_float32_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules' own initialisation sees only tensors without data."""
    seen: list[str] = []
    monkeypatch.setattr(nn.Embedding, "reset_parameters", lambda table: seen.append(table.weight.device.type))
    load("wham/tiny", "random", dtype=torch.bfloat16)
    assert seen[:2] == ["meta", "meta"]  # the tokenizer, which comes later, has tables too


def test_the_same_seed_draws_the_same_whatever_was_drawn_before() -> None:
    first = load("mcar/tiny", dtype=torch.bfloat16)
    state = torch.random.get_rng_state()
    torch.rand(5)
    after = torch.random.get_rng_state()
    second = load("mcar/tiny", dtype=torch.bfloat16)
    assert torch.equal(first.model.embed.weight, second.model.embed.weight)
    assert torch.equal(torch.random.get_rng_state(), after) and not torch.equal(state, after)


def test_logits_of_a_drawn_model_are_neither_flat_nor_wild() -> None:
    world = load("wham/tiny", dtype=torch.bfloat16)
    clip = world.generate(torch.zeros(1, 9, 15, dtype=torch.long), frames=1)
    assert clip.tokens.unique().numel() > 50
