"""The batch of a step, shared by processes and cut into micro-batches: the same samples however many there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Terms = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class BatchShard:
    """The data-parallel shard of a process: its samples of a batch, in micro-batches that fit its memory."""

    rank: int = 0
    world: int = 1
    micro_batch: int | None = None  # samples at a time, whose gradients are summed; None: all

    def own(self, batch: int) -> range:
        """The samples of this process; together the processes have all."""
        if batch % self.world:
            raise ValueError(f"a batch of {batch} given for {self.world} processes; it must be a multiple of them")
        count = batch // self.world
        return range(self.rank * count, (self.rank + 1) * count)

    def mean(self, batch: int, loss: Callable[[Sequence[int]], tuple[Tensor, Terms]]) -> tuple[Tensor, Terms]:
        """The mean loss of this process's samples, and the terms of it.

        The backward pass of all micro-batches but the last is done here, so that the activations of one are alive.
        """
        own = self.own(batch)
        size = self.micro_batch or len(own)
        value, terms = torch.zeros((), dtype=torch.float64), Terms()
        for start in range(0, len(own), size):
            part = own[start : start + size]
            new, found = loss(part)
            weight = len(part) / len(own)
            for name, term in found.items():
                terms[name] = terms.get(name, 0) + weight * term.detach()
            if start + size < len(own):
                (weight * new).backward()
                new = new.detach()
            value = value + weight * new  # a number of the host: sent to a GPU, it would wait for all that came before
        return value, terms


def at_once(batch: int, processes: int, accumulate: int | None) -> int:
    """The size of the micro-batches, where each of the processes accumulates the gradients of so many."""
    count = processes * (accumulate or 1)
    if min(batch, count) < 1 or batch % count:
        raise ValueError(
            f"a batch of {batch} given for {processes} processes in {accumulate or 1} parts each; it must be a "
            f"multiple of {count}"
        )
    return 1 if accumulate is None else batch // count
