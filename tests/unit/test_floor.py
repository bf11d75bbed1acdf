"""The floor of a step: what is read of the weights and of the cache, counted by hand and by watching a forward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from diagonal.catalog.names import find
from diagonal.engine.kernels.device import SWITCH
from diagonal.engine.tokens.cache import KVCache
from diagonal.engine.tokens.decode import decode
from diagonal.engine.tokens.runner import Eager
from diagonal.evaluation.speed.floor import ONCE, Traffic, looked_up, step_bytes, visible_slots
from diagonal.planning.grid import Grid, Layout
from diagonal.planning.plan import Plan, make_plan
from tests.tiny import GREEDY, TINY, build, random_prompt, sampler, tiny_config


@pytest.mark.parametrize(
    ("name", "gigabytes"), [("cosmos/4b", 7.50), ("cosmos/5b", 8.58), ("cosmos/12b", 22.47), ("cosmos/13b", 25.82)]
)
def test_the_weights_that_the_published_models_stream(name: str, gigabytes: float) -> None:
    with torch.device("meta"):
        model = find("models", name).config.build().to(torch.bfloat16)
    traffic = Traffic.of(model, torch.bfloat16)
    assert round(traffic.weights / 1e9, 2) == gigabytes
    config = model.config
    assert traffic.slot == 2 * 2 * config.layers * 8 * 128
    assert traffic.row == 2 * config.width


class Watch(TorchDispatchMode):
    """Which parameters are read as a whole, not by rows."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names = {parameter.data_ptr(): name for name, parameter in model.named_parameters()}
        self.whole: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "embedding" not in str(function):
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            self.whole |= {self.names[one.data_ptr()] for one in tensors if one.data_ptr() in self.names}
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", TINY)
def test_what_counts_as_streamed_is_what_a_step_reads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")  # PyTorch tells what it reads
    config = tiny_config(name)
    model = build(config)
    variant = find("models", name)
    call = model.bind(torch.ones(1, 3, config.text)) if variant.text else model
    plan = make_plan(Layout(Grid(2, 4, 6), len(config.prefix_ids), config.suffix), "diagonal:k=1", known=1)
    tokens = random_prompt(config, plan)
    cache = KVCache(model.cache_spec, 1, plan.layout.length, torch.device("cpu"), torch.float32)
    with Watch(model) as watch:
        for _ in decode(Eager(call, cache, sampler(config, plan, GREEDY, [0])), plan, tokens):
            pass
    tables = looked_up(model)
    counted = {key for key, _ in model.named_parameters() if key not in tables and not ONCE.search(key)}
    assert watch.whole == counted
    assert tables and all(isinstance(table, nn.Parameter) for table in tables.values())
    parameters = dict(model.named_parameters())
    assert Traffic.of(model, torch.float32).weights == 4 * sum(parameters[key].numel() for key in counted)


def small(schedule: str) -> Plan:
    return make_plan(Layout(Grid(2, 2, 3)), schedule, known=1)


def test_raster_sees_one_slot_more_at_every_step() -> None:
    assert visible_slots(small("raster")).tolist() == [6, 7, 8, 9, 10, 11]


def test_holes_are_not_read() -> None:
    """Row 1 of frame 1 begins one step after row 0: the slots between are empty, and so is what is not yet fed."""
    plan = small("diagonal:k=1")
    assert len(plan.steps) == 4
    seen = visible_slots(plan)
    for index, step in enumerate(plan.steps):
        fed = {int(slot) for earlier in plan.steps[: index + 1] for slot in earlier.slot}
        assert seen[index] == len([slot for slot in fed if slot <= step.slot.max()])
    assert seen[1] < plan.steps[1].slot.max() + 1


def test_bytes_are_weights_and_rows_and_slots() -> None:
    traffic = Traffic(weights=1000, row=10, slot=3)
    plan = small("raster")
    assert step_bytes(traffic, [plan]).tolist() == [1000 + 10 * 6 + 3 * 6, *(1000 + 10 + 3 * s for s in range(7, 12))]
    twice = step_bytes(traffic, [plan, plan], text_rows=4)
    np.testing.assert_array_equal(twice, np.tile(step_bytes(traffic, [plan]) + 12, 2))


def test_traffic_grows_with_the_batch_and_the_numbers_but_weights_do_not_with_the_batch() -> None:
    with torch.device("meta"):
        model = find("models", "mcar/tiny").config.build()
    one, four = (Traffic.of(model, torch.float32, batch) for batch in (1, 4))
    assert (four.weights, four.row, four.slot) == (one.weights, 4 * one.row, 4 * one.slot)
    half = Traffic.of(model.to(torch.bfloat16), torch.bfloat16)
    assert (2 * half.weights, 2 * half.row, 2 * half.slot) == (one.weights, one.row, one.slot)
