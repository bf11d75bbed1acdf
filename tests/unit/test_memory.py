"""Predicted memory: the published models' known sizes, and what a forward really holds at once."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Self

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from diagonal.catalog.names import find
from diagonal.engine.attention import Plain
from diagonal.engine.kernels.device import SWITCH
from diagonal.engine.sampler import Sampler
from diagonal.generation.memory import GB, SAMPLED, estimate
from diagonal.models.videogpt import Steered, Steering, VideoGPT
from diagonal.planning.grid import Grid, Layout
from diagonal.planning.plan import Plan, make_plan
from diagonal.planning.sampling import Sampling
from tests.tiny import TINY, TOKENS, build, new_cache


def window(name: str, schedule: str = "diagonal:k=2", known: int | None = None) -> Plan:
    """A model's whole window, after its reference frames."""
    config = find("models", name).config
    layout = Layout(Grid(config.frames, config.rows, config.cols), len(config.prefix_ids), config.suffix)
    return make_plan(layout, schedule, config.reference_frames if known is None else known)


@pytest.mark.parametrize(
    ("name", "weights", "cache"),
    [("cosmos/4b", 8.03, 0.84), ("cosmos/12b", 23.12, 2.10)],
)
def test_the_sizes_of_the_published_models(name: str, weights: float, cache: float) -> None:
    plan = window(name)
    assert plan.layout.length == 12_800
    needs = estimate(find("models", name), [plan], 1, torch.bfloat16)
    assert (round(needs.weights / GB, 2), round(needs.cache / GB, 2)) == (weights, cache)
    assert needs.tokenizer == 2 * 110_898_294
    assert needs.peak == needs.weights + needs.tokenizer + needs.cache + needs.activations


@pytest.mark.parametrize("name", TINY)
def test_the_cache_is_the_engines(name: str) -> None:
    plan = window(name)
    cache = new_cache(find("models", name).config.build(), plan, batch=3)
    needs = estimate(find("models", name), [plan], 3, torch.float32)
    assert needs.cache == cache.k.nbytes + cache.v.nbytes


def test_what_grows_with_the_batch_and_with_the_numbers() -> None:
    variant, plan = find("models", "cosmos/4b"), window("cosmos/4b")
    one, four = (estimate(variant, [plan], batch, torch.bfloat16) for batch in (1, 4))
    assert (four.weights, four.tokenizer, four.cache) == (one.weights, one.tokenizer, 4 * one.cache)
    assert 3.5 * one.activations < four.activations < 4 * one.activations  # the mask is shared
    wide = estimate(variant, [plan], 1, torch.float32)
    assert (wide.weights, wide.tokenizer, wide.cache) == (2 * one.weights, 2 * one.tokenizer, 2 * one.cache)


def test_the_largest_of_several_windows_counts() -> None:
    variant, large = find("models", "mcar/tiny"), window("mcar/tiny")
    small = make_plan(Layout(Grid(2, 14, 24), 0, 11), "raster", 1)
    alone = estimate(variant, [large], 1, torch.float32)
    assert estimate(variant, [small, large], 1, torch.float32) == alone
    assert estimate(variant, [small], 1, torch.float32).peak < alone.peak


class Live(TorchDispatchMode):
    """Counts the bytes of the tensors that are made under it, and the most that were there at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.sizes: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        there = {value.untyped_storage()._cdata for value in tree_iter((args, kwargs)) if isinstance(value, Tensor)}
        for value in tree_iter(made):
            if isinstance(value, Tensor) and value.untyped_storage()._cdata not in self.sizes.keys() | there:
                storage = value.untyped_storage()
                self.sizes[storage._cdata] = storage.nbytes()
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._free, storage._cdata)
        return made

    def _free(self, key: int) -> None:
        self.now -= self.sizes.pop(key)


@dataclass
class Kernel(Plain):
    """Holds at once what attention on a GPU does: packed queries, the mask for each of a group, and the result."""

    mask_SL: Tensor

    def layer(self, index: int) -> Self:
        return self

    def restricted(self, sees: Any, slots_S: Tensor) -> Self:
        """A sparse model's own rule: a mask like any other."""
        return self

    def attend(self, q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
        group = q_BHSD.shape[1] // k_BKSD.shape[1]
        packed = q_BHSD.unflatten(1, (-1, group)).flatten(2, 3)
        repeated = self.mask_SL.repeat(group, 1)
        added = torch.zeros_like(repeated, dtype=q_BHSD.dtype)
        mixed = torch.empty_like(packed)
        assert added.shape == repeated.shape
        out: Tensor = mixed.unflatten(2, (group, -1)).flatten(1, 2)
        return out


def bound(model: Any) -> Any:
    """A model with what its videos go by, if they go by something."""
    steering = Steering()
    if isinstance(model, VideoGPT) and model.config.classes:
        steering = Steering(label_B=torch.zeros(2, dtype=torch.long))
    if isinstance(model, VideoGPT) and model.config.given:
        config = model.config
        sides = (2, config.given, config.picture_rows, config.picture_cols, config.picture.groups[-1])
        steering = model.steering(torch.zeros(sides, dtype=model.sos.dtype))
    return Steered(model, steering) if isinstance(model, VideoGPT) else model


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", [name for name in TOKENS if name not in TINY])
def test_activations_are_those_of_a_forward_over_the_prompt(name: str, dtype: torch.dtype) -> None:
    """The real modules at full size on the meta device, where tensors have sizes and no memory."""
    plan = window(name)
    inputs = len(plan.steps[0].read)
    with torch.device("meta"):
        model: Any = build(find("models", name).config).to(dtype)
        with torch.inference_mode():
            model = bound(model)
        with torch.inference_mode(), Live() as live:
            mask = torch.ones(inputs, inputs, dtype=torch.bool)
            tokens = torch.zeros(2, inputs, dtype=torch.long)
            model(tokens, torch.arange(inputs), Kernel(mask), torch.zeros(1, dtype=torch.long))
    predicted = estimate(find("models", name), [plan], 2, dtype).activations
    assert 0.9 < predicted / live.peak < 1.4, predicted / live.peak


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_p=0.8), Sampling(top_k=9, top_p=0.8)], ids=str)
def test_sampling_takes_no_more_than_predicted(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits so flat that top-p must sort them all, in plain torch: kernels take less."""
    monkeypatch.setenv(SWITCH, "0")
    sampler = Sampler(sampling, torch.tensor([[0, 5000]]), 0, torch.tensor([0]))
    sampler.begin(40, 0)
    with Live() as live:
        logits = torch.zeros(1, 40, 5000)
        sampler(logits, torch.arange(40))
    assert live.peak <= SAMPLED * logits.numel()
    assert live.peak > 0.4 * SAMPLED * logits.numel()


def test_many_logits_at_once_can_take_more_than_the_layers() -> None:
    """A short prompt, then a schedule that samples 40 of 64,000 ids each at once."""
    variant, layout = find("models", "cosmos/5b"), Layout(Grid(1, 40, 64), prefix=1)
    narrow, wide = (
        estimate(variant, [make_plan(layout, schedule)], 1, torch.bfloat16).activations
        for schedule in ("raster", "diagonal:k=1")
    )
    assert wide == pytest.approx(SAMPLED * 40 * 64_000, rel=0.01) and wide > 10 * narrow
