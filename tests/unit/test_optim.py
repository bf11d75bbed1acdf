"""Muon against torch's own, matrices that become orthogonal, and the learning rate over a run."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from diagonal.training.optim import Muon, matrices_and_rest, orthogonal, rate

SHAPES = [(24, 24), (48, 16), (16, 48), (24, 24), (16, 48), (7, 5)]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def steps(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], count: int = 4) -> list[Tensor]:
    """Feed the same random gradients to any optimizer."""
    for step in range(count):
        for index, parameter in enumerate(parameters):
            parameter.grad = random(*parameter.shape, seed=100 * step + index)
        optimizer.step()
    return [parameter.detach().clone() for parameter in parameters]


def fresh() -> list[nn.Parameter]:
    return [nn.Parameter(random(*shape, seed=index) * 0.1) for index, shape in enumerate(SHAPES)]


# Orthogonal matrices


@pytest.mark.parametrize("shape", [(3, 64, 16), (3, 16, 64), (3, 32, 32)], ids=["tall", "wide", "square"])
def test_singular_values_come_near_one(shape):
    made = orthogonal(random(*shape)).float()
    assert made.shape == shape
    values = torch.linalg.svdvals(made)
    assert values.max() < 1.35
    # A square random matrix has singular values near zero, which five steps lift only part of the way.
    assert (values > (0.6 if shape[1] != shape[2] else 0.2)).all()
    assert 0.75 < values.mean() < 1.15


def test_many_steps_of_a_gentler_matrix_keep_its_singular_vectors():
    """The result lies along U V^T: the inner product of both is nearly the sum of the singular values."""
    matrix = random(2, 24, 12)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    made = orthogonal(matrix).float()
    torch.testing.assert_close(u.mT @ made @ vh.mT, torch.eye(12).expand(2, -1, -1), atol=0.35, rtol=0)


def test_the_scale_of_a_matrix_does_not_matter():
    matrix = random(1, 16, 8)
    torch.testing.assert_close(orthogonal(matrix * 1000), orthogonal(matrix), atol=0.03, rtol=0.03)


def test_a_matrix_in_a_stack_is_made_orthogonal_as_if_alone():
    stack = random(4, 20, 12) * torch.tensor([1.0, 0.01, 100.0, 3.0])[:, None, None]
    together = orthogonal(stack).float()
    for index in range(4):
        alone = orthogonal(stack[index : index + 1])[0].float()
        torch.testing.assert_close(together[index], alone, atol=0.02, rtol=0.02)


def test_a_zero_update_stays_zero():
    assert (orthogonal(torch.zeros(2, 8, 4)) == 0).all()


# Muon


@pytest.mark.parametrize("momentum", [0.95, 0.5])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("exact", [True, False], ids=["float32", "bfloat16"])
def test_muon_steps_are_those_of_torch(monkeypatch, momentum, weight_decay, exact):
    """bfloat16 has eight bits and the two add up in different orders; in float32 they are the same."""
    if exact:
        monkeypatch.setattr(Tensor, "bfloat16", lambda tensor: tensor.float().clone())
    ours, theirs = fresh(), fresh()
    settings = {"lr": 0.02, "momentum": momentum, "weight_decay": weight_decay}
    mine = steps(Muon(ours, **settings), ours)
    reference = steps(torch.optim.Muon(theirs, **settings, adjust_lr_fn="original"), theirs)
    for made, expected, start in zip(mine, reference, fresh(), strict=True):
        assert (made - expected).norm() < (1e-4 if exact else 0.05) * (expected - start).norm()


def one_by_one(parameter: nn.Parameter, momentum: Tensor, settings: dict[str, float]) -> None:
    """Muon of one weight in float32, written out."""
    lr, share = settings["lr"], settings["momentum"]
    assert parameter.grad is not None
    momentum.lerp_(parameter.grad, 1 - share)
    x = parameter.grad.lerp(momentum, share).flatten(1)
    rows, cols = x.shape
    x = x.T if rows > cols else x
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    x = x.T if rows > cols else x
    parameter.data.mul_(1 - lr * settings["weight_decay"])
    parameter.data.sub_(lr * max(1.0, rows / cols) ** 0.5 * x.reshape(parameter.shape))


def test_stacked_matrices_and_convolutions_go_where_each_would_alone(monkeypatch):
    """Matrices of one shape are one stack, whatever they were flattened from, and so are sums of what each adds up."""
    monkeypatch.setattr(Tensor, "bfloat16", lambda tensor: tensor.float().clone())
    shapes = [*SHAPES, (24, 8, 3), (24, 24, 1, 1), (16, 6, 2, 2, 2), (48, 4, 2, 2), (8, 2, 3, 1, 1)]
    settings = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.1}
    ours, alone = ([nn.Parameter(random(*shape, seed=i) * 0.1) for i, shape in enumerate(shapes)] for _ in range(2))
    optimizer, buffers = Muon(ours, **settings), [torch.zeros(shape) for shape in shapes]
    for step in range(5):
        for index, pair in enumerate(zip(ours, alone, strict=True)):
            for parameter in pair:
                parameter.grad = random(*parameter.shape, seed=100 * step + index)
        if step == 3:  # gone on from a state as a checkpoint holds it: one tensor of a weight's shape each
            saved = optimizer.state_dict()
            forms = [{name: tuple(one.shape) for name, one in saved["state"][i].items()} for i in range(len(shapes))]
            assert forms == [{"momentum": shape} for shape in shapes]
            optimizer = Muon(ours, **settings)
            optimizer.load_state_dict(saved)
        optimizer.step()
        for parameter, buffer in zip(alone, buffers, strict=True):
            one_by_one(parameter, buffer, settings)
    for made, expected in zip(ours, alone, strict=True):
        assert (made - expected).norm() < 1e-6 * expected.norm()


def test_equal_shapes_that_are_stacked_give_what_each_gives_alone():
    together = fresh()
    made = steps(Muon(together, lr=0.02), together)
    alone = fresh()
    optimizers = [Muon([parameter], lr=0.02) for parameter in alone]
    for step in range(4):
        for index, parameter in enumerate(alone):
            parameter.grad = random(*parameter.shape, seed=100 * step + index)
            optimizers[index].step()
    for one, other in zip(made, alone, strict=True):
        torch.testing.assert_close(one, other.detach(), atol=1e-3, rtol=0)


def test_a_matrix_without_a_gradient_stays_where_it_is():
    moved, still = fresh()[:2]
    kept = still.detach().clone()
    optimizer = Muon([moved, still], lr=0.02)
    moved.grad = torch.ones_like(moved)
    optimizer.step()
    assert torch.equal(still.detach(), kept)
    assert not torch.equal(moved.detach(), fresh()[0].detach())


def test_weight_decay_shrinks_by_the_plain_learning_rate():
    """A zero gradient leaves the decay alone: the shape's own scale must not enter it."""
    tall = nn.Parameter(torch.ones(32, 2))
    tall.grad = torch.zeros_like(tall)
    Muon([tall], lr=0.1, weight_decay=0.5).step()
    torch.testing.assert_close(tall.detach(), torch.full((32, 2), 0.95))


# Which parameters are matrices


def test_matrices_inside_the_blocks_are_apart_from_all_else():
    module = nn.ModuleDict(
        {
            "embed": nn.Embedding(5, 4),
            "blocks": nn.ModuleList([nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 6, bias=False)]),
            "head": nn.Linear(4, 5, bias=False),
        }
    )
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    matrices, rest = matrices_and_rest(module, "blocks")
    assert [names[id(one)] for one in matrices] == ["blocks.0.weight", "blocks.2.weight"]
    assert {names[id(one)] for one in rest} == {
        *("embed.weight", "head.weight", "blocks.0.bias", "blocks.1.weight", "blocks.1.bias"),
    }


# The learning rate


def test_the_learning_rate_climbs_in_equal_steps_and_then_stays():
    assert [rate(step, 100, 4, 0.5) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rate(49, 100, 4, 0.5) == 1.0


def test_the_learning_rate_falls_as_a_cosine_to_almost_nothing():
    assert rate(50, 100, 4, 0.5) == 1.0
    assert rate(75, 100, 4, 0.5) == pytest.approx(0.5)
    assert rate(99, 100, 4, 0.5) == pytest.approx(0.5 * (1 - 0.99802673), rel=1e-4)
    assert rate(100, 100, 4, 0.5) == pytest.approx(0.0, abs=1e-12)


def test_no_warm_up_starts_at_the_peak():
    assert rate(0, 10, 0, 1.0) == 1.0


def test_a_decay_from_the_end_is_no_decay():
    assert all(rate(step, 20, 5, 1.0) == 1.0 for step in range(5, 20))


@given(st.integers(1, 300), st.integers(0, 60), st.floats(0, 1))
def test_the_learning_rate_is_positive_at_most_the_peak_and_falls_only_after_the_warm_up(steps, warmup, decay_from):
    rates = [rate(step, steps, warmup, decay_from) for step in range(steps)]
    assert all(0 < value <= 1 for value in rates)
    climbing, falling = rates[:warmup], rates[warmup:]
    assert climbing == sorted(climbing)
    assert falling == sorted(falling, reverse=True)
