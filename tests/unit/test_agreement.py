"""Agreement of two models: on logits that are made to differ, and of quantised worlds with their own weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from diagonal.checkpoints.quantize import quantize
from diagonal.evaluation.speed.agreement import DEFINITION, agreement
from diagonal.generation.load import load
from diagonal.generation.world import World


@pytest.fixture(scope="module")
def world() -> World:
    return load("doom/tiny")


class Fixed:
    """A model with the same logits everywhere, but `other` ones at some inputs. Keeps what it was fed."""

    def __init__(self, logits_V: Tensor, other_V: Tensor, where: slice = slice(0)) -> None:
        self.logits_V, self.other_V, self.where = logits_V, other_V, where
        self.fed = torch.empty(0)

    def __call__(self, tokens_BS: Tensor, slots_S: Tensor, memory: object, keep: Tensor) -> Tensor:
        self.fed = tokens_BS
        logits = self.logits_V.repeat(*tokens_BS.shape, 1)
        logits[:, self.where] = self.other_V
        return logits[:, keep]


def _running(world: World, runner: object) -> World:
    other = world.at(*world.size)
    other.runner = runner
    return other


def test_a_model_agrees_with_itself(world: World) -> None:
    found = agreement(world, world)
    # 512 inputs; each frame of 192 cells is followed by one action, whose token is given, not chosen.
    assert found.positions == 512 - 2 and found.greedy == 1 and found.kl == 0
    assert set(found.numbers()) <= {word.strip(":;,.") for word in DEFINITION.split()}


def test_shares_and_divergences_are_counted_by_hand(world: World) -> None:
    flat = torch.zeros(72)
    first, second = flat.clone(), flat.clone()
    first[3], second[5] = math.log(3), math.log(3)
    first[70] = second[71] = 50.0  # ids of actions, which no cell may have
    one, two = Fixed(first, first), Fixed(first, second, slice(0, 40))
    found = agreement(_running(world, one), _running(world, two), most=100)
    assert found.positions == 100 and found.greedy == pytest.approx(0.6)
    # 64 ids: one with three times the weight of the others, each of which has 1/66.
    assert found.kl == pytest.approx(0.4 * (3 / 66 - 1 / 66) * math.log(3), rel=1e-4)
    assert torch.equal(one.fed, two.fed) and one.fed.shape == (1, 100)


def test_given_videos_are_fed_with_their_actions(world: World) -> None:
    flat = torch.zeros(72)
    model = Fixed(flat, flat)
    video = torch.randint(64, (2, 2, 12, 16))
    found = agreement(_running(world, model), _running(world, model), video, most=1000)
    assert model.fed.shape == (2, 2 * 193) and found.positions == 2 * (2 * 192 - 1 + 1)
    assert torch.equal(model.fed[:, 193:-1], video[:, 1].flatten(1))
    assert (model.fed[:, [192, 385]] >= 64).all()


def test_prefixes_count_where_a_cell_comes_next() -> None:
    world = load("cosmos/tiny-text")
    found = agreement(world, world, torch.zeros(1, 4, 6, dtype=torch.long))
    assert found.positions == 25  # after the start token too, and of the next frame the first


@pytest.mark.parametrize("name", ["doom/tiny", "wham/tiny", "cosmos/tiny"])
@pytest.mark.parametrize(("kind", "least", "kl"), [("int8", 0.9, 1e-3), ("fp8", 0.9, 2e-3)])
def test_quantised_weights_agree_nearly_always(name: str, kind: str, least: float, kl: float) -> None:
    reference, other = load(name), load(name).quantize(kind)
    found = agreement(reference, other)
    assert least < found.greedy <= 1 and 0 < found.kl < kl
    coarse = load(name)
    for parameter in coarse.model.parameters():
        parameter.mul_(8).round_().div_(8)
    worse = agreement(reference, coarse)
    assert worse.greedy < found.greedy and worse.kl > found.kl


def test_what_was_shipped_as_int8_is_nearly_unchanged_by_it() -> None:
    """The embedded world's files hold int8 rows already: only the rounding of sums differs."""
    reference = load("doom")
    other = load("doom")
    quantize(other.model, "int8")
    found = agreement(reference, other, most=200)
    assert found.greedy == 1 and found.kl < 1e-6


def test_what_cannot_be_compared_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match="doom/tiny and mcar/tiny have other sizes"):
        agreement(world, load("mcar/tiny"))
    with pytest.raises(ValueError, match="most=1 positions given; at least 2"):
        agreement(world, world, most=1)
