"""A memory that keeps attention weights: what chosen inputs of a teacher-forced pass attend to.

Kernels never make these weights, so they are computed beside what the model itself computes, which stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from diagonal.engine.attention import Plain, causal


@dataclass(frozen=True, slots=True)
class Recorder(Plain):
    """Inputs in raster order attend to those before them, as under `Causal`; of the inputs `queries_Q` each layer adds
    its weights, the mean over heads, (B, Q, S) in float32."""

    queries_Q: Tensor
    weights: list[Tensor] = field(default_factory=list)  # of each layer that ran

    def layer(self, index: int) -> Self:
        return self

    def attend(self, q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
        self.weights.append(mean_weights(q_BHSD[:, :, self.queries_Q], k_BKSD, self.queries_Q))
        return causal(q_BHSD, k_BKSD, v_BKSD)


def mean_weights(q_BHQD: Tensor, k_BKSD: Tensor, places_Q: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D)) over the keys up to each query's own place, the mean over heads: (B, Q, S).

    One head at a time: all of them together would be many times the model's own memory.
    """
    heads, width = q_BHQD.shape[1], q_BHQD.shape[3]
    group = heads // k_BKSD.shape[1]
    later = torch.arange(k_BKSD.shape[2], device=places_Q.device) > places_Q[:, None]
    total = torch.zeros((), device=q_BHQD.device)
    for head in range(heads):
        scores = q_BHQD[:, head].float() @ k_BKSD[:, head // group].float().mT / width**0.5
        total = total + scores.masked_fill(later, -torch.inf).softmax(-1)
    return total / heads
