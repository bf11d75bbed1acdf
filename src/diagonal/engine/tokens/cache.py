"""A static key/value cache whose slots are sequence positions.

An entry is an indexed write; a stand-in is a slot that is written again later. What a query may see is the
plan's business and arrives as a mask, so stale contents of an unused slot never matter and a cache can be
used again without clearing it.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from diagonal.engine.attention import Sees, SlotMaker, attend
from diagonal.engine.heads import Heads, joined
from diagonal.engine.kernels import select
from diagonal.engine.kernels.visibility import whole_blocks
from diagonal.engine.protocols import CacheSpec


class KVCache:
    """Keys and values of every layer, (layers, B, K, L, D). L is a whole number of the kernel's blocks."""

    def __init__(self, spec: CacheSpec, batch: int, length: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (spec.layers, batch, spec.kv_heads, whole_blocks(length), spec.head_dim)
        self.spec = spec
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros(shape, device=device, dtype=dtype)

    def row(self, index: int) -> KVCache:
        """One row of it, as a cache of batch 1 on the same memory."""
        other = copy(self)
        other.k, other.v = self.k[:, index : index + 1], self.v[:, index : index + 1]
        return other

    @property
    def batch(self) -> int:
        return self.k.shape[1]

    @property
    def length(self) -> int:
        return self.k.shape[3]


@dataclass(frozen=True, slots=True)
class CacheStep:
    """The cache as one step sees it: where the new entries go, and which of the first slots each query sees."""

    cache: KVCache
    slots_S: Tensor
    extent: int  # slots beyond were never written
    mask: Tensor | None = None  # as `attend` takes it; None: every query sees all slots up to extent
    raster: bool = False  # the inputs are all slots up to extent, in order: each sees those before it

    def layer(self, index: int) -> CacheLayer:
        return CacheLayer(self.cache.k[index], self.cache.v[index], self)

    def restricted(self, sees: Sees, slots_S: Tensor) -> CacheStep:
        keys = torch.arange(self.extent, device=slots_S.device)
        seen = (keys <= slots_S[:, None]) & sees(slots_S[:, None], keys)
        if self.mask is not None:
            written = self.mask if self.mask.dtype == torch.bool else self.mask[: len(slots_S)] == 0
            seen &= written
        return replace(self, mask=seen, raster=False)

    def by_slot(self, make: SlotMaker, slots_S: Tensor) -> tuple[Tensor, ...]:
        return make(slots_S)


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """One layer of a cache in one step: keys and values are (B, K, L, D)."""

    k: Tensor
    v: Tensor
    step: CacheStep

    def attend(self, q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
        self.k.index_copy_(2, self.step.slots_S, k_BKSD.to(self.k.dtype))
        self.v.index_copy_(2, self.step.slots_S, v_BKSD.to(self.v.dtype))
        return self._mixed(q_BHSD)

    def attend_heads(self, heads: Heads) -> Tensor:
        return joined(self._mixed(select.write_heads(heads, self.k, self.v, self.step.slots_S)))

    def _mixed(self, q_BHSD: Tensor) -> Tensor:
        extent, q = self.step.extent, q_BHSD.to(self.k.dtype)
        if self.step.raster:
            return select.prefill_attention(q, self.k, self.v).to(q_BHSD.dtype)
        mixed = attend(q, self.k[:, :, :extent], self.v[:, :, :extent], self.step.mask)
        return mixed.to(q_BHSD.dtype)
