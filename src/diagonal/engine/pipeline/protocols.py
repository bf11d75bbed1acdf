"""What the pipeline asks of a model whose batch are chunks of one video, and what its layers attend to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from diagonal.engine.heads import Rope
from diagonal.engine.protocols import CacheSpec

ChunkText = Sequence[tuple[Tensor, Tensor]]  # of each layer: keys and values (1, K, L, D) of a text without padding


class ChunkLayerMemory(Protocol):
    """What one layer attends to."""

    def attend(self, q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
        """Attend from every chunk of the batch to what it may see."""
        ...


class ChunkMemory(Protocol):
    """What the layers attend to: other chunks of the call, and cached ones."""

    def layer(self, index: int) -> ChunkLayerMemory:
        """The part of one layer."""
        ...


class ChunkModel(Protocol):
    """A transformer over chunks of latent frames that predicts the velocity dx/dt = x0 - noise, where t is 0 for noise
    and 1 for clean latents. Knows nothing of schedules, guidance or caches."""

    @property
    def config(self) -> ChunkConfig: ...
    @property
    def cache_spec(self) -> CacheSpec: ...
    @property
    def device(self) -> torch.device: ...

    def embed_text(self, text_LC: Tensor) -> ChunkText:
        """Keys and values of a text for every layer."""
        ...

    def no_text(self) -> ChunkText:
        """The same of no text."""
        ...

    def condition(self, t_B: Tensor, dropped: bool, size_B: Tensor | None = None) -> Tensor:
        """What the times of chunks, their dropped texts and the sizes of their steps are to the layers."""
        ...

    def rope(self, frames_BF: Tensor, rows: int, cols: int) -> Rope:
        """The rotation of every token of latent frames at these places."""
        ...

    def __call__(
        self, x_BFCHW: Tensor, condition_BC: Tensor, texts: Sequence[ChunkText], rope: Rope, memory: ChunkMemory
    ) -> Tensor:
        """The velocity of each chunk, (B, F, C, H, W) in float32."""
        ...


class ChunkConfig(Protocol):
    """The numbers of such a model that the pipeline needs."""

    @property
    def channels(self) -> int: ...
    @property
    def patch(self) -> int: ...
    @property
    def text_length(self) -> int: ...
    @property
    def chunk_frames(self) -> int: ...
