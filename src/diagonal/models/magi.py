"""MAGI-1 (Sand AI, 2025, arXiv:2505.13211): a diffusion transformer over chunks of video latents, several at once.

The batch of a call are chunks of one video. Each has its own noise level and its own text, and `memory` decides which
chunks it sees. With u = norm(x), a block is

    both = interleave(self_attention(u), cross_attention(u, text))
    x += post_norm(gate1 * linear(both))
    x += post_norm(gate2 * mlp(norm(x)))

so self-attention and cross-attention read the same input, and gates come before the norms. gate = tanh(linear(silu(c)))
is made of the chunk's condition c: its time t (0 noise, 1 clean), and whether its text is kept or dropped. The text
itself comes in through cross-attention alone. The prediction is the velocity dx/dt = x0 - noise: the other sign than
Wan's.

Norms of heads, post-norms and the final norm are stored less 1. Embedders, bands of the rotation and norms other than
those of a block's input are kept in float32, whatever the model is cast to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import DiffusionVariant, WeightMap
from diagonal.engine.attention import attend
from diagonal.engine.heads import Rope, joined
from diagonal.engine.pipeline.protocols import ChunkLayerMemory, ChunkMemory, ChunkText
from diagonal.engine.protocols import CacheSpec

SHARES = 8  # into which the two attentions are cut before they are interleaved
NULL_ROWS = 50  # of the learned table that stand for no text
KEPT, DROPPED = -2, -1  # rows of it that say whether the text counts
# Modules and parameters that stay in float32.
PRECISE = {
    *("embed", "time", "text_in", "row", "null", "rotation", "out_norm", "out"),
    *("q_norm", "k_norm", "post_norm1", "post_norm2"),  # of a block
}


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of a MAGI-1 model. No defaults but those that every variant shares."""

    dim: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int = 128
    gated: bool = False  # SiLU-gated MLP, else exact GELU
    copies: int = 1  # how often the latent's channels are fed
    scale: float = 1.0  # of the latents within the model
    text_dim: int = 4096
    text_length: int = 800
    freq_dim: int = 256  # of the sinusoid that encodes the time
    channels: int = 16
    patch: int = 2  # latent cells per token along each side; a token is one frame deep
    chunk_frames: int = 6
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads or self.head_dim % 8 or self.dim != self.heads * self.head_dim:
            raise ValueError(
                f"dim={self.dim} cannot be {self.heads} heads of {self.head_dim} over {self.kv_heads} of keys"
            )
        if self.dim % SHARES:
            raise ValueError(f"dim={self.dim} given; it must divide into {SHARES} shares")

    @property
    def condition_dim(self) -> int:
        return self.dim // 4

    def build(self) -> Magi:
        return Magi(self)


def _keys() -> dict[str, tuple[str, ...]]:
    """Our names, and those that are published."""
    layer = "videodit_blocks.layers.{}."
    attention = f"{layer}self_attention."
    block = {
        "norm.{}": f"{attention}linear_qkv.layer_norm.{{}}",
        "text_kv.weight": f"{attention}linear_kv_xattn.weight",
        "q_norm.{}": f"{attention}q_layernorm.{{}}",
        "k_norm.{}": f"{attention}k_layernorm.{{}}",
        "text_q_norm.{}": f"{attention}q_layernorm_xattn.{{}}",
        "text_k_norm.{}": f"{attention}k_layernorm_xattn.{{}}",
        "o.weight": f"{attention}linear_proj.weight",
        "gates.{}": f"{layer}ada_modulate_layer.proj.0.{{}}",
        "post_norm1.{}": f"{layer}self_attn_post_norm.{{}}",
        "mlp_norm.{}": f"{layer}mlp.layer_norm.{{}}",
        "up.weight": f"{layer}mlp.linear_fc1.weight",
        "down.weight": f"{layer}mlp.linear_fc2.weight",
        "post_norm2.{}": f"{layer}mlp_post_norm.{{}}",
    }
    outside = {
        "embed.weight": "x_embedder.weight",
        "time.{}": "t_embedder.mlp.{}",
        "text_in.{}": "y_embedder.y_proj_xattn.0.{}",
        "row.{}": "y_embedder.y_proj_adaln.0.{}",
        "null.weight": "y_embedder.null_caption_embedding",
        "rotation.bands": "rope.bands",
        "out_norm.{}": "videodit_blocks.final_layernorm.{}",
        "out.weight": "final_linear.linear.weight",
    }
    joined_keys = tuple(f"{attention}linear_qkv.{part}.weight" for part in ("q", "qx", "k", "v"))
    single = outside | {f"blocks.{{}}.{ours}": theirs for ours, theirs in block.items()}
    return {"blocks.{}.qqkv.weight": joined_keys} | {ours: (theirs,) for ours, theirs in single.items()}


class ShiftedNorm(nn.Module):
    """LayerNorm whose gain is stored less 1; computed and returned in the dtype of its weights."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.to(self.weight.dtype), self.weight.shape, self.weight + 1, self.bias, self.eps)


class Block(nn.Module):
    """One layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        dim, self.head_dim, self.gated = config.dim, config.head_dim, config.gated
        kv_dim = config.kv_heads * config.head_dim
        self.widths = (dim, dim, kv_dim, kv_dim)
        self.norm = nn.LayerNorm(dim, config.eps)
        self.qqkv = nn.Linear(dim, sum(self.widths), bias=False)  # queries of self- and cross-attention, keys, values
        self.text_kv = nn.Linear(dim, 2 * kv_dim, bias=False)  # keys and values, head after head
        self.q_norm, self.k_norm, self.text_q_norm, self.text_k_norm = (
            ShiftedNorm(config.head_dim, config.eps) for _ in range(4)
        )
        self.o = nn.Linear(2 * dim, dim, bias=False)
        self.gates = nn.Linear(config.condition_dim, 2 * dim)
        self.post_norm1 = ShiftedNorm(dim, config.eps)
        self.mlp_norm = nn.LayerNorm(dim, config.eps)
        self.up = nn.Linear(dim, config.ffn * (1 + config.gated), bias=False)
        self.down = nn.Linear(config.ffn, dim, bias=False)
        self.post_norm2 = ShiftedNorm(dim, config.eps)

    def forward(
        self,
        x_BSM: Tensor,
        condition_BC: Tensor,
        texts: Sequence[tuple[Tensor, Tensor]],
        rope: Rope,
        memory: ChunkLayerMemory,
    ) -> Tensor:
        gates = self.gates(F.silu(condition_BC).to(self.norm.weight.dtype))
        gate1, gate2 = torch.tanh(gates.float())[:, None].chunk(2, dim=-1)
        mixed = self.post_norm1(self.o(self._attention(self.norm(x_BSM), texts, rope, memory)) * gate1)
        x_BSM = x_BSM + mixed.to(x_BSM.dtype)
        made = self.post_norm2(self._mlp(self.mlp_norm(x_BSM)) * gate2)
        out: Tensor = x_BSM + made.to(x_BSM.dtype)
        return out

    def _attention(
        self, u_BSM: Tensor, texts: Sequence[tuple[Tensor, Tensor]], rope: Rope, memory: ChunkLayerMemory
    ) -> Tensor:
        """Both attentions, in shares one after the other."""
        q, text_q, k, v = (self._heads(part) for part in self.qqkv(u_BSM).split(self.widths, dim=-1))
        q, k = turned(self.q_norm(q), rope).to(v.dtype), turned(self.k_norm(k), rope).to(v.dtype)
        own = joined(memory.attend(q, k, v))
        asked = self.text_q_norm(text_q).to(v.dtype)
        told = [attend(one[None], *text, None) for one, text in zip(asked, texts, strict=True)]
        both = [part.unflatten(-1, (SHARES, -1)) for part in (own, joined(torch.cat(told)))]
        return torch.stack(both, dim=-2).flatten(-3)

    def _mlp(self, u_BSM: Tensor) -> Tensor:
        hidden = self.up(u_BSM)
        if self.gated:
            gate, hidden = hidden.chunk(2, dim=-1)
            hidden = F.silu(gate) * hidden
        else:
            hidden = F.gelu(hidden)
        out: Tensor = self.down(hidden)
        return out

    def keys(self, text_LM: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (1, K, L, D) of a text."""
        heads = self.text_kv(text_LM)[None].unflatten(-1, (-1, 2, self.head_dim))
        k, v = heads.permute(3, 0, 2, 1, 4)
        return self.text_k_norm(k).to(v.dtype), v

    def _heads(self, x_BSM: Tensor) -> Tensor:
        heads_BSHD: Tensor = x_BSM.unflatten(-1, (-1, self.head_dim))
        return heads_BSHD.transpose(1, 2)


class Rotation(nn.Module):
    """Rotary angles: one list of learned bands for time, rows and columns. Space is centred, and as wide as if a frame
    had 256 tokens; time counts latent frames."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.bands = nn.Parameter(10000.0 ** (-torch.arange(count) / count))

    def forward(self, frames_BF: Tensor, rows: int, cols: int) -> Rope:
        if rows < 2 or cols < 2:
            raise ValueError(f"frames of {rows}x{cols} tokens given; this model needs 2 along each side")
        side = (rows * cols / 256) ** 0.5
        i_H, j_W = (
            torch.linspace(-0.5, 0.5, count, device=frames_BF.device) * (count / side - 1) for count in (rows, cols)
        )
        places = frames_BF.float()[:, :, None, None], i_H[:, None], j_W
        shape = (*frames_BF.shape, rows, cols)
        angles = [one.expand(shape)[..., None] * self.bands for one in places]
        angles_BSA = torch.cat(angles, dim=-1).flatten(1, 3)[:, None]
        return angles_BSA.cos(), angles_BSA.sin()


class Magi(nn.Module):
    """The transformer. See `engine.pipeline.protocols.ChunkModel`."""

    weight_map = WeightMap(prefixes=("transformer.", ""), keys=_keys())

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        dim, condition, side = config.dim, config.condition_dim, config.patch
        # First, so that the first parameter has the dtype that the model was cast to.
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        patch = (1, side, side)
        self.embed = nn.Conv3d(config.copies * config.channels, dim, patch, patch, bias=False)
        self.time = nn.Sequential(nn.Linear(config.freq_dim, condition), nn.SiLU(), nn.Linear(condition, condition))
        self.text_in = nn.Linear(config.text_dim, dim)
        self.row = nn.Linear(config.text_dim, condition)
        self.null = nn.Embedding(config.text_length, config.text_dim)
        self.rotation = Rotation(config.head_dim // 8)
        self.out_norm = ShiftedNorm(dim, config.eps)
        self.out = nn.Linear(dim, side**2 * config.copies * config.channels, bias=False)

    @property
    def cache_spec(self) -> CacheSpec:
        config = self.config
        return CacheSpec(config.layers, config.kv_heads, config.head_dim, config.heads // config.kv_heads)

    @property
    def device(self) -> torch.device:
        return self._layers[0].norm.weight.device

    @property
    def _layers(self) -> Sequence[Block]:
        return cast(Sequence[Block], self.blocks)  # torch's own typing does not say of what a list is

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What every move or cast goes through: what is precise is in float32 after it, however it was stored."""
        kept = {name: one.data for name, one in self.named_parameters() if _precise(name)}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, one in self.named_parameters():
            if name in kept and one.dtype != torch.float32:
                one.data = kept[name].to(one.device, torch.float32)
        return self

    def embed_text(self, text_LC: Tensor) -> ChunkText:
        """Keys and values of a text for every layer, from the embeddings of its tokens alone."""
        length, width = self.config.text_length, self.config.text_dim
        if text_LC.ndim != 2 or text_LC.shape[1] != width or not 1 <= len(text_LC) <= length:
            raise ValueError(
                f"prompt embeddings of shape {tuple(text_LC.shape)} given; this model takes (rows, {width}) with 1 to "
                f"{length} rows"
            )
        text_LM = F.silu(self.text_in(text_LC.to(self.text_in.weight.dtype))).to(self._dtype)
        return [block.keys(text_LM) for block in self._layers]

    def no_text(self) -> ChunkText:
        """The same of no text."""
        return self.embed_text(self.null.weight[:NULL_ROWS])

    def condition(self, t_B: Tensor, dropped: bool, size_B: Tensor | None = None) -> Tensor:
        """The condition (B, C) of chunks at times t, whose text is kept or dropped; a distilled model is also told the
        size of its steps."""
        row_C = self.row(self.null.weight[DROPPED if dropped else KEPT])
        times = [t_B] if size_B is None else [t_B, size_B]
        out: Tensor = torch.stack([self._time(one) for one in times]).sum(0) + row_C
        return out

    def rope(self, frames_BF: Tensor, rows: int, cols: int) -> Rope:
        """cos and sin (B, 1, tokens, angles) for latent frames at these places."""
        out: Rope = self.rotation(frames_BF, rows, cols)
        return out

    def forward(
        self, x_BFCHW: Tensor, condition_BC: Tensor, texts: Sequence[ChunkText], rope: Rope, memory: ChunkMemory
    ) -> Tensor:
        """The velocity of each chunk, (B, F, C, H, W)."""
        x_BSM = self._tokens(x_BFCHW).to(self._dtype)
        for index, block in enumerate(self._layers):
            x_BSM = block(x_BSM, condition_BC, [text[index] for text in texts], rope, memory.layer(index))
        return self._cells(self.out(self.out_norm(x_BSM).to(self.out.weight.dtype)), x_BFCHW)

    @property
    def _dtype(self) -> torch.dtype:
        """Of the residual."""
        return self._layers[0].norm.weight.dtype

    def _time(self, t_B: Tensor) -> Tensor:
        half = self.config.freq_dim // 2
        steps = -math.log(10000) * torch.arange(half, device=t_B.device, dtype=torch.float32) / half
        angles = 1000 * t_B.float()[:, None] * steps.exp()  # rounded as the released model rounds it
        waves = torch.cat([angles.cos(), angles.sin()], dim=-1)
        out: Tensor = self.time(waves.to(cast(nn.Linear, self.time[0]).weight.dtype))
        return out

    def _tokens(self, x_BFCHW: Tensor) -> Tensor:
        """Tokens (B, S, M) in the order frame, row, column."""
        side, copies, sizes = self.config.patch, self.config.copies, tuple(x_BFCHW.shape)
        if len(sizes) != 5 or sizes[2] != self.config.channels or sizes[3] % side or sizes[4] % side:
            raise ValueError(
                f"latents of shape {sizes} given; this model takes (chunks, frames, {self.config.channels}, height, "
                f"width), with height and width multiples of {side}"
            )
        weight = self.embed.weight
        cells = (x_BFCHW * self.config.scale).to(weight.dtype).repeat(1, 1, copies, 1, 1)
        patches = cells.unflatten(4, (-1, side)).unflatten(3, (-1, side))  # B F C h p w q
        return F.linear(patches.permute(0, 1, 3, 5, 2, 4, 6).flatten(4).flatten(1, 3), weight.flatten(1))

    def _cells(self, out_BSP: Tensor, x_BFCHW: Tensor) -> Tensor:
        """Undo the patches: each token holds (row, column, channel), and of copies the first counts."""
        side, (batch, frames, channels, height, width) = self.config.patch, x_BFCHW.shape
        grid = out_BSP.reshape(batch, frames, height // side, width // side, side, side, -1)[..., :channels]
        cells = grid.permute(0, 1, 6, 2, 4, 3, 5).reshape(x_BFCHW.shape)
        return cells.float() / self.config.scale


def turned(x_BHSD: Tensor, rope: Rope) -> Tensor:
    """Rotary embedding over the pairs (x[i], x[i + A]) of the first 2A numbers; the others stay."""
    cos, sin = rope
    count = cos.shape[-1]
    first, second, rest = x_BHSD.split((count, count, x_BHSD.shape[-1] - 2 * count), dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def _precise(name: str) -> bool:
    parts = name.split(".")
    return (parts[2] if parts[0] == "blocks" else parts[0]) in PRECISE


def _released(config: Config, size: tuple[int, int], preset: str) -> DiffusionVariant:
    return DiffusionVariant(
        config,
        vae="magi/vae",
        preview="",
        text="t5-v1.1-xxl",
        licence="Apache-2.0",
        source="sand-ai/MAGI-1",
        fps=24,
        size=size,
        frames=96,
        preset=preset,
        pipelined=True,
    )


VARIANTS = {
    "4.5b": _released(Config(dim=3072, ffn=12288, layers=34, heads=24, kv_heads=8), (720, 720), "magi"),
    "24b": _released(
        Config(dim=6144, ffn=16384, layers=48, heads=48, kv_heads=8, gated=True, copies=2, scale=0.1),
        (720, 1280),
        "magi-24b",
    ),
    "tiny": DiffusionVariant(
        Config(dim=64, ffn=128, layers=2, heads=4, kv_heads=2, head_dim=16, text_dim=48, text_length=16),
        vae="magi/tiny",
        preview="",
        text="hash",
        licence="Apache-2.0",
        source="none: random, for tests and demonstrations",
        fps=24,
        size=(32, 48),
        frames=48,
        preset="magi-distilled",
        random=True,
        pipelined=True,
    ),
}
