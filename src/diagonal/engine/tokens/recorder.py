"""A memory that keeps attention weights: what chosen inputs of a teacher-forced pass attend to.

Kernels never make these weights, so they are computed beside what the model itself computes, which stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from diagonal.engine.attention import Plain, Sees, attend, causal


@dataclass(frozen=True, slots=True)
class Recorder(Plain):
    """Inputs in raster order attend to those before them, as under `Causal`; of the inputs `queries_Q` each layer adds
    its weights, the mean over heads, (B, Q, S) in float32."""

    queries_Q: Tensor
    weights: list[Tensor] = field(default_factory=list)  # of each layer that ran
    mask_SS: Tensor | None = None  # what a sparse model lets its inputs see; None: all before them

    def layer(self, index: int) -> Self:
        return self

    def restricted(self, sees: Sees, slots_S: Tensor) -> Recorder:
        """The same, into the same list, where inputs see no more than `sees` allows."""
        return replace(self, mask_SS=(slots_S <= slots_S[:, None]) & sees(slots_S[:, None], slots_S))

    def attend(self, q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
        before = torch.arange(k_BKSD.shape[2], device=self.queries_Q.device) <= self.queries_Q[:, None]
        seen = before if self.mask_SS is None else self.mask_SS[self.queries_Q]
        self.weights.append(mean_weights(q_BHSD[:, :, self.queries_Q], k_BKSD, seen))
        sparse = self.mask_SS is not None
        return attend(q_BHSD, k_BKSD, v_BKSD, self.mask_SS) if sparse else causal(q_BHSD, k_BKSD, v_BKSD)


def mean_weights(q_BHQD: Tensor, k_BKSD: Tensor, seen_QS: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D)) over the keys that each query sees, the mean over heads: (B, Q, S).

    One head at a time: all of them together would be many times the model's own memory.
    """
    heads, width = q_BHQD.shape[1], q_BHQD.shape[3]
    group = heads // k_BKSD.shape[1]
    total = torch.zeros((), device=q_BHQD.device)
    for head in range(heads):
        scores = q_BHQD[:, head].float() @ k_BKSD[:, head // group].float().mT / width**0.5
        total = total + scores.masked_fill(~seen_QS, -torch.inf).softmax(-1)
    return total / heads
