"""What the queries of one decoding step see in the cache, as tensors, and attention under that rule in plain torch.

`attend_reference` is the reference of `select.decode_attention`: the same call, on any device. `attend_slots` is what
runs where there are no kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diagonal.engine.attention import attend

BLOCK = 64  # slots that kernels read at a time; caches are whole blocks
NOWHERE = 2**31 - 1  # needed: behind every query
EVERYBODY = -(2**29)  # needed: before every query but padding
PADDING = -(2**31)  # the slot of a query that is padding; so is every one before EVERYBODY


def whole_blocks(length: int) -> int:
    """Slots of a cache for so many positions."""
    return -(-length // BLOCK) * BLOCK


def sample_stride(numbers: Tensor) -> int:
    """Of a step's numbers, for kernels: from those of a sample to those of the next one, 0 where all share them."""
    return 0 if numbers.ndim == 1 else numbers.stride(0)


@dataclass(frozen=True, slots=True)
class Visibility:
    """The rule of one step. All of it lies on the device, so that a captured graph serves every step of its width.

    Query s sees slot l iff `needed_L[l] <= slots_S[s]`. `slots_S` is the slot of each query; PADDING marks one that
    sees nothing. `needed_L` is the least slot of a query that sees each slot: its own, NOWHERE if it is not written, or
    EVERYBODY. Both count in one numbering, which may begin anywhere: numbers may be negative. Two counts of blocks (one
    element each) save work: all queries but padding see all of the first `whole` blocks, written before this step, so
    nobody need look at their slots one by one, nor wait for what the step writes; and from block `extent` on nothing is
    written. All are int32 or int64.

    Each of the four may differ from sample to sample, and then has one more dimension in front: (B, S), (B, L), (B, 1).
    `rows_B` (int64) are the rows of the cache (N, K, L, D) that the samples have; None: sample b has row b.
    """

    slots_S: Tensor
    needed_L: Tensor
    whole: Tensor
    extent: Tensor
    rows_B: Tensor | None = None

    def mask(self) -> Tensor:
        """The rule as a matrix (S, L), or (B, S, L) where samples differ: True where a query sees a slot."""
        return self.needed_L[..., None, :] <= self.slots_S[..., None]

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """From a sample's slots, needed ones, `whole` and `extent` to those of the next sample."""
        slots, needed, whole, extent = map(sample_stride, (self.slots_S, self.needed_L, self.whole, self.extent))
        return slots, needed, whole, extent

    @property
    def shared(self) -> bool:
        """Whether one rule is that of all samples."""
        return not any(self.strides) and self.rows_B is None

    def of(self, sample: int) -> Visibility:
        """The rule of one sample, which has row 0 of the cache."""
        slots, needed, whole, extent = (
            one if one.ndim == 1 else one[sample] for one in (self.slots_S, self.needed_L, self.whole, self.extent)
        )
        return Visibility(slots, needed, whole, extent)


def attend_reference(q_BHSD: Tensor, k_NKLD: Tensor, v_NKLD: Tensor, seen: Visibility) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over what each query sees, (B, H, S, D); zeros for a query that sees nothing.

    Query head h reads key head h // (H // K).
    """
    k_BKLD, v_BKLD = (one if seen.rows_B is None else one[seen.rows_B] for one in (k_NKLD, v_NKLD))
    mask = seen.mask()
    mask = mask if mask.ndim == 2 else mask[:, None, None]
    q_BKGSD = q_BHSD.unflatten(1, (k_BKLD.shape[1], -1))
    scores = torch.einsum("bkgsd,bkld->bkgsl", q_BKGSD, k_BKLD) * q_BHSD.shape[-1] ** -0.5
    # A row of nothing but -inf has the softmax NaN: it is the row that sees nothing, and gets weights of 0.
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0.0)
    mixed: Tensor = torch.einsum("bkgsl,bkld->bkgsd", weights, v_BKLD)
    return mixed.flatten(1, 2)


def attend_slots(q_BHSD: Tensor, k_NKLD: Tensor, v_NKLD: Tensor, seen: Visibility) -> Tensor:
    """The same by PyTorch's attention over no more slots than are written. It asks how many these are, which is free on
    a CPU alone; samples whose rules differ are attended with one after the other."""
    if seen.shared:
        return _attend_extent(q_BHSD, k_NKLD, v_NKLD, seen)
    rows = range(len(q_BHSD)) if seen.rows_B is None else seen.rows_B.tolist()
    parts = [
        _attend_extent(q_BHSD[b : b + 1], k_NKLD[row : row + 1], v_NKLD[row : row + 1], seen.of(b))
        for b, row in enumerate(rows)
    ]
    return torch.cat(parts)


def _attend_extent(q_BHSD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor, seen: Visibility) -> Tensor:
    end = int(seen.extent) * BLOCK
    if end == 0:
        return torch.zeros_like(q_BHSD)
    mask_SL = seen.needed_L[:end] <= seen.slots_S[:, None]
    mixed = attend(q_BHSD, k_BKLD[:, :, :end], v_BKLD[:, :, :end], mask_SL)
    return mixed.masked_fill(~mask_SL.any(1)[:, None], 0.0)  # of a query that sees nothing SDPA may make NaN
