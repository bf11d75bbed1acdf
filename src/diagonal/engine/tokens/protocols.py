"""What decoding asks of a token model, and what its layers attend to. Suffixes: `engine.protocols`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from diagonal.engine.attention import Sees
from diagonal.engine.heads import Heads
from diagonal.engine.protocols import CacheSpec, LayerMemory


class TokenLayerMemory(LayerMemory, Protocol):
    """What one layer of a token model attends to."""

    def attend_heads(self, heads: Heads) -> Tensor:
        """The same from heads that are not normed or rotated yet; what they mixed, side by side (B, S, H * D)."""
        ...


class TokenMemory(Protocol):
    """What the layers of a token model attend to."""

    def layer(self, index: int) -> TokenLayerMemory:
        """The part of one layer."""
        ...

    def by_slot(self, make: Callable[[Tensor], tuple[Tensor, ...]], slots_S: Tensor) -> tuple[Tensor, ...]:
        """make(slots_S): what depends on the slots alone, one row for each, such as a rotation. A model asks once a
        call; a memory that serves many calls makes it for all slots once, and picks the rows."""
        ...


class SparseMemory(TokenMemory, Protocol):
    """A memory that can show a model less than came before; models whose `cache_spec` is sparse get such a one."""

    def restricted(self, sees: Sees, slots_S: Tensor) -> TokenMemory:
        """The same, where the inputs (in slots_S) see no more than `sees` allows."""
        ...


class TokenModel(Protocol):
    """A causal transformer over token ids. Knows nothing of grids, schedules or caches.

    `slots_S` are positions in the sequence; they have one more dimension in front, (B, S), where samples differ.
    """

    @property
    def cache_spec(self) -> CacheSpec: ...

    def __call__(self, tokens_BS: Tensor, slots_S: Tensor, memory: TokenMemory, keep: Tensor | None = None) -> Tensor:
        """Logits (B, kept inputs, V) of the token after each input; `keep` picks inputs, None keeps all."""
        ...


class TextModel(TokenModel, Protocol):
    """A model that a text can guide. Called as it is, it runs without one."""

    def bind(self, text_BLC: Tensor) -> TokenModel:
        """The model under a text, given as embeddings (B or 1, rows, C): what depends on it alone is computed here."""
        ...
