"""Blocks of vision transformers (Dosovitskiy et al., 2021) that metrics look through: attention, MLP."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). `causal`: no position sees those behind it."""

    def __init__(
        self, width: int, heads: int, epsilon: float, activation: Callable[[Tensor], Tensor], causal: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.activation, self.causal = heads, activation, causal
        self.norm1, self.norm2 = nn.LayerNorm(width, epsilon), nn.LayerNorm(width, epsilon)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_NSD: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x_NSD)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x_NSD + self.proj(seen.transpose(1, 2).flatten(2))
        return cast(Tensor, x + self.fc2(self.activation(self.fc1(self.norm2(x)))))
