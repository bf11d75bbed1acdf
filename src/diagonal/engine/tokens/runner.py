"""What runs the steps of a plan: one call of the model each, whose tokens are sampled and written.

`Eager` asks the model step by step, with exactly the inputs of a step. On a GPU with Triton `graphs.Graphs` does the
same with captured graphs. `make_runner` chooses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from diagonal.engine.attention import bias
from diagonal.engine.kernels import select
from diagonal.engine.kernels.cpu import on_cpu
from diagonal.engine.sampler import Sampler
from diagonal.engine.tokens.cache import CacheStep, KVCache
from diagonal.engine.tokens.protocols import TokenModel
from diagonal.engine.warm import Warm
from diagonal.planning.plan import NONE, Plan
from diagonal.planning.sampling import Sampling

NARROW = 256  # a step of at most so many inputs has its mask prepared for all layers; a prompt's would be too large


class Runner(Protocol):
    """Runs plans, one after the other."""

    @property
    def lasting(self) -> bool:
        """Whether it is worth keeping for another video."""
        ...

    def adopt(self, sampler: Sampler) -> None:
        """Go on with the seeds of another sampler of the same kind."""
        ...

    def begin(self, plan: Plan, tokens_BL: Tensor, start: int) -> Tensor:
        """Take up a plan and the tokens of its window, which begins at position `start` of the video; returns the
        tensor in which they will be decoded."""
        ...

    def step(self, index: int) -> None:
        """Run one step of the plan; steps come in their order."""
        ...


class Eager:
    """One step after the other, as PyTorch runs them."""

    lasting = False

    def __init__(self, model: TokenModel, cache: KVCache, sampler: Sampler) -> None:
        self._model, self._cache, self._sampler = model, cache, sampler

    def adopt(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def begin(self, plan: Plan, tokens_BL: Tensor, start: int) -> Tensor:
        if self._cache.length < plan.layout.length:
            raise ValueError(f"the plan needs {plan.layout.length} cache slots, the cache has {self._cache.length}")
        self._sampler.begin(self._cache.length + 1, start)  # and one for outputs that nobody asked for (graphs.py)
        self._plan, self._first_fed, self._extent = plan, plan.first_fed, 0
        self._tokens_BL = tokens_BL
        return tokens_BL

    def step(self, index: int) -> None:
        step, device = self._plan.steps[index], self._cache.k.device
        self._extent = max(self._extent, int(step.slot.max()) + 1)
        keep = np.flatnonzero(step.write != NONE)
        read, slots, kept, write = (
            torch.from_numpy(part).to(device) for part in (step.read, step.slot, keep, step.write[keep])
        )
        raster = index == 0 and np.array_equal(step.slot, np.arange(self._extent))
        mask = None if raster else self._mask(index)
        memory = CacheStep(self._cache, slots, self._extent, mask, raster)
        logits_BSV = self._model(self._tokens_BL[:, read], slots, memory, kept)
        self._tokens_BL[:, write] = self._sampler(logits_BSV, write)

    def _mask(self, index: int) -> Tensor | None:
        """What each query of a step may see of the slots written so far; None: all."""
        slots = self._plan.steps[index].slot
        visible = (self._first_fed[: self._extent] <= index) & (np.arange(self._extent) <= slots[:, None])
        if visible.all():
            return None
        mask = torch.from_numpy(visible).to(self._cache.k.device)
        return bias(mask, self._cache.spec.group, self._cache.k.dtype) if len(slots) <= NARROW else mask


def make_runner(model: TokenModel, cache: KVCache, sampler: Sampler) -> Runner:
    """Captured steps where there are kernels, without padding on a CPU; eager steps elsewhere, and for models that see
    a part of what came before: kernels know no such rule."""
    on_gpu = select.available(cache.k.device)
    if model.cache_spec.sparse or not (on_gpu or on_cpu(cache.k.device)):
        return Eager(model, cache, sampler)
    from diagonal.engine.tokens.graphs import Graphs, exact, padded

    pad = padded if on_gpu else exact
    return Graphs(model, cache, sampler, select.decode_attention, capture=True, pad=pad)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a runner is made for."""

    model: TokenModel
    batch: int
    length: int
    device: torch.device
    dtype: torch.dtype  # of the cache
    sampling: Sampling


def take_runner(warm: Warm[Runner], kind: Kind, sampler: Sampler) -> Runner:
    """A runner with its cache: the one that was kept, if it fits, or a new one."""

    def make() -> Runner:
        cache = KVCache(kind.model.cache_spec, kind.batch, kind.length, kind.device, kind.dtype)
        return make_runner(kind.model, cache, sampler)

    runner = warm.take(kind, make)
    runner.adopt(sampler)
    return runner
