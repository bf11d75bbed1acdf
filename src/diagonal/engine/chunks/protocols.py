"""What denoising asks of a diffusion transformer, and what its layers attend to. Suffixes: `engine.protocols`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from diagonal.catalog.variants import DiffusionConfig
from diagonal.engine.heads import LatentHeads
from diagonal.engine.protocols import CacheSpec, LayerMemory


class LatentLayerMemory(LayerMemory, Protocol):
    """What one layer of a diffusion transformer attends to."""

    def attend_latents(self, heads: LatentHeads) -> Tensor:
        """The same from heads that are not normed or rotated yet; what they mixed, side by side (B, S, H * D)."""
        ...


class Memory(Protocol):
    """What the layers of a diffusion transformer attend to: a cache, or the other inputs."""

    def layer(self, index: int) -> LatentLayerMemory:
        """The part of one layer."""
        ...


Rope = tuple[Tensor, Tensor]  # cos and sin of the angles by which pairs of a head are turned
LayerText = tuple[Tensor, Tensor, Tensor]
TextKV = Sequence[LayerText]  # of each layer: keys and values of the text, (B or 1, H, L, D), and how many of its rows
# are real, (B or 1,) on the device. The others are padding: all alike, and attended to


class DiffusionModel(Protocol):
    """A transformer over latent frames that predicts the velocity v = noise - x0. Knows nothing of schedules or caches.

    What depends on the prompt alone (`embed_text`) or on the place alone (`rope`) is computed once and passed in.
    """

    @property
    def config(self) -> DiffusionConfig: ...
    @property
    def cache_spec(self) -> CacheSpec: ...

    def embed_text(self, text_BLC: Tensor) -> TextKV:
        """Keys and values of a prompt for every layer, and how many rows of it are no padding."""
        ...

    def rope(self, frames_F: Tensor, rows: int, cols: int) -> Rope:
        """The rotation of every token of latent frames with these positions."""
        ...

    def rotate(self, x_BSHD: Tensor, rope: Rope) -> Tensor:
        """Turn queries or keys; used by the engine to move keys that are cached already."""
        ...

    def __call__(self, x_BFCHW: Tensor, level: float | Tensor, text: TextKV, rope: Rope, memory: Memory) -> Tensor:
        """The velocity (B, F, C, H, W). `level` is a timestep in [0, 1000], or one per sample and frame."""
        ...
