"""Sequence parallelism of a diffusion transformer (Jacobs et al., 2023: DeepSpeed-Ulysses): every rank has some rows of
every latent frame, and in attention some heads of all of them.

    model = SequenceParallel(wan, ranks)      # called like wan, in every process alike

Before attention ranks exchange tokens for heads (one all-to-all), after it heads for tokens (another one); all else of
a layer asks for a token's own numbers alone. So the cache of a rank has its heads alone, and the weights are whole
everywhere. The velocity is gathered at the end of the call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from diagonal.catalog.variants import DiffusionConfig
from diagonal.engine.chunks.protocols import DiffusionModel, LatentLayerMemory, Memory, Rope, TextKV
from diagonal.engine.heads import LatentHeads, joined
from diagonal.engine.protocols import CacheSpec
from diagonal.engine.ranks import Ranks, shares


@dataclass(frozen=True, slots=True)
class SequenceParallel:
    """A diffusion transformer that all ranks compute together."""

    model: DiffusionModel
    ranks: Ranks

    def __post_init__(self) -> None:
        heads, world = self.model.cache_spec.kv_heads, self.ranks.world
        if heads % world:
            fit = [str(one) for one in range(2, heads + 1) if heads % one == 0]
            raise ValueError(
                f"the model has {heads} heads, which {world} GPUs cannot share evenly; sequence parallelism takes "
                f"{' or '.join(fit)} of them"
            )

    @property
    def config(self) -> DiffusionConfig:
        return self.model.config

    @property
    def cache_spec(self) -> CacheSpec:
        """Of one rank: its heads of all tokens."""
        spec = self.model.cache_spec
        return replace(spec, kv_heads=spec.kv_heads // self.ranks.world)

    def embed_text(self, text_BLC: Tensor) -> TextKV:
        return self.model.embed_text(text_BLC)

    def rope(self, frames_F: Tensor, rows: int, cols: int) -> Rope:
        return self.model.rope(frames_F, rows, cols)

    def rotate(self, x_BSHD: Tensor, rope: Rope) -> Tensor:
        return self.model.rotate(x_BSHD, rope)

    def __call__(self, x_BFCHW: Tensor, level: float | Tensor, text: TextKV, rope: Rope, memory: Memory) -> Tensor:
        """The velocity, whole in every process."""
        side, frames = self.config.patch, x_BFCHW.shape[1]
        sides = tuple(size // side for size in x_BFCHW.shape[3:])
        axis = int(sides[0] < self.ranks.world)  # rows; where there are too few, columns
        if sides[axis] < self.ranks.world:
            raise ValueError(f"{sides[0]}x{sides[1]} tokens of a frame cannot be shared by {self.ranks.world} GPUs")
        own = shares(sides[axis], self.ranks.world)
        start, count = sum(own[: self.ranks.rank]), own[self.ranks.rank]
        part = x_BFCHW.narrow(3 + axis, start * side, count * side)
        turned = tuple(
            one.view(frames, *sides, *one.shape[1:]).narrow(1 + axis, start, count).flatten(0, 2) for one in rope
        )
        tokens = tuple(one * sides[1 - axis] for one in own)
        made = self.model(part, level, text, (turned[0], turned[1]), _Exchanging(memory, self.ranks, frames, tokens))
        return self.ranks.gather(made, 3 + axis, tuple(one * side for one in own))


@dataclass(frozen=True, slots=True)
class _Exchanging:
    """A memory whose layers get all tokens of some heads, and give some tokens of all heads."""

    memory: Memory
    ranks: Ranks
    frames: int
    tokens: tuple[int, ...]  # of a frame, that each rank has

    def layer(self, index: int) -> _Layer:
        return _Layer(self.memory.layer(index), self)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer of it."""

    layer: LatentLayerMemory
    step: _Exchanging

    def attend_latents(self, heads: LatentHeads) -> Tensor:
        return joined(self.attend(*heads.split()))

    def attend(self, q_BHSD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor) -> Tensor:
        q, k, v = self._all_tokens(torch.stack([q_BHSD, k_BHSD, v_BHSD.to(q_BHSD.dtype)]))
        return self._all_heads(self.layer.attend(q, k, v)).to(q_BHSD.dtype)

    def _all_tokens(self, qkv_3BHSD: Tensor) -> Tensor:
        """Some tokens of all heads to all tokens of some heads, in the order of frames."""
        step, (three, batch, heads, _, width) = self.step, qkv_3BHSD.shape
        share = heads // step.ranks.world
        shapes = [(three, batch, share, step.frames, count, width) for count in step.tokens]
        found = step.ranks.exchange(list(qkv_3BHSD.split(share, 2)), shapes)
        return torch.cat(found, 4).flatten(3, 4)

    def _all_heads(self, mixed_BHSD: Tensor) -> Tensor:
        """All tokens of some heads to some tokens of all heads."""
        step, (batch, share, _, width) = self.step, mixed_BHSD.shape
        by_frame = mixed_BHSD.unflatten(2, (step.frames, -1))
        ends = list(accumulate(step.tokens))
        parts = [by_frame[:, :, :, end - count : end] for end, count in zip(ends, step.tokens, strict=True)]
        own = step.frames * step.tokens[step.ranks.rank]
        found = step.ranks.exchange(parts, [(batch, share, own, width)] * step.ranks.world)
        return torch.cat(found, 1)
