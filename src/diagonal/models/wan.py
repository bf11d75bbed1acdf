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

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.engine.protocols import CacheSpec, DiffusionVariant, LayerMemory, Memory, Rope, TextKV, WeightMap
from diagonal.models.layers import RMSNorm


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


def rotate(x_BSHD: Tensor, rope: Rope) -> Tensor:
    """Rotary embedding over pairs (x[2i], x[2i + 1]), in float32."""
    cos, sin = rope
    even, odd = x_BSHD.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    return turned.flatten(-2).to(x_BSHD.dtype)


class SelfAttention(nn.Module):
    """The projections of self-attention, with q, k and v in one matrix; q and k are normed over all heads at once."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.dim, 3 * config.dim)
        self.o = nn.Linear(config.dim, config.dim)
        self.norm_q = RMSNorm(config.dim, config.eps)
        self.norm_k = RMSNorm(config.dim, config.eps)

    def inputs(self, x_BSC: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values: (B, H, S, D) each."""
        q, k, v = self.qkv(x_BSC).chunk(3, dim=-1)
        q_BSHD, k_BSHD, v_BSHD = (y.unflatten(-1, (self.heads, -1)) for y in (self.norm_q(q), self.norm_k(k), v))
        return rotate(q_BSHD, rope).transpose(1, 2), rotate(k_BSHD, rope).transpose(1, 2), v_BSHD.transpose(1, 2)


class CrossAttention(nn.Module):
    """The projections of attention from latents to the text, with the text's k and v in one matrix."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.q = nn.Linear(config.dim, config.dim)
        self.kv = nn.Linear(config.dim, 2 * config.dim)
        self.o = nn.Linear(config.dim, config.dim)
        self.norm_q = RMSNorm(config.dim, config.eps)
        self.norm_k = RMSNorm(config.dim, config.eps)

    def queries(self, x_BSC: Tensor) -> Tensor:
        """Queries (B, H, S, D) of latents."""
        return self._heads(self.norm_q(self.q(x_BSC)))

    def keys(self, text_BLC: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a text: (B, H, L, D) each."""
        k, v = self.kv(text_BLC).chunk(2, dim=-1)
        return self._heads(self.norm_k(k)), self._heads(v)

    def _heads(self, x_BSC: Tensor) -> Tensor:
        heads_BSHD: Tensor = x_BSC.unflatten(-1, (self.heads, -1))
        return heads_BSHD.transpose(1, 2)


class Block(nn.Module):
    """One layer, in parts around the two attentions: each is plain arithmetic that a compiler can take whole.

    `changes` are shift1, scale1, gate1, shift2, scale2 and gate2, (B or 1, F or 1, 1, C) each.
    """

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

    def before(self, x_BFNC: Tensor, changes: tuple[Tensor, ...], rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """From the residual to what self-attention takes."""
        return self.self_attn.inputs(_modulate(x_BFNC, changes[0], changes[1], self.eps).flatten(1, 2), rope)

    def between(self, x_BFNC: Tensor, mixed_BHSD: Tensor, changes: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """From self-attention to the residual, and the queries of cross-attention."""
        x_BFNC = x_BFNC + changes[2] * self.self_attn.o(_merge(mixed_BHSD, x_BFNC))
        return x_BFNC, self.cross_attn.queries(self.norm3(x_BFNC).flatten(1, 2))

    def after(self, x_BFNC: Tensor, mixed_BHSD: Tensor, changes: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """From cross-attention to the residual, and what the feed-forward layer takes."""
        x_BFNC = x_BFNC + self.cross_attn.o(_merge(mixed_BHSD, x_BFNC))
        return x_BFNC, _modulate(x_BFNC, changes[3], changes[4], self.eps)

    def hidden(self, x_BFNC: Tensor) -> Tensor:
        """The first half of the feed-forward layer. On a GPU, where no gradient is asked for, GELU is part of the
        product: no further pass over its large result."""
        first = cast(nn.Linear, self.ffn[0])
        if not x_BFNC.is_cuda or torch.is_grad_enabled():
            out: Tensor = self.ffn[1](first(x_BFNC))
            return out
        flat = torch._addmm_activation(first.bias, x_BFNC.flatten(0, -2), first.weight.t(), use_gelu=True)
        return cast(Tensor, flat.unflatten(0, x_BFNC.shape[:-1]))

    def last(self, x_BFNC: Tensor, hidden_BFNE: Tensor, changes: tuple[Tensor, ...]) -> Tensor:
        """The second half of it, to the residual."""
        out: Tensor = x_BFNC + changes[5] * self.ffn[2](hidden_BFNE)
        return out

    def forward(
        self,
        x_BFNC: Tensor,
        changes: tuple[Tensor, ...],
        rope: Rope,
        memory: LayerMemory,
        text: tuple[Tensor, Tensor],
    ) -> Tensor:
        q, k, v = self.before(x_BFNC, changes, rope)
        x_BFNC, q = self.between(x_BFNC, memory.attend(q, k, v), changes)
        x_BFNC, h = self.after(x_BFNC, F.scaled_dot_product_attention(q, *text), changes)
        return self.last(x_BFNC, self.hidden(h), changes)


def _compiled(part: Callable[..., Any], frames: int) -> Callable[..., Any]:
    """A part of a block, compiled for one number of frames; all blocks share what is compiled."""
    fast = torch.compile(part, dynamic=False)

    def call(x_BFNC: Tensor, *rest: Any) -> Any:
        return (fast if x_BFNC.shape[1] == frames else part)(x_BFNC, *rest)

    return call


def _modulate(x_BFNC: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x_BFNC, x_BFNC.shape[-1:], eps=eps) * (1 + scale) + shift


def _merge(mixed_BHSD: Tensor, x_BFNC: Tensor) -> Tensor:
    return mixed_BHSD.transpose(1, 2).reshape(x_BFNC.shape)


class Head(nn.Module):
    """From the residual to the cells of each token's patch."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.eps = config.eps
        self.modulation = nn.Parameter(torch.randn(1, 2, config.dim) / config.dim**0.5)
        self.head = nn.Linear(config.dim, config.patch**2 * config.channels)

    def forward(self, x_BFNC: Tensor, time_BFC: Tensor) -> Tensor:
        shift, scale = (self.modulation + time_BFC[:, :, None]).split(1, dim=2)
        out: Tensor = self.head(_modulate(x_BFNC, shift, scale, self.eps))
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
    rotate = staticmethod(rotate)

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
        self._compiled_for: int | None = None  # latent frames of a call

    @property
    def cache_spec(self) -> CacheSpec:
        return CacheSpec(self.config.layers, self.config.heads, self.config.head_dim, group=1)

    @property
    def _layers(self) -> Iterable[Block]:
        return cast(Iterable[Block], self.blocks)  # torch's own typing does not say of what a list is

    def embed_text(self, text_BLC: Tensor) -> TextKV:
        """Keys and values of a prompt for every layer; rows behind its end are zeros, and are attended to as such."""
        length, width = self.config.text_length, self.config.text_dim
        if text_BLC.ndim != 3 or text_BLC.shape[2] != width or not 1 <= text_BLC.shape[1] <= length:
            raise ValueError(
                f"prompt embeddings of shape {tuple(text_BLC.shape)} given; this model takes (batch, rows, {width}) "
                f"with 1 to {length} rows"
            )
        padded = F.pad(text_BLC.to(self.patch_embedding.weight), (0, 0, 0, length - text_BLC.shape[1]))
        embedded = self.text_embedding(padded)
        return [block.cross_attn.keys(embedded) for block in self._layers]

    def compile_parts(self, frames: int | None) -> None:
        """Compile what lies between the attentions, for calls of so many latent frames; None undoes it. Other calls,
        such as that for a window under a new text, stay as they are: they are over before a compiler is."""
        if frames == self._compiled_for:
            return
        self._compiled_for = frames
        for block in self._layers:
            for name in ("before", "between", "after", "last"):
                vars(block).pop(name, None)
                if frames is not None:
                    setattr(block, name, _compiled(getattr(block, name), frames))

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
        for index, block in enumerate(self._layers):
            k, v = (part.expand(batch, -1, -1, -1) for part in text[index])
            x_BFNC = block(x_BFNC, changes[index].split(1, dim=2), rope, memory.layer(index), (k, v))
        return self._cells(self.head(x_BFNC, time_BFC), x_BFCHW)

    def _time(self, level: float | Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The embedding of the level, and the changes (layers, B or 1, F or 1, 6, C) it makes in every layer."""
        if not isinstance(level, Tensor):
            level = torch.full((1, 1), level, dtype=torch.float64, device=x.device)
        half = self.config.freq_dim // 2
        steps = torch.arange(half, dtype=torch.float64, device=x.device) / half
        angles = level.double()[..., None] * 10000.0**-steps
        time_BFC = self.time_embedding(torch.cat([angles.cos(), angles.sin()], dim=-1).to(x.dtype))
        shared = self.time_projection(time_BFC).unflatten(-1, (6, -1))
        own = torch.cat([block.modulation for block in self._layers])  # all layers at once: two kernels, not two each
        return time_BFC, shared + own[:, None, None]

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
