"""What the engine asks of every transformer.

Shape suffixes used throughout: B batch, S inputs of one call, L sequence positions, V vocabulary, H heads,
K key/value heads, D head width, M model width, T frames, C channels. In diffusion models: F latent frames, N tokens of
a latent frame, C channels (of a latent, or of the model).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The size of a key/value cache, apart from batch and length."""

    layers: int
    kv_heads: int
    head_dim: int
    group: int  # query heads that share a key/value head
    sparse: bool = False  # inputs see a part of what came before, by a rule of the model's own (`restricted`)


class LayerMemory(Protocol):
    """What one layer attends to."""

    def attend(self, q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
        """Remember the new keys and values, and attend from every query to what it may see."""
        ...
