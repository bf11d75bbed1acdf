"""Cosmos: NVIDIA's autoregressive world foundation models (2025), LLaMA-like decoders over a video's latent tokens.

Positions are (frame, row, column): rotary embedding in three axes. The two text models (5B, 13B) also begin with a
start token, add an absolute position before every layer, and attend to T5 embeddings of a text in every layer.

Checkpoints: nvidia/Cosmos-Predict1-{4B,5B-Video2World,12B,13B-Video2World}; docs/cosmos.md says how to get them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import TensorParallel, Variant, WeightMap
from diagonal.engine.heads import HeadNorm, Heads, Rope, cos_sin, frequencies, joined
from diagonal.engine.protocols import CacheSpec
from diagonal.engine.tokens.protocols import TokenLayerMemory, TokenMemory
from diagonal.models.layers import (
    RMSNorm,
    SwiGLU,
    add_linear,
    kept,
    look_up,
    norm_linear,
    norm_linear_deferred,
)
from diagonal.planning.sampling import Sampling

LARGEST = (40, 64)  # rows and columns of the frames that the published models were trained on

TextKV = tuple[tuple[Tensor, Tensor], ...]  # keys and values (B, K, L, D) of a text, one pair per layer


@dataclass(frozen=True, slots=True)
class Yarn:
    """How rotary frequencies are stretched to grids beyond those of the first training stage (Peng et al., 2023)."""

    scale: float = 2.0
    fast: float = 4.0  # a frequency with so many turns over the axis is kept
    slow: float = 1.0  # one with so few is divided by the scale; between them, a blend
    frames: int = 3  # the axes of the first stage: frames, and rows for both sides of a frame
    rows: int = 40

    def stretch(self, freqs: Tensor, length: int) -> Tensor:
        """Blend each frequency between itself and itself over the scale, by its turns over `length` places."""
        blend = ((freqs * length / (2 * math.pi) - self.slow) / (self.fast - self.slow)).clamp(0, 1)
        return freqs * ((1 - blend) / self.scale + blend)


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of a Cosmos model. `frames` are latent ones: the first holds one picture, each later one eight."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    frames: int = 5
    reference_frames: int = 2
    rows: int = 40
    cols: int = 64
    codebook: int = 64000
    theta: float = 500000.0
    eps: float = 1e-5
    yarn: Yarn | None = None
    text: int = 0  # width of text embeddings; 0: no start token, no absolute positions and no text
    text_length: int = 512  # rows of text embeddings, padding included: all of them are attended to

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} key/value heads evenly")
        if not (1 <= self.rows <= LARGEST[0] and 1 <= self.cols <= LARGEST[1]):
            raise ValueError(
                f"frames of {self.rows}x{self.cols} tokens given; Cosmos knows positions of up to "
                f"{LARGEST[0]} rows and {LARGEST[1]} columns: make the frames smaller"
            )

    @property
    def suffix(self) -> int:
        """No actions: frames follow each other directly."""
        return 0

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """The text models' start token has the first id after the codebook."""
        return (self.codebook,) if self.text else ()

    @property
    def vocab(self) -> int:
        """Rows of the embedding: ids that may be fed, rounded up to a multiple of 64. The head has only image ids."""
        return -(-(self.codebook + len(self.prefix_ids)) // 64) * 64

    def valid_ids(self) -> list[tuple[int, int]]:
        """Every image id, everywhere."""
        return [(0, self.codebook)] * (self.rows * self.cols)

    def places(self, slots_S: Tensor) -> tuple[Tensor, Tensor]:
        """Frame, row and column of each slot, (3, S) in float32, and which slots are cells of a frame at all.

        The start token's coordinates are zero.
        """
        cells_S = slots_S - len(self.prefix_ids)
        inside_S = cells_S >= 0
        side = cells_S % (self.rows * self.cols)
        axes = [cells_S // (self.rows * self.cols), side // self.cols, side % self.cols]
        return (torch.stack(axes) * inside_S).float(), inside_S

    def build(self) -> Cosmos:
        return Cosmos(self)


def split(width: int) -> tuple[int, int, int]:
    """Channels for frame, row and column: a third each for the sides, an even number, and the rest for time."""
    side = width // 6 * 2
    return width - 2 * side, side, side


def rope_3d(places_3S: Tensor, config: Config) -> Rope:
    """cos and sin (S, D) of the angles coordinate * theta^(-2i/d), the three axes one after the other."""
    angles = []
    for axis, (place_S, width) in enumerate(zip(places_3S, split(config.head_dim), strict=True)):
        freqs = frequencies(width, config.theta, place_S.device)
        if config.yarn is not None:
            freqs = config.yarn.stretch(freqs, config.yarn.rows if axis else config.yarn.frames)
        angles.append(place_S[..., None] * freqs)
    return cos_sin(torch.cat(angles, dim=-1))


def sines_3d(places_3S: Tensor, width: int) -> Tensor:
    """Absolute positions (S, M): for each axis sin and cos of coordinate * 10000^(-2i/d)."""
    parts = []
    for place_S, part in zip(places_3S, split(width), strict=True):
        angles = place_S[..., None] * frequencies(part, 10000.0, place_S.device)
        parts += [angles.sin(), angles.cos()]
    return torch.cat(parts, dim=-1)


class Attention(nn.Module):
    """Grouped-query self-attention with q, k and v in one matrix; queries and keys are normalised, then rotated."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.kv_heads, self.head_dim = config.kv_heads, config.head_dim
        self.qkv = nn.Linear(config.width, (config.heads + 2 * config.kv_heads) * config.head_dim, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.eps)
        self.k_norm = RMSNorm(config.head_dim, config.eps)
        self.out = nn.Linear(config.heads * config.head_dim, config.width, bias=False)

    def forward(
        self, x_BSM: Tensor, norm: RMSNorm, rope: Rope, memory: TokenLayerMemory, keep: Tensor | None
    ) -> Tensor:
        of_heads = HeadNorm(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
        heads = Heads(norm_linear_deferred(norm, self.qkv, x_BSM), self.kv_heads, self.head_dim, rope, of_heads)
        x_BSM, mixed = kept(keep, x_BSM, memory.attend_heads(heads))
        return add_linear(x_BSM, self.out, mixed)


class TextAttention(nn.Module):
    """Attention from every input to all rows of a text, without positions. Keys and values are made once a text."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.kv = nn.Linear(config.text, 2 * config.kv_heads * config.head_dim, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.eps)
        self.k_norm = RMSNorm(config.head_dim, config.eps)
        self.out = nn.Linear(config.heads * config.head_dim, config.width, bias=False)

    def context(self, text_BLC: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, K, L, D). Rows of zeros, the padding of a text, have zero keys and values and count."""
        k, v = self.kv(text_BLC).unflatten(-1, (-1, self.head_dim)).transpose(1, 2).chunk(2, dim=1)
        return self.k_norm(k), v

    def forward(self, x_BSM: Tensor, norm: RMSNorm, text: tuple[Tensor, Tensor]) -> Tensor:
        q_BHSD = self.q_norm(norm_linear(norm, self.q, x_BSM).unflatten(-1, (-1, self.head_dim)).transpose(1, 2))
        k, v = (part.expand(len(x_BSM), -1, -1, -1) for part in text)  # one text may serve a whole batch
        mixed = F.scaled_dot_product_attention(q_BHSD, k, v, enable_gqa=True)
        return add_linear(x_BSM, self.out, joined(mixed))


class Block(nn.Module):
    """Pre-norm self-attention, then of the inputs to `keep` text attention, where there is text, and feed-forward."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, config.eps)
        self.attention = Attention(config)
        if config.text:
            self.text_norm = RMSNorm(config.width, config.eps)
            self.text_attention = TextAttention(config)
        self.mlp_norm = RMSNorm(config.width, config.eps)
        self.mlp = SwiGLU(config.width, config.mlp)

    def forward(
        self,
        x_BSM: Tensor,
        rope: Rope,
        memory: TokenLayerMemory,
        keep: Tensor | None,
        text: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        h = self.attention(x_BSM, self.attention_norm, rope, memory, keep)
        if text is not None:
            h = self.text_attention(h, self.text_norm, text)
        out: Tensor = self.mlp(h, self.mlp_norm)
        return out


class Cosmos(nn.Module):
    """The transformer. `slots_S` are sequence positions, in any order and number."""

    relative_positions = False  # of frames in a window: none beyond it
    weight_map = WeightMap(
        prefixes=("transformer.", "model.", ""),
        keys={
            "embed.weight": ("tok_embeddings.weight",),
            "blocks.{}.attention.qkv.weight": (
                "layers.{}.attention.wq.weight",
                "layers.{}.attention.wk.weight",
                "layers.{}.attention.wv.weight",
            ),
            "blocks.{}.attention.out.weight": ("layers.{}.attention.wo.weight",),
            "blocks.{}.attention.{}_norm.weight": ("layers.{}.attention.{}_norm.weight",),
            "blocks.{}.attention_norm.weight": ("layers.{}.attention_norm.weight",),
            "blocks.{}.text_attention.kv.weight": (
                "layers.{}.cross_attention.wk.weight",
                "layers.{}.cross_attention.wv.weight",
            ),
            "blocks.{}.text_attention.q.weight": ("layers.{}.cross_attention.wq.weight",),
            "blocks.{}.text_attention.out.weight": ("layers.{}.cross_attention.wo.weight",),
            "blocks.{}.text_attention.{}_norm.weight": ("layers.{}.cross_attention.{}_norm.weight",),
            "blocks.{}.text_norm.weight": ("layers.{}.cross_attention_norm.weight",),
            "blocks.{}.mlp_norm.weight": ("layers.{}.ffn_norm.weight",),
            "blocks.{}.mlp.gate_up.weight": ("layers.{}.feed_forward.w1.weight", "layers.{}.feed_forward.w3.weight"),
            "blocks.{}.mlp.down.weight": ("layers.{}.feed_forward.w2.weight",),
            "head.weight": ("output.weight",),
        },
        ignore=("{}_extra_state",),
    )
    tensor_parallel = TensorParallel(
        column_parallel={
            "blocks.{}.attention.qkv": ("heads", "kv_heads", "kv_heads"),
            "blocks.{}.text_attention.q": ("heads",),
            "blocks.{}.text_attention.kv": ("kv_heads", "kv_heads"),
            "blocks.{}.mlp.gate_up": ("mlp", "mlp"),
        },
        row_parallel=("blocks.{}.attention.out", "blocks.{}.text_attention.out", "blocks.{}.mlp.down"),
        counts=("blocks.{}.attention.kv_heads",),
    )

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.eps)
        self.head = nn.Linear(config.width, config.codebook, bias=False)

    @property
    def cache_spec(self) -> CacheSpec:
        config, attention = self.config, cast(Block, self.blocks[0]).attention
        return CacheSpec(config.layers, attention.kv_heads, config.head_dim, config.heads // config.kv_heads)

    def forward(
        self,
        tokens_BS: Tensor,
        slots_S: Tensor,
        memory: TokenMemory,
        keep: Tensor | None = None,
        text: TextKV | None = None,
    ) -> Tensor:
        """Logits. Without `text` (from `context`) the text layers add nothing, as with a text of zeros only."""
        x_BSM = look_up(self.embed, tokens_BS)
        cos, sin, *tables = memory.by_slot(self._positions, slots_S)
        last = len(self.blocks) - 1
        for index, block in enumerate(self.blocks):
            for table_SM in tables:
                x_BSM = x_BSM + table_SM
            own = None if text is None else text[index]
            x_BSM = block(x_BSM, (cos, sin), memory.layer(index), keep if index == last else None, own)
        return norm_linear(self.norm, self.head, x_BSM)

    def _positions(self, slots_S: Tensor) -> tuple[Tensor, ...]:
        """The rotation of each slot (cos and sin); with text, also its absolute position (S, M), for every layer."""
        places_3S, inside_S = self.config.places(slots_S)
        rope = rope_3d(places_3S, self.config)
        if not self.config.text:
            return rope
        # The published models always had this table in bfloat16; the start token has none.
        table_SM = (sines_3d(places_3S, self.config.width) * inside_S[..., None]).bfloat16()
        return *rope, table_SM.to(self.embed.weight.dtype)

    def context(self, text_BLC: Tensor) -> TextKV:
        """What every layer needs of a text's embeddings, in the dtype of the weights. Fewer rows than `text_length`
        are padded with zeros, as the published models were trained: a layer attends to the padding too."""
        width, length = self.config.text, self.config.text_length
        if not width:
            raise ValueError("this model takes no text; the Cosmos models that do are 5b and 13b")
        if text_BLC.ndim != 3 or text_BLC.shape[-1] != width or not 1 <= text_BLC.shape[1] <= length:
            raise ValueError(
                f"text embeddings have shape {tuple(text_BLC.shape)}; (batch, rows, {width}) is needed, with 1 to "
                f"{length} rows: shorten the text, as nothing is cut off"
            )
        padded = F.pad(text_BLC.to(self.embed.weight), (0, 0, 0, length - text_BLC.shape[1]))
        return tuple(layer.context(padded) for layer in self.modules() if isinstance(layer, TextAttention))

    def bind(self, text_BLC: Tensor) -> Guided:
        """This model under a text, as the engine takes it."""
        return Guided(self, self.context(text_BLC))


@dataclass(frozen=True, slots=True, eq=False)  # equal is who is the same: tensors cannot be compared like that
class Guided:
    """A model with the keys and values of its text, computed once for all steps."""

    model: Cosmos
    text: TextKV

    @property
    def cache_spec(self) -> CacheSpec:
        return self.model.cache_spec

    def __call__(self, tokens_BS: Tensor, slots_S: Tensor, memory: TokenMemory, keep: Tensor | None = None) -> Tensor:
        logits: Tensor = self.model(tokens_BS, slots_S, memory, keep, self.text)
        return logits


_4B = Config(width=4096, layers=16, heads=32, kv_heads=8, head_dim=128, mlp=14336)
_12B = replace(_4B, width=5120, layers=40, yarn=Yarn())
_T5 = 1024  # width of T5-11B's embeddings
_TINY = Config(width=64, layers=2, heads=4, kv_heads=2, head_dim=16, mlp=128, rows=4, cols=6, codebook=64)


def _published(config: Config, name: str) -> Variant:
    return Variant(
        config,
        tokenizer="cosmos/dv8x16x16",
        actions="none",
        fps=25,
        sampling=Sampling(top_p=0.8),
        licence="NVIDIA Open Model License",
        source=f"nvidia/Cosmos-Predict1-{name} (gated)",
        prompt_frames=9,
        prompt_last=True,
        text="t5-11b" if config.text else "",
    )


def _random(config: Config) -> Variant:
    return Variant(
        config,
        tokenizer="cosmos/tiny",
        actions="none",
        fps=25,
        sampling=Sampling(top_p=0.8),
        licence="Apache-2.0",
        source="none: random, for tests",
        random=True,
        prompt_frames=9,
        prompt_last=True,
        text="t5-11b" if config.text else "",
    )


VARIANTS = {
    "4b": _published(_4B, "4B"),
    "5b": _published(replace(_4B, text=_T5), "5B-Video2World"),
    "12b": _published(_12B, "12B"),
    "13b": _published(replace(_12B, text=_T5), "13B-Video2World"),
    "tiny": _random(_TINY),
    "tiny-text": _random(replace(_TINY, width=48, yarn=Yarn(), text=24)),
}
