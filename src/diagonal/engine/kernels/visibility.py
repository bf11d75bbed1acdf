"""What the queries of one decoding step see in the cache, as tensors, and attention under that rule in plain torch.

`attend_reference` is the reference of `select.decode_attention`: the same call, on any device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 64  # slots that kernels read at a time; caches are whole blocks
NOWHERE = 2**31 - 1  # behind every slot


def whole_blocks(length: int) -> int:
    """Slots of a cache for so many positions."""
    return -(-length // BLOCK) * BLOCK


@dataclass(frozen=True, slots=True)
class Visibility:
    """The rule of one step. All of it lies on the device, so that a captured graph serves every step of its width.

    `slots_S` is the slot of each query; a negative one marks a padding row, which sees nothing. `needed_L` is the least
    slot of a query that sees each slot: its own, or NOWHERE if it is not written. Two counts of blocks (one element
    each) save work: all queries but padding see all of the first `whole` blocks, written before this step, so nobody
    need look at their slots one by one, nor wait for what the step writes; and from block `extent` on nothing is
    written. All are int32 or int64.
    """

    slots_S: Tensor
    needed_L: Tensor
    whole: Tensor
    extent: Tensor

    def mask(self) -> Tensor:
        """The rule as a matrix (S, L): True where a query sees a slot."""
        return self.needed_L <= self.slots_S[:, None]


def attend_reference(q_BHSD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor, seen: Visibility) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over what each query sees, (B, H, S, D); zeros for a query that sees nothing.

    Query head h reads key head h // (H // K).
    """
    mask_SL = seen.mask()
    q_BKGSD = q_BHSD.unflatten(1, (k_BKLD.shape[1], -1))
    scores = torch.einsum("bkgsd,bkld->bkgsl", q_BKGSD, k_BKLD) * q_BHSD.shape[-1] ** -0.5
    # A row of nothing but -inf has the softmax NaN: it is the row that sees nothing, and gets weights of 0.
    weights = scores.masked_fill(~mask_SL, -torch.inf).softmax(-1).nan_to_num(0.0)
    mixed: Tensor = torch.einsum("bkgsl,bkld->bkgsd", weights, v_BKLD)
    return mixed.flatten(1, 2)
