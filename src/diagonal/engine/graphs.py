"""Decoding steps without the host: the plan lies on the device, and every step is one captured graph.

A plan is known in advance, so nothing has to be asked of the GPU while it runs. The steps of a plan are padded to a few
widths; for each width there is a table of all its steps on the device and a cursor into it. A captured step reads its
row of the table, runs the model, samples, writes the tokens and moves the cursor on: replaying it is all the host does.

Padding repeats a step's first input: the same token at the same slot, so that what it writes is written anyway. Inputs
whose output is not used write it behind the sequence. The same steps run uncaptured too (`capture=False`): that is how
they are tested where there is no GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diagonal.engine.cache import KVCache
from diagonal.engine.heads import Heads, joined
from diagonal.engine.kernels import ops
from diagonal.engine.kernels.visibility import BLOCK, Visibility
from diagonal.engine.protocols import TokenModel
from diagonal.engine.runner import Eager
from diagonal.engine.sampler import Sampler
from diagonal.grid import IntArray
from diagonal.plan import NEVER, NONE, Plan

# Widths that steps are padded to. Weights are streamed once whatever the width, so a few more rows cost little.
WIDTHS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128)

# Attention of a step's queries to the cache: kernels.attention.attend, or its twin in plain torch.
Attend = Callable[[Tensor, Tensor, Tensor, Visibility], Tensor]


def padded(width: int) -> int:
    """The next width that steps are padded to; beyond the list, multiples of the last one."""
    return next((one for one in WIDTHS if one >= width), -(-width // WIDTHS[-1]) * WIDTHS[-1])


@dataclass(frozen=True, slots=True)
class Table:
    """All steps of one width, and which of them comes next."""

    read: Tensor  # (N, W)
    slot: Tensor
    write: Tensor
    step: Tensor  # (N, 1) int32: the number of the step in its plan
    blocks: Tensor  # (N, all blocks of the cache) int32: first those that hold anything written
    count: Tensor  # (N, 1) int32: so many
    cursor: Tensor  # (1,)

    def next(self) -> tuple[Tensor, ...]:
        """Read, slot, write, step, blocks and count at the cursor, gathered on the device; the cursor moves on."""
        parts = (self.read, self.slot, self.write, self.step, self.blocks, self.count)
        found = tuple(part.index_select(0, self.cursor)[0] for part in parts)
        self.cursor.add_(1)
        return found


def tables(plan: Plan, device: torch.device) -> dict[int, Table]:
    """The steps of a plan but the first, which feeds the prompt, by padded width."""
    groups: dict[int, list[int]] = defaultdict(list)
    for index in range(1, len(plan.steps)):
        groups[padded(len(plan.steps[index].read))].append(index)
    first_block = _first_fed_blocks(plan)
    unused = plan.layout.length  # where outputs go that nobody asked for

    def rows(values: list[IntArray], width: int) -> Tensor:
        whole = [np.concatenate([value, np.full(width - len(value), value[0])]) for value in values]
        return torch.from_numpy(np.stack(whole)).to(device)

    def column(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)[:, None]

    result = {}
    for width, chosen in groups.items():
        steps = [plan.steps[index] for index in chosen]
        result[width] = Table(
            read=rows([step.read for step in steps], width),
            slot=rows([step.slot for step in steps], width),
            write=rows([np.where(step.write == NONE, unused, step.write) for step in steps], width),
            step=column(chosen),
            blocks=torch.from_numpy(
                np.stack([np.argsort(first_block > index, kind="stable") for index in chosen]).astype(np.int32)
            ).to(device),
            count=column([int(np.count_nonzero(first_block <= index)) for index in chosen]),
            cursor=torch.zeros(1, dtype=torch.long, device=device),
        )
    return result


def _first_fed_blocks(plan: Plan) -> IntArray:
    """The step that first writes any slot of each block of the cache."""
    first = plan.first_fed
    padding = np.full(-len(first) % BLOCK, NEVER, first.dtype)
    blocks: IntArray = np.concatenate([first, padding]).reshape(-1, BLOCK).min(1)
    return blocks


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """The cache as a step on the device sees it."""

    cache: KVCache
    seen: Visibility
    attend: Attend

    def layer(self, index: int) -> DeviceLayer:
        return DeviceLayer(self.cache.k[index], self.cache.v[index], self)


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    """One layer of it: keys and values are (B, K, L, D)."""

    k: Tensor
    v: Tensor
    step: DeviceStep

    def attend(self, q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
        slots_S = self.step.seen.slots_S
        self.k.index_copy_(2, slots_S, k_BKSD.to(self.k.dtype))
        self.v.index_copy_(2, slots_S, v_BKSD.to(self.v.dtype))
        return self._mixed(q_BHSD)

    def attend_heads(self, heads: Heads) -> Tensor:
        return joined(self._mixed(ops(heads.qkv_BSC).remember(heads, self.k, self.v, self.step.seen.slots_S)))

    def _mixed(self, q_BHSD: Tensor) -> Tensor:
        return self.step.attend(q_BHSD.to(self.k.dtype), self.k, self.v, self.step.seen).to(q_BHSD.dtype)


class Graphs:
    """Runs the steps of plans that fit one cache, capturing each width of a plan when it is first met."""

    lasting = True

    def __init__(self, model: TokenModel, cache: KVCache, sampler: Sampler, attend: Attend, capture: bool) -> None:
        self._model, self._cache, self._sampler, self._attend = model, cache, sampler, attend
        self._capture, self._prompt = capture, Eager(model, cache, sampler)
        self._tokens_BL = torch.zeros(cache.batch, cache.length + 1, dtype=torch.long, device=cache.k.device)
        self._fed_L = torch.full((cache.length,), NEVER, dtype=torch.int32, device=cache.k.device)
        self._uploaded: dict[Plan, tuple[Tensor, dict[int, Table]]] = {}
        self._captured: dict[int, Any] = {}  # by the table that a graph reads
        self._pool: Any = None

    def adopt(self, sampler: Sampler) -> None:
        """Go on with the seeds of another sampler of the same kind; what is captured stays."""
        self._sampler.generators = sampler.generators

    def begin(self, plan: Plan, tokens_BL: Tensor) -> Tensor:
        """Take up a window: its plan with all cursors at the start, and its tokens, decoded in the returned copy."""
        length = plan.layout.length
        tokens = self._prompt.begin(plan, self._tokens_BL[:, :length])
        tokens.copy_(tokens_BL)
        if plan not in self._uploaded:
            fed = torch.from_numpy(plan.first_fed).to(self._fed_L)
            self._uploaded[plan] = (fed, tables(plan, self._cache.k.device))
        self._plan, (fed, self._tables) = plan, self._uploaded[plan]
        self._fed_L.fill_(NEVER)
        self._fed_L[:length] = fed
        for table in self._tables.values():
            table.cursor.zero_()
        return tokens

    def step(self, index: int) -> None:
        """Run one step; the first, which feeds the prompt, is as wide as that and runs eagerly."""
        if index == 0:
            self._prompt.step(0)
            return
        table = self._tables[padded(len(self._plan.steps[index].read))]
        if not self._capture:
            self._run(table)
        elif id(table) in self._captured:
            self._captured[id(table)].replay()
        else:
            self._captured[id(table)] = self._record(table)

    def _run(self, table: Table) -> None:
        """What is captured: everything that happens in a step."""
        read, slot, write, step, blocks, count = table.next()
        memory = DeviceStep(self._cache, Visibility(slot, self._fed_L, step, blocks, count), self._attend)
        logits_BSV = self._model(self._tokens_BL[:, read], slot, memory)
        self._tokens_BL.index_copy_(1, write, self._sampler(logits_BSV, write))

    def _record(self, table: Table) -> Any:
        """Run the step once, which also warms it up, then capture it with the cursor where it was."""
        self._run(table)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._run(table)
        self._pool = graph.pool()
        return graph
