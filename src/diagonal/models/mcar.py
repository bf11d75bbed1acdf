"""MC-AR: the Minecraft world models of MineWorld (Guo et al., 2025), on which the Diagonal Decoding paper
trains its own; a LLaMA decoder over frames of image tokens, each followed by 11 action tokens.

Checkpoints: microsoft/mineworld. The released code uses plain one-dimensional rotary embedding and four
key/value heads (the paper's appendix G says otherwise; docs/papers/diagonal-decoding.md lists the differences).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor, nn

from diagonal.catalog.variants import TensorParallel, Variant, WeightMap
from diagonal.engine.heads import Heads, Rope
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
    rope_1d,
)
from diagonal.planning.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of an MC-AR model. No defaults but those that every variant shares."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    frames: int
    reference_frames: int
    rows: int = 14
    cols: int = 24
    suffix: int = 11  # action tokens after each frame
    codebook: int = 8192  # image ids come first; action ids follow
    vocab: int = 8262
    head_dim: int = 64
    theta: float = 10000.0
    eps: float = 1e-5
    prefix_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} key/value heads evenly")
        if self.codebook > self.vocab:
            raise ValueError(f"codebook={self.codebook} does not fit vocab={self.vocab}")

    def valid_ids(self) -> list[tuple[int, int]]:
        """Only image ids are ever sampled: actions are given."""
        return [(0, self.codebook)] * (self.rows * self.cols + self.suffix)

    def build(self) -> MCAR:
        return MCAR(self)


class Attention(nn.Module):
    """Grouped-query self-attention with q, k and v in one matrix."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.kv_heads, self.head_dim = config.kv_heads, config.head_dim
        self.qkv = nn.Linear(config.width, (config.heads + 2 * config.kv_heads) * config.head_dim, bias=False)
        self.out = nn.Linear(config.heads * config.head_dim, config.width, bias=False)

    def forward(
        self, x_BSM: Tensor, norm: RMSNorm, rope: Rope, memory: TokenLayerMemory, keep: Tensor | None
    ) -> Tensor:
        heads = Heads(norm_linear_deferred(norm, self.qkv, x_BSM), self.kv_heads, self.head_dim, rope)
        x_BSM, mixed = kept(keep, x_BSM, memory.attend_heads(heads))
        return add_linear(x_BSM, self.out, mixed)


class Block(nn.Module):
    """Pre-norm attention, then pre-norm feed-forward of the inputs to `keep`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, config.eps)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config.width, config.eps)
        self.mlp = SwiGLU(config.width, config.mlp)

    def forward(self, x_BSM: Tensor, rope: Rope, memory: TokenLayerMemory, keep: Tensor | None) -> Tensor:
        h = self.attention(x_BSM, self.attention_norm, rope, memory, keep)
        out: Tensor = self.mlp(h, self.mlp_norm)
        return out


class MCAR(nn.Module):
    """The transformer. `slots_S` are sequence positions, in any order and number."""

    relative_positions = True  # rotary ones: attention looks at differences alone
    weight_map = WeightMap(
        prefixes=("transformer.", ""),
        keys={
            "embed.weight": ("model.embed_tokens.weight",),
            "blocks.{}.attention_norm.weight": ("model.layers.{}.input_layernorm.weight",),
            "blocks.{}.attention.qkv.weight": (
                "model.layers.{}.self_attn.q_proj.weight",
                "model.layers.{}.self_attn.k_proj.weight",
                "model.layers.{}.self_attn.v_proj.weight",
            ),
            "blocks.{}.attention.out.weight": ("model.layers.{}.self_attn.o_proj.weight",),
            "blocks.{}.mlp_norm.weight": ("model.layers.{}.post_attention_layernorm.weight",),
            "blocks.{}.mlp.gate_up.weight": (
                "model.layers.{}.mlp.gate_proj.weight",
                "model.layers.{}.mlp.up_proj.weight",
            ),
            "blocks.{}.mlp.down.weight": ("model.layers.{}.mlp.down_proj.weight",),
            "norm.weight": ("model.norm.weight",),
            "head.weight": ("lm_head.weight",),
        },
    )
    tensor_parallel = TensorParallel(
        column_parallel={
            "blocks.{}.attention.qkv": ("heads", "kv_heads", "kv_heads"),
            "blocks.{}.mlp.gate_up": ("mlp", "mlp"),
        },
        row_parallel=("blocks.{}.attention.out", "blocks.{}.mlp.down"),
        counts=("blocks.{}.attention.kv_heads",),
    )

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.eps)
        self.head = nn.Linear(config.width, config.vocab, bias=False)

    @property
    def cache_spec(self) -> CacheSpec:
        config, attention = self.config, cast(Block, self.blocks[0]).attention
        return CacheSpec(config.layers, attention.kv_heads, config.head_dim, config.heads // config.kv_heads)

    def _rope(self, slots_S: Tensor) -> Rope:
        return rope_1d(slots_S, self.config.head_dim, self.config.theta)

    def forward(self, tokens_BS: Tensor, slots_S: Tensor, memory: TokenMemory, keep: Tensor | None = None) -> Tensor:
        x_BSM = look_up(self.embed, tokens_BS)
        rope = memory.by_slot(self._rope, slots_S)
        last = len(self.blocks) - 1
        for index, block in enumerate(self.blocks):
            x_BSM = block(x_BSM, rope, memory.layer(index), keep if index == last else None)
        return norm_linear(self.norm, self.head, x_BSM)


_300M = Config(width=1024, layers=20, heads=16, kv_heads=4, mlp=4096, frames=16, reference_frames=8)
_700M = replace(_300M, width=2048, heads=32)
_1200M = replace(_700M, mlp=8192)


def _released(config: Config) -> Variant:
    return Variant(
        config,
        tokenizer="mcar/vq",
        actions="vpt",
        fps=20,
        sampling=Sampling(top_p=0.8),
        licence="MIT",
        source="microsoft/mineworld (not public since May 2025: bring a copy)",
    )


VARIANTS = {
    "300m": _released(_300M),
    "700m": _released(_700M),
    "700m-32f": _released(replace(_700M, frames=32)),
    "1200m": _released(_1200M),
    "1200m-32f": _released(replace(_1200M, frames=32)),
    "tiny": Variant(
        Config(
            width=64,
            layers=2,
            heads=4,
            kv_heads=2,
            mlp=128,
            frames=16,
            reference_frames=8,
            codebook=512,
            vocab=582,
            head_dim=16,
        ),
        tokenizer="mcar/tiny",
        actions="vpt",
        fps=20,
        sampling=Sampling(top_p=0.8),
        licence="Apache-2.0",
        source="none: random, for tests and demonstrations",
        random=True,
    ),
}
