"""What the queries of one decoding step see in the cache, as tensors, and attention under that rule in plain torch.

`attend_reference` is the slow twin of `attention.attend`: the same call, no Triton, any device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Visibility:
    """The rule of one step. All of it lies on the device, so that a captured graph serves every step of its width.

    `slots_S` (int32 or int64) is the slot of each query; a negative one marks a padding row, which sees nothing.
    `fed_L` (int32) is the step that first writes each slot. `step` and `extent` (int32, one element each) are the
    current step and the number of slots after which nothing was written yet.
    """

    slots_S: Tensor
    fed_L: Tensor
    step: Tensor
    extent: Tensor

    def mask(self) -> Tensor:
        """The rule as a matrix (S, L): True where a query sees a slot."""
        keys_L = torch.arange(len(self.fed_L), device=self.fed_L.device)
        written_L = (keys_L < self.extent) & (self.fed_L <= self.step)
        return written_L & (keys_L <= self.slots_S[:, None])


def attend_reference(q_BHSD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor, seen: Visibility) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over what each query sees, (B, H, S, D); zeros for a query that sees nothing.

    Query head h reads key head h // (H // K). Slots that nobody sees may hold anything, NaN included.
    """
    mask_SL = seen.mask()
    empty_L1 = ~mask_SL.any(0)[:, None]
    k_BKLD, v_BKLD = k_BKLD.masked_fill(empty_L1, 0), v_BKLD.masked_fill(empty_L1, 0)
    q_BKGSD = q_BHSD.unflatten(1, (k_BKLD.shape[1], -1))
    scores = torch.einsum("bkgsd,bkld->bkgsl", q_BKGSD, k_BKLD) * q_BHSD.shape[-1] ** -0.5
    # A row of nothing but -inf has the softmax NaN: it is the row that sees nothing, and gets weights of 0.
    weights = scores.masked_fill(~mask_SL, -torch.inf).softmax(-1).nan_to_num(0.0)
    mixed: Tensor = torch.einsum("bkgsl,bkld->bkgsd", weights, v_BKLD)
    return mixed.flatten(1, 2)
