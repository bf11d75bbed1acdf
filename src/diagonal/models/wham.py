"""WHAM: Microsoft's World and Human Action Model (Kanervisto et al., 2025), a GPT-2-style decoder over frames of
image tokens, each followed by the 16 tokens of a gamepad action.

Positions are learned and absolute, counted from the start of the window, so a window that slides is prefilled anew.
The checkpoints (microsoft/wham) exist in several forms, which `fit` tells apart by their keys. Layers have GPT-2's
names, as they have in the checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, cast

from torch import Tensor, nn

from diagonal.catalog.variants import State, TensorParallel, Variant, WeightMap
from diagonal.engine.heads import Heads
from diagonal.engine.protocols import CacheSpec
from diagonal.engine.tokens.protocols import TokenLayerMemory, TokenMemory
from diagonal.models.layers import LayerNorm, add_linear, kept, look_up, norm_linear, norm_linear_deferred, tied_head
from diagonal.planning.sampling import Sampling

ACTION = (2,) * 12 + (11,) * 4  # values that each token of an action can take: 12 buttons, 4 stick axes
HEADS = {1024: 16, 1792: 14, 2304: 18, 3072: 24}  # of the published sizes, by width: no shape tells


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of a WHAM. Defaults are those of the published 300x180 models."""

    width: int
    layers: int
    heads: int
    version: int = 1  # 2: the norms in the blocks have no parameters
    bias: bool = True  # in linear layers and norms
    codebook: int = 16384  # image ids come first; action ids follow
    frames: int = 10
    reference_frames: int = 9
    rows: int = 18
    cols: int = 30
    prefix_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width={self.width} cannot be shared by {self.heads} heads evenly")
        if self.version not in (1, 2):
            raise ValueError(f"version={self.version} is not known; there are 1 and 2")

    @property
    def suffix(self) -> int:
        return len(ACTION)

    @property
    def vocab(self) -> int:
        return self.codebook + sum(ACTION)

    @property
    def window(self) -> int:
        """Positions, one learned vector each."""
        return len(self.prefix_ids) + self.frames * (self.rows * self.cols + self.suffix)

    def valid_ids(self) -> list[tuple[int, int]]:
        """Image ids, never id 0 in a frame's first cell (as the release samples); then each action token's own ids."""
        cells = [(1, self.codebook), *[(0, self.codebook)] * (self.rows * self.cols - 1)]
        ends = accumulate(ACTION, initial=self.codebook)
        return [*cells, *pairwise(ends)]

    def build(self) -> WHAM:
        return WHAM(self)


def fit(config: Config, state: Mapping[str, Tensor]) -> Config:
    """The config of a checkpoint: version, biases and sizes as its keys and shapes say."""
    start = re.compile(r"^(predictor\.gpt_model\.)?transformer\.(h\.|blocks\.)?")
    shapes = {start.sub("", key): value.shape for key, value in state.items()}
    if not shapes.keys() >= {"wte.weight", "wpe.weight"}:
        return config  # no WHAM: loading it will say what is missing
    (vocab, width), (positions, _) = shapes["wte.weight"], shapes["wpe.weight"]
    unit = config.rows * config.cols + config.suffix
    frames, odd = divmod(positions - len(config.prefix_ids), unit)
    if odd or frames < 2:
        raise ValueError(
            f"the checkpoint has {positions} positions, not two or more whole frames of {config.rows}x{config.cols} "
            f"image and {config.suffix} action tokens ({unit} each): a model of other pictures is not supported"
        )
    if width != config.width and width not in HEADS:
        known = ", ".join(map(str, sorted({config.width, *HEADS})))
        raise ValueError(f"the checkpoint has width {width}, whose number of heads is not known; known widths: {known}")
    return replace(
        config,
        width=width,
        layers=sum(re.fullmatch(r"\d+\.attn\.c_attn\.weight", key) is not None for key in shapes),
        heads=config.heads if width == config.width else HEADS[width],
        version=1 if "0.ln_1.weight" in shapes else 2,
        bias="0.attn.c_attn.bias" in shapes,
        codebook=vocab - sum(ACTION),
        frames=frames,
        reference_frames=frames - 1,  # the oldest frame alone makes room for a new one
    )


def fit_both(config: Config, tokenizer: Any, states: tuple[State, State], settings: Mapping[str, Any]) -> Any:
    """The configs of the model and of its tokenizer, which says itself what its checkpoint tells."""
    return fit(config, states[0]), tokenizer.fit(states[1], settings)


def _norm(config: Config, affine: bool) -> LayerNorm:
    return LayerNorm(config.width, eps=1e-5, elementwise_affine=affine, bias=config.bias)


class Attention(nn.Module):
    """Self-attention with q, k and v in one matrix."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.head_dim = config.heads, config.width // config.heads
        self.c_attn = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.c_proj = nn.Linear(config.width, config.width, bias=config.bias)

    def forward(self, x_BSM: Tensor, norm: LayerNorm, memory: TokenLayerMemory, keep: Tensor | None) -> Tensor:
        heads = Heads(norm_linear_deferred(norm, self.c_attn, x_BSM), self.heads, self.head_dim)
        x_BSM, mixed = kept(keep, x_BSM, memory.attend_heads(heads))
        return add_linear(x_BSM, self.c_proj, mixed)


class FeedForward(nn.Module):
    """Four times the width, with the tanh form of GELU."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.width, 4 * config.width, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.width, config.width, bias=config.bias)

    def forward(self, x_BSM: Tensor, norm: LayerNorm) -> Tensor:
        return add_linear(x_BSM, self.c_proj, norm_linear(norm, self.c_fc, x_BSM, "gelu"))


class Block(nn.Module):
    """Pre-norm attention, then pre-norm feed-forward of the inputs to `keep`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.ln_1 = _norm(config, affine=config.version == 1)
        self.attn = Attention(config)
        self.ln_2 = _norm(config, affine=config.version == 1)
        self.mlp = FeedForward(config)

    def forward(self, x_BSM: Tensor, memory: TokenLayerMemory, keep: Tensor | None) -> Tensor:
        h = self.attn(x_BSM, self.ln_1, memory, keep)
        out: Tensor = self.mlp(h, self.ln_2)
        return out


class WHAM(nn.Module):
    """The transformer. `slots_S` are sequence positions, in any order and number; the head is the embedding."""

    relative_positions = False  # learned ones: none beyond the window
    weight_map = WeightMap(
        prefixes=("predictor.gpt_model.", "transformer.", ""),
        keys={"blocks.{}": ("transformer.h.{}",), "{}": ("transformer.{}",)},
        ignore=("lm_head.weight",),  # the embedding once more
    )
    tensor_parallel = TensorParallel(
        column_parallel={"blocks.{}.attn.c_attn": ("heads", "heads", "heads"), "blocks.{}.mlp.c_fc": ("heads",)},
        row_parallel=("blocks.{}.attn.c_proj", "blocks.{}.mlp.c_proj"),
        counts=("blocks.{}.attn.heads",),
    )

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab, config.width)
        self.wpe = nn.Embedding(config.window, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f = _norm(config, affine=True)
        for embedding in (self.wte, self.wpe):
            # The head gives logits of unit variance; torch's default would make every token predict itself.
            nn.init.normal_(embedding.weight, std=config.width**-0.5)

    @property
    def cache_spec(self) -> CacheSpec:
        attention = cast(Block, self.blocks[0]).attn
        return CacheSpec(self.config.layers, attention.heads, attention.head_dim, group=1)

    def forward(self, tokens_BS: Tensor, slots_S: Tensor, memory: TokenMemory, keep: Tensor | None = None) -> Tensor:
        x_BSM = look_up(self.wte, tokens_BS) + look_up(self.wpe, slots_S)
        last = len(self.blocks) - 1
        for index, block in enumerate(self.blocks):
            x_BSM = block(x_BSM, memory.layer(index), keep if index == last else None)
        return tied_head(self.ln_f, self.wte, x_BSM)


def _released(config: Config) -> Variant:
    return Variant(
        config,
        tokenizer="wham/vit",
        actions="xbox",
        fps=10,
        sampling=Sampling(temperature=0.9, keep_crossing=False),
        licence="Microsoft Research License: non-commercial research only",
        source="microsoft/wham",
        fit=fit_both,
        mark="generated by WHAM",
        prompt_frames=10,  # one second
    )


VARIANTS = {
    "200m": _released(Config(width=1024, layers=16, heads=16)),
    "1.6b": _released(Config(width=2304, layers=24, heads=18)),
    "tiny": Variant(
        Config(width=64, layers=2, heads=4, codebook=256, frames=6, reference_frames=5, rows=9, cols=15),
        tokenizer="wham/tiny",
        actions="xbox",
        fps=10,
        sampling=Sampling(temperature=0.9, keep_crossing=False),
        licence="Apache-2.0",
        source="none: random, for tests and demonstrations",
        random=True,
        fit=fit_both,
    ),
}
