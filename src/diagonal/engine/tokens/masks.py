"""Who sees whom among the entries of a plan, as masks for training: dense matrices, or FlexAttention."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from diagonal.engine.attention import Flex
from diagonal.planning.plan import Entries

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def dense_mask(entries: Entries, device: torch.device | str = "cpu") -> Tensor:
    """The plan's visibility as a matrix (queries, keys)."""
    return torch.from_numpy(entries.visible()).to(device)


def mask_mod(entries: Entries, device: torch.device | str = "cpu") -> MaskMod:
    """The plan's visibility as a FlexAttention `mask_mod`: the rule of `Entries.visible`, index by index."""
    position = torch.from_numpy(entries.position).to(device)
    fed = torch.from_numpy(entries.fed).to(device)
    until = torch.from_numpy(entries.until).to(device)

    def visible(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (position[k] <= position[q]) & (fed[k] <= fed[q]) & (fed[q] < until[k])

    return visible


def flex(entries: Entries, device: torch.device | str = "cpu") -> Flex:
    """FlexAttention over the entries of a plan.

    The kernel looks the rule up in the dense mask: one read per pair instead of the five of `mask_mod`.
    """
    size, seen = len(entries), dense_mask(entries, device)

    def visible(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return seen[q, k]

    return Flex(create_block_mask(visible, None, None, size, size, device=str(device)))
