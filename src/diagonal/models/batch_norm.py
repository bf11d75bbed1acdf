"""Batch norm with the statistics of training, for networks that only look."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FrozenBatchNorm(nn.Module):
    """It never trains, so it has no counter of batches: files do not always hold one."""

    def __init__(self, channels: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = self.get_buffer("running_mean"), self.get_buffer("running_var")
        return F.batch_norm(x, mean, variance, self.weight, self.bias, eps=self.epsilon)
