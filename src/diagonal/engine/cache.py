"""A static key/value cache whose slots are sequence positions.

An entry is an indexed write; a stand-in is a slot that is written again later. What a query may see is the
plan's business and arrives as a mask, so stale contents of an unused slot never matter and a cache can be
used again without clearing it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diagonal.engine.attention import attend
from diagonal.engine.protocols import CacheSpec


class KVCache:
    """Keys and values of every layer, (layers, B, K, L, D)."""

    def __init__(self, spec: CacheSpec, batch: int, length: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (spec.layers, batch, spec.kv_heads, length, spec.head_dim)
        self.spec = spec
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros(shape, device=device, dtype=dtype)

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
    mask: Tensor | None  # as `attend` takes it; None: every query sees all slots up to extent

    def layer(self, index: int) -> CacheLayer:
        return CacheLayer(self.cache.k[index], self.cache.v[index], self)


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """One layer of a cache in one step: keys and values are (B, K, L, D)."""

    k: Tensor
    v: Tensor
    step: CacheStep

    def attend(self, q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
        self.k.index_copy_(2, self.step.slots_S, k_BKSD.to(self.k.dtype))
        self.v.index_copy_(2, self.step.slots_S, v_BKSD.to(self.v.dtype))
        extent = self.step.extent
        mixed = attend(q_BHSD.to(self.k.dtype), self.k[:, :, :extent], self.v[:, :, :extent], self.step.mask)
        return mixed.to(q_BHSD.dtype)
