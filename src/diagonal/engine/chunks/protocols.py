"""What denoising asks of a diffusion transformer, and what its layers attend to. Suffixes: `engine.protocols`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from diagonal.catalog.variants import DiffusionConfig
from diagonal.engine.heads import LatentHeads
from diagonal.engine.protocols import CacheSpec, LayerMemory
from diagonal.planning.lag import Part


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


class Noise(Protocol):
    """Where random numbers come from: standard normal, the same whenever chunk and step are the same."""

    def __call__(self, chunk: int, step: int, shape: tuple[int, ...]) -> Tensor:
        """Of this shape. Step 0 is what a chunk starts from, step i what its i-th level is noised with; the two steps
        behind its last level are for its context, and for the recached window before it."""
        ...


@dataclass(frozen=True, slots=True)
class Shown:
    """A chunk, or latents that are given, as a call shows them to the model: at the level of `part`."""

    part: Part
    start: int  # its first latent frame, counted from the start of the video
    x_BFCHW: Tensor

    @property
    def frames(self) -> int:
        return self.x_BFCHW.shape[1]


class Denoiser(Protocol):
    """A model with the texts and the caches of one video, as the denoising loop asks it: chunks in, velocities out.

    What it computes for an iteration is its own matter: one call of a transformer, one with the prompt and one without,
    three. So are its caches: which parts are finished chunks, and what each part sees, stands in the parts.
    """

    @property
    def batch(self) -> int:
        """Videos that are made together."""
        ...

    @property
    def device(self) -> torch.device:
        """Where latents are computed."""
        ...

    @property
    def channels(self) -> int:
        """Channels of a latent."""
        ...

    @property
    def calls(self) -> int:
        """Calls of the model so far."""
        ...

    @property
    def window(self) -> int:
        """The newest latent frames that may have to be shown again when the text changes; 0: none."""
        ...

    def prompt(self, chunk: int, text_BLC: Tensor) -> None:
        """Another text from this chunk on."""
        ...

    def velocities(self, shown: Sequence[Shown], carries: bool) -> Sequence[Tensor]:
        """The velocity v = noise - x0 of each, (B, F, C, H, W) in float32. They follow one another in the video, the
        oldest first. `carries`: it is to be differentiated."""
        ...

    def forget(self, end: int) -> int:
        """The text changed, and `end` latent frames are done: how many of the newest ones are to be shown again, clean
        or at their context level, in one call."""
        ...
