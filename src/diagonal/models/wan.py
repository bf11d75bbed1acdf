"""Wan2.1 (Wan team, 2025): a diffusion transformer over video latents, causal and bidirectional from the same weights.

A latent frame of H x W cells is N = H/2 * W/2 tokens. Each block is

    x += gate1 * self_attention(norm(x) * (1 + scale1) + shift1)
    x += cross_attention(norm3(x), text)
    x += gate2 * ffn(norm(x) * (1 + scale2) + shift2)

with shifts, scales and gates from the noise level, one set per latent frame. Whether frames see the future is no matter
of the weights: `memory` decides it. The prediction is the velocity v = noise - x0.

Checkpoints: the original ones, diffusers' folders, and the files of the Self-Forcing family (CausVid, Self-Forcing,
LongLive, Diagonal Distillation), which have the original names under `model.`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import DiffusionVariant, WeightMap
from diagonal.engine.chunks.protocols import LatentLayerMemory, LayerText, Memory, Rope, TextKV
from diagonal.engine.heads import LatentHeads, joined, rotate_pairs
from diagonal.engine.protocols import CacheSpec
from diagonal.models.layers import OpenSum, RMSNorm, add_norm, linear, open_sum, text_attention


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of a Wan model. No defaults but those that every variant shares."""

    dim: int
    ffn: int
    layers: int
    heads: int
    text_dim: int = 4096
    text_length: int = 512
    freq_dim: int = 256  # of the sinusoid that encodes the noise level
    channels: int = 16
    patch: int = 2  # latent cells per token along each side; a token is one frame deep
    eps: float = 1e-6
    theta: float = 10000.0

    def __post_init__(self) -> None:
        if self.dim % (2 * self.heads):
            raise ValueError(f"dim={self.dim} cannot be {self.heads} heads of even width")

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    def build(self) -> Wan:
        return Wan(self)


def _pairs() -> dict[str, tuple[str, ...]]:
    """Original names, without 'weight' or 'bias', and what diffusers calls them."""
    embedder = "condition_embedder"
    pairs = {
        "patch_embedding": "patch_embedding",
        "text_embedding.0": f"{embedder}.text_embedder.linear_1",
        "text_embedding.2": f"{embedder}.text_embedder.linear_2",
        "time_embedding.0": f"{embedder}.time_embedder.linear_1",
        "time_embedding.2": f"{embedder}.time_embedder.linear_2",
        "time_projection.1": f"{embedder}.time_proj",
        "blocks.{}.norm3": "blocks.{}.norm2",
        "blocks.{}.ffn.0": "blocks.{}.ffn.net.0.proj",
        "blocks.{}.ffn.2": "blocks.{}.ffn.net.2",
        "head.head": "proj_out",
    }
    for ours, theirs in (("self_attn", "attn1"), ("cross_attn", "attn2")):
        for part, other in (("q", "to_q"), ("k", "to_k"), ("v", "to_v"), ("o", "to_out.0")):
            pairs[f"blocks.{{}}.{ours}.{part}"] = f"blocks.{{}}.{theirs}.{other}"
        for norm in ("norm_q", "norm_k"):
            pairs[f"blocks.{{}}.{ours}.{norm}"] = f"blocks.{{}}.{theirs}.{norm}"
    return {f"{ours}.{{}}": (f"{theirs}.{{}}",) for ours, theirs in pairs.items()}


DIFFUSERS = {
    **_pairs(),
    "blocks.{}.modulation": ("blocks.{}.scale_shift_table",),
    "head.modulation": ("scale_shift_table",),
}


class SelfAttention(nn.Module):
    """Self-attention with q, k and v in one matrix; q and k are normed over all heads at once."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.dim, 3 * config.dim)
        self.o = nn.Linear(config.dim, config.dim)
        self.norm_q = RMSNorm(config.dim, config.eps)
        self.norm_k = RMSNorm(config.dim, config.eps)

    def forward(self, x_BSC: Tensor, rope: Rope, memory: LatentLayerMemory) -> Tensor:
        norms = (self.norm_q.weight, self.norm_k.weight, self.norm_q.eps)
        out: Tensor = self.o(memory.attend_latents(LatentHeads(self.qkv(x_BSC), self.heads, *norms, rope)))
        return out


class CrossAttention(nn.Module):
    """Attention from latents to the text, with the text's k and v in one matrix."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.q = nn.Linear(config.dim, config.dim)
        self.kv = nn.Linear(config.dim, 2 * config.dim)
        self.o = nn.Linear(config.dim, config.dim)
        self.norm_q = RMSNorm(config.dim, config.eps)
        self.norm_k = RMSNorm(config.dim, config.eps)

    def forward(self, x_BSC: Tensor, text: LayerText) -> Tensor:
        mixed = text_attention(self._heads(self.norm_q(self.q(x_BSC))), *text)
        out: Tensor = self.o(joined(mixed))
        return out

    def keys(self, text_BLC: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a text: (B, H, L, D) each."""
        k, v = self.kv(text_BLC).chunk(2, dim=-1)
        return self._heads(self.norm_k(k)), self._heads(v)

    def _heads(self, x_BSC: Tensor) -> Tensor:
        heads_BSHD: Tensor = x_BSC.unflatten(-1, (self.heads, -1))
        return heads_BSHD.transpose(1, 2)


class Block(nn.Module):
    """One layer. `changes` are shift1, gain1, gate1, shift2, gain2 and gate2, (B or 1, F or 1, 1, C) each."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.eps = config.eps
        self.modulation = nn.Parameter(torch.randn(1, 6, config.dim) / config.dim**0.5)
        self.self_attn = SelfAttention(config)
        self.norm3 = nn.LayerNorm(config.dim, config.eps)
        self.cross_attn = CrossAttention(config)
        self.ffn = nn.Sequential(
            nn.Linear(config.dim, config.ffn), nn.GELU(approximate="tanh"), nn.Linear(config.ffn, config.dim)
        )

    def forward(
        self,
        total: OpenSum,
        changes: tuple[Tensor, ...],
        rope: Rope,
        memory: LatentLayerMemory,
        text: LayerText,
    ) -> OpenSum:
        """After a layer whose last sum may still be open, and perhaps with its own left open: the kernel of the next
        norm makes both at once."""
        shift1, gain1, gate1, shift2, gain2, gate2 = changes
        x_BFNC, h = add_norm(total, gain1, shift1, self.eps)
        mixed = self.self_attn(h.flatten(1, 2), rope, memory)
        x_BFNC, h = add_norm((x_BFNC, mixed, gate1), self.norm3.weight, self.norm3.bias, self.eps)
        x_BFNC, h = add_norm((x_BFNC, self.cross_attn(h.flatten(1, 2), text), None), gain2, shift2, self.eps)
        hidden = linear(cast(nn.Linear, self.ffn[0]), h, "gelu")
        return open_sum(x_BFNC, self.ffn[2](hidden), gate2)


class Head(nn.Module):
    """From the residual to the cells of each token's patch."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.eps = config.eps
        self.modulation = nn.Parameter(torch.randn(1, 2, config.dim) / config.dim**0.5)
        self.head = nn.Linear(config.dim, config.patch**2 * config.channels)

    def forward(self, total: OpenSum, time_BFC: Tensor) -> Tensor:
        shift, scale = (self.modulation + time_BFC[:, :, None]).split(1, dim=2)
        _, h = add_norm(total, 1 + scale, shift, self.eps)
        out: Tensor = self.head(h)
        return out


class Wan(nn.Module):
    """The transformer. See `engine.protocols.DiffusionModel`."""

    weight_map = WeightMap(
        prefixes=("transformer.", "model.", ""),
        keys={
            "blocks.{}.self_attn.qkv.{}": tuple(f"blocks.{{}}.self_attn.{part}.{{}}" for part in "qkv"),
            "blocks.{}.cross_attn.kv.{}": tuple(f"blocks.{{}}.cross_attn.{part}.{{}}" for part in "kv"),
        },
        aliases=DIFFUSERS,
    )
    rotate = staticmethod(rotate_pairs)

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        dim, side = config.dim, config.patch
        self.patch_embedding = nn.Conv3d(config.channels, dim, (1, side, side), (1, side, side))
        self.text_embedding = nn.Sequential(
            nn.Linear(config.text_dim, dim), nn.GELU(approximate="tanh"), nn.Linear(dim, dim)
        )
        self.time_embedding = nn.Sequential(nn.Linear(config.freq_dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head = Head(config)

    @property
    def cache_spec(self) -> CacheSpec:
        return CacheSpec(self.config.layers, self.config.heads, self.config.head_dim, group=1)

    @property
    def _layers(self) -> Iterable[Block]:
        return cast(Iterable[Block], self.blocks)  # torch's own typing does not say of what a list is

    def embed_text(self, text_BLC: Tensor) -> TextKV:
        """Keys and values of a prompt for every layer; rows behind its end are zeros, and are attended to as such.

        It ends with its last row that is not zero, however many are given. That is found on the device: the host need
        not wait, and the prompts of a batch end where each of them does.
        """
        length, width = self.config.text_length, self.config.text_dim
        if text_BLC.ndim != 3 or text_BLC.shape[2] != width or not 1 <= text_BLC.shape[1] <= length:
            raise ValueError(
                f"prompt embeddings of shape {tuple(text_BLC.shape)} given; this model takes (batch, rows, {width}) "
                f"with 1 to {length} rows"
            )
        padded = F.pad(text_BLC.to(self.patch_embedding.weight), (0, 0, 0, length - text_BLC.shape[1]))
        places_L = torch.arange(1, length + 1, device=padded.device)
        rows_B = (padded.ne(0).any(-1) * places_L).amax(1)
        embedded = self.text_embedding(padded)
        return [(*block.cross_attn.keys(embedded), rows_B) for block in self._layers]

    def rope(self, frames_F: Tensor, rows: int, cols: int) -> Rope:
        """cos and sin (tokens, 1, pairs) of the angles position * theta^(-i / n), with a third of a head's pairs for
        rows and columns each, and the rest for time. Computed in float64, so that positions have no limit."""
        pairs, device = self.config.head_dim // 2, frames_F.device
        side = pairs // 3
        sizes = (len(frames_F), rows, cols)
        angles = []
        for axis, (count, share) in enumerate(zip(sizes, (pairs - 2 * side, side, side), strict=True)):
            places = torch.arange(count, device=device) if axis else frames_F
            steps = torch.arange(share, device=device, dtype=torch.float64) / share
            turned = places.double()[:, None] * self.config.theta**-steps
            angles.append(turned.reshape([count if one == axis else 1 for one in range(3)] + [share]))
        joined = torch.cat([part.expand(*sizes, -1) for part in angles], dim=-1).flatten(0, 2)[:, None]
        return joined.cos().float(), joined.sin().float()

    def forward(self, x_BFCHW: Tensor, level: float | Tensor, text: TextKV, rope: Rope, memory: Memory) -> Tensor:
        """The velocity. `level` is one timestep for all, or a tensor (B or 1, F or 1)."""
        x_BFNC, batch = self._patches(x_BFCHW), len(x_BFCHW)
        time_BFC, changes = self._time(level, x_BFNC)
        total: OpenSum = (x_BFNC, None, None)
        for index, block in enumerate(self._layers):
            k, v, rows = text[index]
            own = (k.expand(batch, -1, -1, -1), v.expand(batch, -1, -1, -1), rows.expand(batch))
            total = block(total, changes[index].split(1, dim=2), rope, memory.layer(index), own)
        return self._cells(self.head(total, time_BFC), x_BFCHW)

    def _time(self, level: float | Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The embedding of the level, and the changes (layers, B or 1, F or 1, 6, C) it makes in every layer."""
        if not isinstance(level, Tensor):
            level = torch.full((1, 1), level, dtype=torch.float64, device=x.device)
        half = self.config.freq_dim // 2
        steps = torch.arange(half, dtype=torch.float64, device=x.device) / half
        angles = level.double()[..., None] * 10000.0**-steps
        time_BFC = self.time_embedding(torch.cat([angles.cos(), angles.sin()], dim=-1).to(x.dtype))
        shared = self.time_projection(time_BFC).unflatten(-1, (6, -1))
        own = torch.cat([block.modulation for block in self._layers])  # all layers at once: few kernels, not some each
        changes = shared + own[:, None, None]
        gains = torch.arange(6, device=x.device) % 3 == 1  # these are 1 + scale
        return time_BFC, changes + gains.to(changes.dtype)[:, None]

    def _patches(self, x_BFCHW: Tensor) -> Tensor:
        """Tokens (B, F, N, C): the patch embedding as one matrix product, which is what a stride of the kernel's size
        makes of a convolution."""
        side, sizes = self.config.patch, x_BFCHW.shape
        if len(sizes) != 5 or sizes[2] != self.config.channels or sizes[3] % side or sizes[4] % side:
            raise ValueError(
                f"latents of shape {tuple(sizes)} given; this model takes (batch, frames, "
                f"{self.config.channels}, height, width), with height and width multiples of {side}"
            )
        weight = self.patch_embedding.weight
        cells = x_BFCHW.to(weight.dtype).unflatten(4, (-1, side)).unflatten(3, (-1, side))  # B F C h p w q
        tokens = cells.permute(0, 1, 3, 5, 2, 4, 6).flatten(4).flatten(2, 3)
        return F.linear(tokens, weight.flatten(1), self.patch_embedding.bias)

    def _cells(self, out_BFNP: Tensor, x_BFCHW: Tensor) -> Tensor:
        """Undo the patches: each token holds (row, column, channel)."""
        side, rows = self.config.patch, x_BFCHW.shape[3] // self.config.patch
        grid: Tensor = out_BFNP.unflatten(3, (side, side, -1)).unflatten(2, (rows, -1))  # B F h w p q C
        return grid.permute(0, 1, 6, 2, 4, 3, 5).reshape(x_BFCHW.shape)


def _released(config: Config, source: str) -> DiffusionVariant:
    return DiffusionVariant(
        config, vae="wan_vae/1", preview="taehv/wan", text="umt5-xxl", licence="Apache-2.0", source=source
    )


VARIANTS = {
    "1.3b": _released(Config(dim=1536, ffn=8960, layers=30, heads=12), "Wan-AI/Wan2.1-T2V-1.3B"),
    "14b": _released(Config(dim=5120, ffn=13824, layers=40, heads=40), "Wan-AI/Wan2.1-T2V-14B"),
    "tiny": DiffusionVariant(
        Config(dim=96, ffn=192, layers=2, heads=4, text_dim=48, text_length=16, freq_dim=32),
        vae="wan_vae/tiny",
        preview="taehv/tiny",
        text="hash",
        licence="Apache-2.0",
        source="none: random, for tests and demonstrations",
        random=True,
    ),
}
