"""Attention under a plan's visibility: one function for masks, and the memories that need no cache.

`Dense` and `Flex` run a whole plan in one call (training, teacher forcing): the mask is the plan's own,
once as a matrix and once as a FlexAttention `mask_mod`.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from diagonal.engine.heads import Heads, LatentHeads, joined

# On wide calls over many keys cuDNN is the fastest by far; each number of keys is planned once and comes up many times.
WIDE = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
BLOCK = 128  # inputs that FlexAttention takes at a time


def attend(q_BHSD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor, mask: Tensor | None) -> Tensor:
    """Grouped-query attention. `mask` is (S, L) and True where a query sees a key, or made by `bias`, or None.

    The queries that share a key head are packed into one row of queries, so that keys and values are read once and
    never copied, whatever kernel PyTorch chooses.
    """
    group = q_BHSD.shape[1] // k_BKLD.shape[1]
    packed = q_BHSD.unflatten(1, (-1, group)).flatten(2, 3)
    if mask is not None and mask.shape[0] != packed.shape[2]:
        mask = mask.repeat(group, 1)
    mixed = F.scaled_dot_product_attention(packed, k_BKLD, v_BKLD, attn_mask=mask)
    out: Tensor = mixed.unflatten(2, (group, -1)).flatten(1, 2)
    return out


def causal(q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
    """Grouped-query attention of as many queries as keys, each to those before it and to its own."""
    grouped = q_BHSD.shape[1] != k_BKSD.shape[1]
    return F.scaled_dot_product_attention(q_BHSD, k_BKSD, v_BKSD, is_causal=True, enable_gqa=grouped)


def bias(mask_SL: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """A mask as `attend` uses it in the end, made once for all layers: 0 or -inf, repeated for the packed queries."""
    added = torch.zeros(mask_SL.shape, dtype=dtype, device=mask_SL.device).masked_fill_(~mask_SL, -torch.inf)
    return added.repeat(group, 1)


SlotMaker = Callable[[Tensor], tuple[Tensor, ...]]
Sees = Callable[[Tensor, Tensor], Tensor]  # (slots of queries, slots of keys) -> whether a query sees a key, broadcast


class Plain(ABC):
    """What all memories of one call share: heads are normed and rotated, then attended with."""

    __slots__ = ()

    def by_slot(self, make: SlotMaker, slots_S: Tensor) -> tuple[Tensor, ...]:
        return make(slots_S)

    @abstractmethod
    def attend(self, q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor: ...

    def attend_heads(self, heads: Heads) -> Tensor:
        return joined(self.attend(*heads.split()))

    def attend_latents(self, heads: LatentHeads) -> Tensor:
        return joined(self.attend(*heads.split()))


@dataclass(frozen=True, slots=True)
class Dense(Plain):
    """Inputs attend to each other under a boolean matrix (queries, keys)."""

    mask_SS: Tensor

    def layer(self, index: int) -> Self:
        return self

    def restricted(self, sees: Sees, slots_S: Tensor) -> Dense:
        return Dense(self.mask_SS & sees(slots_S[:, None], slots_S))

    def attend(self, q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
        return attend(q_BHSD, k_BKSD, v_BKSD, self.mask_SS)


@dataclass(frozen=True, slots=True)
class Full(Plain):
    """Inputs attend to all of each other: a bidirectional model."""

    def layer(self, index: int) -> Self:
        return self

    def attend(self, q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
        return attend(q_BHSD, k_BKSD, v_BKSD, None)


@dataclass(frozen=True, slots=True)
class Causal(Plain):
    """Inputs in raster order attend to those before them: what next-token training needs, with no mask to read."""

    def layer(self, index: int) -> Self:
        return self

    def restricted(self, sees: Sees, slots_S: Tensor) -> Dense:
        return Dense((slots_S <= slots_S[:, None]) & sees(slots_S[:, None], slots_S))

    def attend(self, q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
        return causal(q_BHSD, k_BKSD, v_BKSD)


@dataclass(frozen=True, slots=True)
class Flex(Plain):
    """The same through FlexAttention, which skips the blocks that nobody sees."""

    blocks: BlockMask

    def layer(self, index: int) -> Self:
        return self

    def attend(self, q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
        grouped, dtype = q_BHSD.shape[1] != k_BKSD.shape[1], v_BKSD.dtype  # norms may leave q and k in another one
        run = _kernel(q_BHSD.is_cuda and not torch.compiler.is_compiling())
        out = run(q_BHSD.to(dtype), k_BKSD.to(dtype), v_BKSD, block_mask=self.blocks, enable_gqa=grouped)
        assert isinstance(out, Tensor)
        return out


@functools.cache
def _kernel(compiled: bool) -> Callable[..., object]:
    """FlexAttention, compiled on a GPU: as it is, it would make the matrix of all queries and keys."""
    plain = cast(Callable[..., object], flex_attention)
    return torch.compile(plain, dynamic=False) if compiled else plain
