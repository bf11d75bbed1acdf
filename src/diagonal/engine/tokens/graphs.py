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

import numpy as np
import torch
from torch import Tensor

from diagonal.engine.attention import SlotMaker
from diagonal.engine.heads import Heads, joined
from diagonal.engine.kernels import select
from diagonal.engine.kernels.reference import write_slots
from diagonal.engine.kernels.visibility import BLOCK, Visibility
from diagonal.engine.sampler import Sampler
from diagonal.engine.tokens.cache import KVCache
from diagonal.engine.tokens.captures import Captures
from diagonal.engine.tokens.protocols import TokenModel
from diagonal.engine.tokens.runner import Eager
from diagonal.planning.grid import IntArray
from diagonal.planning.plan import NEVER, NONE, Plan

# Widths that steps are padded to. Weights are streamed once whatever the width, so a few more rows cost little; where
# there are few they cost more, as every multiprocessor reads all of them.
WIDTHS: tuple[int, ...] = (1, *range(2, 17, 2), *range(24, 129, 8))

# Attention of a step's queries to the cache: `kernels.select.decode_attention`, or its reference in plain torch.
Attend = Callable[[Tensor, Tensor, Tensor, Visibility], Tensor]
# The width that a step is padded to.
Pad = Callable[[int], int]


def padded(width: int) -> int:
    """The next width that steps are padded to; beyond the list, multiples of the last one."""
    return next((one for one in WIDTHS if one >= width), -(-width // WIDTHS[-1]) * WIDTHS[-1])


@dataclass(frozen=True, slots=True)
class Table:
    """All steps of one width W, and which of them comes next. A step is one row: what to read, the slots, where to
    write (W numbers each), the two numbers of blocks of its `Visibility`, and the number of the step in its plan."""

    width: int
    rows: Tensor  # (N, numbers of a step)
    cursor: Tensor  # (2,): it, and a number of its kernel's own

    def next(self, fed_L: Tensor, tokens_BL: Tensor) -> tuple[Tensor, Tensor, Visibility]:
        """The tokens (B, W) to read, where to write, and what is seen at the cursor, on the device; it moves on."""
        row, tokens_BS, needed_L = select.next_step(self.rows, self.cursor, fed_L, tokens_BL, self.width)
        _, slots, write, whole, extent, _ = row.split([self.width] * 3 + [1] * 3)
        return tokens_BS, write, Visibility(slots, needed_L, whole, extent)


def exact(width: int) -> int:
    """No padding: what a CPU wants, where every row costs and nothing is captured."""
    return width


def tables(plan: Plan, device: torch.device, pad: Pad = padded) -> dict[int, Table]:
    """The steps of a plan but the first, which feeds the prompt, by padded width."""
    groups: dict[int, list[IntArray]] = defaultdict(list)
    fed = _fed_blocks(plan)
    unused = plan.layout.length  # where outputs go that nobody asked for
    for index, step in enumerate(plan.steps[1:], 1):
        width = pad(len(step.read))
        inputs = (step.read, step.slot, np.where(step.write == NONE, unused, step.write))
        repeated = [np.concatenate([part, np.full(width - len(part), part[0])]) for part in inputs]
        groups[width].append(np.concatenate([*repeated, _blocks_seen(*fed, index, int(step.slot.min())), [index]]))
    return {
        width: Table(
            width, torch.from_numpy(np.stack(rows)).to(device), torch.zeros(2, dtype=torch.long, device=device)
        )
        for width, rows in groups.items()
    }


def _fed_blocks(plan: Plan) -> tuple[IntArray, IntArray]:
    """Of each block of the cache, the steps that first write the first of its slots, and the last of them."""
    fed = plan.first_fed
    blocks = np.concatenate([fed, np.full(-len(fed) % BLOCK, NEVER, fed.dtype)]).reshape(-1, BLOCK)
    return blocks.min(1), blocks.max(1)


def _blocks_seen(begun: IntArray, done: IntArray, step: int, least: int) -> tuple[int, int]:
    """The `whole` and `extent` of a step whose queries have slots from `least` on, which it writes itself."""
    wholly = (done < step) & (np.arange(1, len(done) + 1) * BLOCK <= least)
    written = np.flatnonzero(begun <= step)
    return int(np.argmin([*wholly, False])), int(written[-1]) + 1 if len(written) else 0


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """The cache as a step on the device sees it."""

    cache: KVCache
    slots_S: Tensor  # that the step writes
    seen: Visibility
    attend: Attend
    made: list[Tensor] | None = None  # rows for all slots, once they were asked for; None: positions are no slots

    def layer(self, index: int) -> DeviceLayer:
        return DeviceLayer(self.cache.k[index], self.cache.v[index], self)

    def by_slot(self, make: SlotMaker, slots_S: Tensor) -> tuple[Tensor, ...]:
        if self.made is None:
            return make(slots_S)
        if not self.made:
            parts = make(torch.arange(self.cache.length, device=slots_S.device))
            alike = len({part.shape for part in parts}) == 1
            self.made.extend([torch.stack(parts)] if alike else [part[None] for part in parts])  # one look-up for all
        return tuple(part for table in self.made for part in select.gather_rows(table, slots_S))


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    """One layer of it: keys and values are (B, K, L, D)."""

    k: Tensor
    v: Tensor
    step: DeviceStep

    def attend(self, q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
        write_slots(self.k, k_BKSD, self.step.slots_S, self.step.seen.rows_B)
        write_slots(self.v, v_BKSD, self.step.slots_S, self.step.seen.rows_B)
        return self._mixed(q_BHSD)

    def attend_heads(self, heads: Heads) -> Tensor:
        step = self.step
        return joined(self._mixed(select.write_heads(heads, self.k, self.v, step.slots_S, step.seen.rows_B)))

    def _mixed(self, q_BHSD: Tensor) -> Tensor:
        return self.step.attend(q_BHSD.to(self.k.dtype), self.k, self.v, self.step.seen).to(q_BHSD.dtype)


class Graphs:
    """Runs the steps of plans that fit one cache, capturing each width of a plan when it is first met."""

    lasting = True

    def __init__(
        self, model: TokenModel, cache: KVCache, sampler: Sampler, attend: Attend, capture: bool, pad: Pad = padded
    ) -> None:
        self._model, self._cache, self._sampler, self._attend = model, cache, sampler.owned(), attend
        self._prompt, self._pad = Eager(model, cache, self._sampler), pad
        self._tokens_BL = torch.zeros(cache.batch, cache.length + 1, dtype=torch.long, device=cache.k.device)
        self._fed_L = torch.full((cache.length,), NEVER, dtype=torch.int32, device=cache.k.device)
        self._uploaded: dict[Plan, tuple[Tensor, dict[int, Table]]] = {}
        self._captures = Captures(model, cache.k.device) if capture else None
        self._by_slot: list[Tensor] = []

    def adopt(self, sampler: Sampler) -> None:
        """Go on with the seeds of another sampler of the same kind; what is captured stays."""
        self._sampler.adopt(sampler)

    def begin(self, plan: Plan, tokens_BL: Tensor, start: int) -> Tensor:
        """Take up a window: its plan with all cursors at the start, and its tokens, decoded in the returned copy."""
        length = plan.layout.length
        tokens = self._prompt.begin(plan, self._tokens_BL[:, :length], start)
        tokens.copy_(tokens_BL)
        if plan not in self._uploaded:
            fed = torch.from_numpy(plan.first_fed).to(self._fed_L)
            self._uploaded[plan] = (fed, tables(plan, self._cache.k.device, self._pad))
        self._plan, (fed, self._tables) = plan, self._uploaded[plan]
        self._fed_L.fill_(NEVER)
        self._fed_L[:length] = fed
        for table in self._tables.values():
            table.cursor.zero_()
        if self._captures is not None:
            self._captures.begin()
        return tokens

    def step(self, index: int) -> None:
        """Run one step; the first, which feeds the prompt, is as wide as that and runs eagerly."""
        if index == 0:
            self._prompt.step(0)
            return
        table = self._tables[self._pad(len(self._plan.steps[index].read))]
        if self._captures is None:
            self._run(table)
        else:
            self._captures.run(id(table), lambda: self._run(table))

    def _run(self, table: Table) -> None:
        """What is captured: everything that happens in a step."""
        tokens_BS, write, seen = table.next(self._fed_L, self._tokens_BL)
        memory = DeviceStep(self._cache, seen.slots_S, seen, self._attend, self._by_slot)
        logits_BSV = self._model(tokens_BS, seen.slots_S, memory)
        self._sampler.into(self._tokens_BL, logits_BSV, write)
