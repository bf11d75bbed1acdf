"""What chunks of one call see: each other, and finished chunks, whose keys and values are kept apart.

A chunk sees a range of chunks that ends with itself. Finished chunks see nothing but themselves, so their keys and
values depend on their latents alone, and are computed once. Of these as many are kept as are ever read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from diagonal.engine.attention import attend

LayerKV = list[tuple[Tensor, Tensor]]  # of each layer: keys and values (1, K, S, D)


@dataclass(slots=True)
class Finished:
    """Keys and values of finished chunks, by their numbers."""

    chunks: dict[int, LayerKV] = field(default_factory=dict)

    def drop(self, first: int) -> None:
        """Give up the chunks before this one."""
        for chunk in [chunk for chunk in self.chunks if chunk < first]:
            del self.chunks[chunk]


@dataclass(frozen=True, slots=True)
class Seen:
    """A chunk of a call, and the first of those that it sees. `alone`: it sees itself, and nobody sees it."""

    chunk: int
    first: int
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """The memory of one call. Its chunks follow one another, the oldest first; lonely ones come last. Keys and values
    of those in `put` are kept."""

    finished: Finished
    seen: tuple[Seen, ...]
    put: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        company = [one.chunk for one in self.seen if not one.alone]
        if company != list(range(company[0], company[0] + len(company))):
            raise ValueError(f"chunks {company} given in one call; they must follow one another")
        lacking = [chunk for chunk in self.past if chunk not in self.finished.chunks]
        if lacking:
            raise ValueError(f"chunk {lacking[0]} is to be seen, but it has not been fed or was given up")
        for chunk in self.put:
            self.finished.chunks[chunk] = []

    @property
    def past(self) -> range:
        """Finished chunks that are seen and not in the call."""
        return range(min(one.first for one in self.seen if not one.alone), self.seen[0].chunk)

    def layer(self, index: int) -> CallLayer:
        return CallLayer(self, index)


@dataclass(frozen=True, slots=True)
class CallLayer:
    """One layer of it."""

    call: Call
    index: int

    def attend(self, q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
        call, tokens = self.call, q_BHSD.shape[2]
        for place, one in enumerate(call.seen):
            if one.chunk in call.put and not one.alone:
                kept = k_BKSD[place : place + 1].clone(), v_BKSD[place : place + 1].clone()
                call.finished.chunks[one.chunk].append(kept)
        keys, values = self._line(k_BKSD, 0), self._line(v_BKSD, 1)
        base, mixed = call.past.start, []
        for place, one in enumerate(call.seen):
            q = q_BHSD[place : place + 1]
            if one.alone:
                mixed.append(attend(q, k_BKSD[place : place + 1], v_BKSD[place : place + 1], None))
                continue
            span = slice((one.first - base) * tokens, (one.chunk + 1 - base) * tokens)
            mixed.append(attend(q, keys[:, :, span], values[:, :, span], None))
        return torch.cat(mixed)

    def _line(self, new_BKSD: Tensor, part: int) -> Tensor:
        """Keys or values of all chunks that are seen, one after the other: (1, K, L, D)."""
        call = self.call
        past: Sequence[Tensor] = [call.finished.chunks[chunk][self.index][part] for chunk in call.past]
        count = sum(not one.alone for one in call.seen)
        return torch.cat([*past, *new_BKSD[:count].split(1)], dim=2)
