"""What a model attends to: weights against those computed by hand, and where they fall under a schedule."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diagonal.engine.attention import Causal
from diagonal.engine.heads import Heads
from diagonal.engine.tokens.recorder import Recorder, mean_weights
from diagonal.evaluation import attention
from diagonal.evaluation.attention import ABOVE, BEFORE, LEFT, PLACES, SCHEDULED
from diagonal.generation.load import load
from diagonal.media import draw
from diagonal.planning.grid import Grid, Layout
from diagonal.planning.plan import Order
from tests.tiny import TINY, build, tiny_config

LAYOUTS = [Layout(Grid(3, 3, 4), prefix=2), Layout(Grid(3, 3, 4), suffix=1), Layout(Grid(3, 2, 5), 1, 2)]
LAYOUTS.append(Layout(Grid(3, 3, 5), prefix=1, row_end=True))
ORDERS = ["raster", "diagonal:k=1", "diagonal:k=2,d=3", "window:s=2", "lossless"]


class ByHand(Causal):
    """Attention written out: every head its own matrix, normalised row by row, multiplied with the values."""

    def __init__(self, kept: list[Tensor]) -> None:
        object.__setattr__(self, "kept", kept)

    kept: list[Tensor]

    def attend_heads(self, heads: Heads) -> Tensor:
        q, k, v = heads.split()
        batch, count, size, width = q.shape
        out, weights = torch.zeros(batch, size, count, width), torch.zeros(batch, count, size, size)
        for head in range(count):
            own = head * k.shape[1] // count
            for row in range(size):
                scores = torch.stack([q[:, head, row] @ k[0, own, past] / math.sqrt(width) for past in range(row + 1)])
                exps = torch.exp(scores[:, 0] - scores.max())
                weights[0, head, row, : row + 1] = exps / exps.sum()
                out[0, row, head] = weights[0, head, row, : row + 1] @ v[0, own, : row + 1]
        self.kept.append(weights[0])
        return out.flatten(2)


@pytest.mark.parametrize("name", TINY)
def test_recorded_weights_are_those_computed_by_hand_and_change_nothing(name: str) -> None:
    config = tiny_config(name)
    model: Any = build(config)
    size, queries = 17, torch.tensor([3, 16, 9])
    tokens = torch.randint(config.codebook, (1, size), generator=torch.Generator().manual_seed(0))
    recorder, by_hand = Recorder(queries), ByHand([])
    recorded, plain, hand = (model(tokens, torch.arange(size), memory) for memory in (recorder, Causal(), by_hand))
    assert torch.equal(recorded, plain)
    torch.testing.assert_close(plain, hand, atol=1e-4, rtol=1e-4)
    assert len(recorder.weights) == len(by_hand.kept) == config.layers
    for ours, theirs in zip(recorder.weights, by_hand.kept, strict=True):
        torch.testing.assert_close(ours[0], theirs.mean(0)[queries], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(ours.sum(-1), torch.ones(1, len(queries)))
        assert not ours[0, 0, 4:].any()  # input 3 sees nothing behind itself


def test_weights_of_a_batch_are_those_of_its_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, heads, 5, 8, generator=generator) for heads in (4, 2))
    seen = torch.ones(5, 5, dtype=torch.bool).tril()
    both = mean_weights(q, k, seen)
    for sample in range(2):
        one = mean_weights(q[sample : sample + 1], k[sample : sample + 1], seen)
        torch.testing.assert_close(both[sample], one[0])


def test_a_sparse_model_attends_to_nothing_that_it_does_not_see() -> None:
    world = load("videogpt/tiny-sparse")
    config = world.model.config
    layout = world.layout(config.frames)
    size = layout.length - 1
    tokens = torch.randint(config.codebook, (1, size), generator=torch.Generator().manual_seed(0))
    tokens[:, : layout.prefix] = torch.tensor(config.prefix_ids)
    recorder, slots = Recorder(torch.arange(size)), torch.arange(size)
    with torch.inference_mode():
        recorded, plain = (world.model(tokens, slots, memory) for memory in (recorder, Causal()))
    assert torch.equal(recorded, plain) and len(recorder.weights) == config.layers
    hidden = ~(world.model._sees(slots[:, None], slots) & (slots <= slots[:, None]))
    assert hidden.tril().any()
    for weights in recorder.weights:
        assert not weights[0][hidden].any()
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, size))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("frame", [0, 2])
def test_every_visible_position_is_in_exactly_one_place(layout: Layout, frame: int) -> None:
    where, cells = attention.places(layout, frame), attention.targets(layout, frame)
    assert list(where) == list(PLACES)
    total = sum(mask.astype(int) for mask in where.values())
    assert np.array_equal(total, np.arange(int(cells[-1])) < cells[:, None])


def test_the_named_neighbours_are_where_they_should_be() -> None:
    layout = Layout(Grid(3, 3, 4), prefix=1, suffix=1)
    where, cells, position = attention.places(layout, 2), attention.targets(layout, 2), layout.positions()
    row = cells.tolist().index(position[2, 1, 2])
    named = {name: np.flatnonzero(mask[row]).tolist() for name, mask in where.items()}
    assert named[LEFT] == [position[2, 1, 1]] and named[ABOVE] == [position[2, 0, 2]]
    assert named[BEFORE] == [position[1, 1, 2]] and named["start"] == [0]
    assert named["beside above"] == [position[2, 0, 1], position[2, 0, 3]]
    around = set(position[1, :, 1:].ravel().tolist()) - {position[1, 1, 2]}
    assert set(named["around, frame before"]) == around
    assert named["actions"] == [layout.after(0).start, layout.after(1).start]
    assert named["earlier frames"] == position[0].ravel().tolist()
    first = cells.tolist().index(position[2, 1, 0])  # the input is the end of the row above, no neighbour
    assert not where[LEFT][first].any() and where["rest of the frame"][first][position[2, 0, 3]]


@pytest.mark.parametrize("spec", ORDERS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_what_an_order_leaves_agrees_with_its_times(layout: Layout, spec: str) -> None:
    """Decoded, masked or missed, by the definition: times alone say what is missed."""
    order, known, frame = Order.of(spec), 1, 2
    found, cells = attention.under(layout, order, known, frame), attention.targets(layout, frame)
    drawn = layout.drawn.cols
    times = order.schedule.times(Grid(2, layout.grid.rows, drawn))
    positions = layout.positions()[known:, :, :drawn]
    step = dict(zip(positions.ravel().tolist(), times.ravel().tolist(), strict=True))
    for row, cell in enumerate(cells.tolist()):
        expected = [
            past < cell and past in step and step[past] >= step[cell] for past in range(found["missed"].shape[1])
        ]
        assert found["missed"][row].tolist() == expected
    total = sum(found[name].astype(int) for name in SCHEDULED)
    assert np.array_equal(total, np.arange(int(cells[-1])) < cells[:, None])
    assert not (found["stand-in"] & found["decoded"]).any()
    if spec in ("raster", "lossless"):
        assert not found["missed"].any() and not found["masked"].any() and not found["stand-in"].any()


def test_row_starts_see_stand_ins_and_without_refeeding_row_ends_stay_masked() -> None:
    layout = Layout(Grid(2, 3, 4))
    found = attention.under(layout, Order.of("diagonal:k=1"), 1, 1)
    cells, position = attention.targets(layout, 1).tolist(), layout.positions()
    row = cells.index(position[1, 1, 0])
    assert found["stand-in"][row, position[1, 0, 3]] and found["missed"][row, position[1, 0, 3]]
    never = attention.under(layout, Order(Order.of("diagonal:k=1").schedule, refeed=False), 1, 1)
    last = cells.index(position[1, 2, 3])
    assert never["masked"][last, position[1, 0, 3]] and never["stand-in"][last, position[1, 0, 3]]
    assert not found["masked"].any()


@pytest.mark.parametrize("name", TINY)
def test_shares_of_a_world_sum_to_one_and_the_mean_is_over_clips(name: str) -> None:
    world = load(name, "random")
    stride = int(world.tokenizer.stride)
    card = draw.test_card(*world.size)
    clips = [np.concatenate([np.roll(card, shift * seed, axis=2) for shift in range(1 + stride)]) for seed in (1, 5)]
    given = [attention.units(world, clip, None) for clip in clips]
    found = attention.measure(world, given, 1, 1, [Order.of("diagonal:k=1")])
    assert len(found.weights) == world.model.config.layers and found.clips == 2
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-4)
    np.testing.assert_allclose(sum(found.places.values()), np.ones((2, len(found.weights))), atol=1e-4)
    parts = found.orders["diagonal:k=1"]
    np.testing.assert_allclose(sum(parts[name] for name in SCHEDULED), np.ones((2, len(found.weights))), atol=1e-4)
    alone = [attention.measure(world, [one], 1, 1, []) for one in given]
    np.testing.assert_allclose(found.weights, (alone[0].weights + alone[1].weights) / 2, atol=1e-6)
    assert found.places[ABOVE][1] == pytest.approx(alone[1].places[ABOVE][0])


def test_offsets_are_means_over_the_cells_that_have_them() -> None:
    layout = Layout(Grid(2, 2, 3))
    cells = attention.targets(layout, 1)
    weights = np.zeros((2, len(cells), int(cells[-1])), np.float32)
    for row, cell in enumerate(cells):
        weights[:, row, cell - 1], weights[:, row, cell - 3] = 0.25, 0.75
    profile = attention.by_offset(weights, layout, 1)
    assert profile[[0, 2]].tolist() == [0.25, 0.75] and profile.sum() == 1


@pytest.mark.parametrize(("frame", "known", "message"), [(2, 1, "has frames 0 to 1"), (1, 2, "is one of 2 known ones")])
def test_frames_that_cannot_be_measured_are_refused(frame: int, known: int, message: str) -> None:
    world = load("mcar/tiny", "random")
    clip = np.concatenate([draw.test_card(*world.size)] * 2)
    with pytest.raises(ValueError, match=message):
        attention.measure(world, [attention.units(world, clip, None)], frame, known, [])
