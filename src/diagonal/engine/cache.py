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
    mask_SL: Tensor | None  # None: every query sees all slots up to extent

    def attend(self, layer: int, q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
        k, v = self.cache.k[layer], self.cache.v[layer]
        k.index_copy_(2, self.slots_S, k_BKSD)
        v.index_copy_(2, self.slots_S, v_BKSD)
        return attend(q_BHSD, k[:, :, : self.extent], v[:, :, : self.extent], self.mask_SL)
