"""VideoGPT (Yan et al., 2021, arXiv:2104.10157): a GPT over the codes of a whole clip, from nothing, from a class, or
steered by its first frames.

The input in a slot is the token before the cell that it predicts; what it adds as position is that cell's frame, row
and column, each learned. Slot 0 has a learned start. The published priors see only a part of what came before (`sees`).
Checkpoints: wilson1yan/VideoGPT; docs/videogpt.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from diagonal.catalog.variants import State, TensorParallel, Variant, WeightMap
from diagonal.engine.heads import Heads
from diagonal.engine.protocols import CacheSpec
from diagonal.engine.tokens.protocols import SparseMemory, TokenLayerMemory, TokenMemory
from diagonal.models.frame_encoder import FrameEncoder, PictureAttention, Widths
from diagonal.models.layers import AxisPositions, kept
from diagonal.planning.sampling import Sampling

EPS = 1e-5  # added to 1/std, not under the root
STRIPE, STRIPES = 32, 4  # of sparse attention: slots side by side, and how many of them back

Context = tuple[tuple[Tensor, Tensor], ...]  # keys and values (B, H, L, D) of the given frames, one pair per layer


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of a VideoGPT prior."""

    width: int
    layers: int
    heads: int
    frames: int = 4
    rows: int = 32
    cols: int = 32
    codebook: int = 2048
    latent: int = 256  # width of the codes' vectors
    classes: int = 0  # that a video can have; 0: it has none
    given: int = 0  # pictures that steer a video; they are not part of it
    reference_frames: int = 1  # a clip is whole, so nothing slides
    picture_rows: int = 0  # and columns: cells that the network makes of a picture, a quarter of its pixels each way
    picture_cols: int = 0
    picture: Widths = field(default_factory=Widths)  # of the network that looks at them
    sparse: bool = False

    def __post_init__(self) -> None:
        if self.classes and self.given:
            raise ValueError(f"classes={self.classes} and given={self.given}; a video goes by a class or by pictures")
        if self.width % 3 or self.width % self.heads:
            raise ValueError(f"width={self.width} given; it is shared by 3 axes and {self.heads} heads evenly")
        if self.sparse and (self.rows * self.cols % STRIPE or self.cols > STRIPE):
            raise ValueError(
                f"frames of {self.rows}x{self.cols} tokens given; sparse attention takes frames of a multiple of "
                f"{STRIPE} tokens, with at most {STRIPE} in a row"
            )

    @property
    def suffix(self) -> int:
        """No actions."""
        return 0

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """The start, which is no code."""
        return (self.codebook,)

    def valid_ids(self) -> list[tuple[int, int]]:
        """Every code, everywhere."""
        return [(0, self.codebook)] * (self.rows * self.cols)

    def build(self) -> VideoGPT:
        return VideoGPT(self)


def sees(query: Tensor, key: Tensor, frame_tokens: int) -> Tensor:
    """Sparse attention: whether a slot sees one before it. It does if that lies in its own stripe of 32 slots or the
    four before it, or in the stripe at the same place of an earlier frame (strided, after Child et al., 2019)."""
    stripes, own, other = frame_tokens // STRIPE, query // STRIPE, key // STRIPE
    return (own % stripes == other % stripes) | (own - other <= STRIPES)


class Norm(nn.Module):
    """(x - mean) (1e-5 + 1 / std) g + b; where videos have a class, g and b are 1 + w and wb of that class."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        if config.classes:
            self.w, self.wb = (nn.Linear(config.classes, config.width, bias=False) for _ in range(2))
        else:
            self.g, self.b = nn.Parameter(torch.ones(config.width)), nn.Parameter(torch.zeros(config.width))
        self._classes = bool(config.classes)

    def forward(self, x_BSM: Tensor, label_B: Tensor | None) -> Tensor:
        centred = x_BSM - x_BSM.mean(-1, keepdim=True)
        scaled = centred * (EPS + torch.rsqrt(centred.square().mean(-1, keepdim=True)))
        if not self._classes:
            return torch.addcmul(self.b, scaled, self.g)
        assert label_B is not None
        gain_BM, shift_BM = 1 + self.w.weight.t()[label_B], self.wb.weight.t()[label_B]
        return torch.addcmul(shift_BM[:, None], scaled, gain_BM[:, None])


class Attention(nn.Module):
    """Self-attention with q, k and v in one matrix."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.head_dim = config.heads, config.width // config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.fc = nn.Linear(config.width, config.width)

    def forward(self, x_BSM: Tensor, memory: TokenLayerMemory) -> Tensor:
        mixed: Tensor = self.fc(memory.attend_heads(Heads(self.qkv(x_BSM), self.heads, self.head_dim)))
        return mixed


class Gelu2(nn.Module):
    """x sigmoid(1.702 x)."""

    def forward(self, x: Tensor) -> Tensor:
        gate = (
            1.702 * x
        ).sigmoid_()  # in place where no gradient needs it: this is the most that a layer holds at once
        return gate * x if torch.is_grad_enabled() else gate.mul_(x)


class Block(nn.Module):
    """Pre-norm self-attention, attention to given pictures where there are any, feed-forward."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.pre_attn_norm, self.attn = Norm(config), Attention(config)
        if config.given:
            self.pre_enc_norm = Norm(config)
            self.enc_attn = PictureAttention(config.width, config.picture.groups[-1], config.heads)
        self.pre_fc_norm = Norm(config)
        wide = 4 * config.width
        self.fc_block = nn.Sequential(nn.Linear(config.width, wide), Gelu2(), nn.Linear(wide, config.width))

    def forward(
        self, x_BSM: Tensor, memory: TokenLayerMemory, label_B: Tensor | None, context: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        x_BSM = x_BSM + self.attn(self.pre_attn_norm(x_BSM, label_B), memory)
        if context is not None:
            x_BSM = x_BSM + self.enc_attn(self.pre_enc_norm(x_BSM, label_B), context)
        made: Tensor = x_BSM + self.fc_block(self.pre_fc_norm(x_BSM, label_B))
        return made


class VideoGPT(nn.Module):
    """The transformer. `slots_S` are sequence positions, in any order and number."""

    relative_positions = False  # learned ones, of one clip
    weight_map = WeightMap(
        prefixes=("transformer.", ""),
        keys={
            "codes.weight": ("vqvae.codebook.embeddings",),
            "sos": ("attn_stack.right_shift.sos",),
            "positions.{}": ("attn_stack.pos_embd.{}",),
            "pictures.{}": ("resnet.{}",),
            "picture_positions.{}": ("cond_pos_embd.{}",),
            "blocks.{}.attn.qkv.weight": (
                "attn_stack.attn_nets.{}.attn.w_qs.weight",
                "attn_stack.attn_nets.{}.attn.w_ks.weight",
                "attn_stack.attn_nets.{}.attn.w_vs.weight",
            ),
            "blocks.{}": ("attn_stack.attn_nets.{}",),
            "head.weight": ("fc_out.weight",),
        },
        ignore=(
            "attn_stack.attn_nets.{}.attn.attn.mask",  # that every slot sees those before it
            *(f"vqvae.{part}.{{}}" for part in ("encoder", "decoder", "pre_vq_conv", "post_vq_conv")),
            *("vqvae.codebook.N", "vqvae.codebook.z_avg"),
        ),
        beside="vqvae.",
    )
    tensor_parallel = TensorParallel(
        column_parallel={
            "blocks.{}.attn.qkv": ("heads", "heads", "heads"),
            **{f"blocks.{{}}.enc_attn.w_{part}s": ("heads",) for part in "qkv"},
            "blocks.{}.fc_block.0": ("heads",),
        },
        row_parallel=("blocks.{}.attn.fc", "blocks.{}.enc_attn.fc", "blocks.{}.fc_block.2"),
        counts=("blocks.{}.attn.heads", "blocks.{}.enc_attn.heads"),
    )

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.codes = nn.Embedding(config.codebook, config.latent)
        self.fc_in = nn.Linear(config.latent, config.width, bias=False)
        self.sos = nn.Parameter(torch.randn(config.width) * 0.02)
        self.positions = AxisPositions((config.frames, config.rows, config.cols), config.width)
        if config.given:
            features = config.picture.groups[-1]
            self.pictures = FrameEncoder(config.picture)
            sides = (config.given, config.picture_rows, config.picture_cols)
            self.picture_positions = AxisPositions(sides, features)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = Norm(config)
        self.head = nn.Linear(config.width, config.codebook, bias=False)

    @property
    def cache_spec(self) -> CacheSpec:
        config, attention = self.config, cast(Block, self.blocks[0]).attn
        return CacheSpec(config.layers, attention.heads, attention.head_dim, group=1, sparse=config.sparse)

    def forward(
        self,
        tokens_BS: Tensor,
        slots_S: Tensor,
        memory: TokenMemory,
        keep: Tensor | None = None,
        steered: Steering | None = None,
    ) -> Tensor:
        steered = steered or Steering()
        if bool(self.config.classes) > (steered.label_B is not None):
            raise ValueError("videos of this model are of a class each, and none is given; world.steered(label=...)")
        if bool(self.config.given) > (steered.context is not None):
            raise ValueError("videos of this model go by pictures, and none are given; world.steered(pictures=...)")
        x_BSM = self._embedded(tokens_BS) + self.positions(slots_S)
        if self.config.sparse:
            memory = cast(SparseMemory, memory).restricted(self._sees, slots_S)
        for index, block in enumerate(self.blocks):
            context = None if steered.context is None else steered.context[index]
            x_BSM = block(x_BSM, memory.layer(index), steered.label_B, context)
        (x_BSM,) = kept(keep, x_BSM)
        logits: Tensor = self.head(self.norm(x_BSM, steered.label_B))
        return logits

    def _embedded(self, tokens_BS: Tensor) -> Tensor:
        """Codes as the VQ-VAE has them, made as wide as the model; the start is a vector of its own."""
        start = self.config.codebook
        known = self.fc_in(self.codes(tokens_BS.clamp(max=start - 1)))
        return torch.where((tokens_BS == start)[..., None], self.sos, known)

    def _sees(self, query: Tensor, key: Tensor) -> Tensor:
        return sees(query, key, self.config.rows * self.config.cols)

    def bind_class(self, label_B: Tensor) -> Steered:
        """This model for videos of a class each."""
        classes = self.config.classes
        if not classes:
            raise ValueError("this model knows no classes; leave the class out")
        if label_B.is_floating_point() or int(label_B.min()) < 0 or int(label_B.max()) >= classes:
            raise ValueError(f"class {label_B.tolist()} given; this model knows 0 to {classes - 1}")
        return Steered(self, Steering(label_B=label_B))

    def bind_pictures(self, pictures_BTCHW: Tensor) -> Steered:
        """This model steered by pictures of uint8, as many as it takes."""
        config = self.config
        if not config.given:
            raise ValueError("this model is not steered by pictures; leave them out")
        if pictures_BTCHW.shape[1] != config.given:
            raise ValueError(f"{pictures_BTCHW.shape[1]} pictures given; this model takes {config.given}")
        return Steered(
            self, self.steering(self.features(pictures_BTCHW.transpose(1, 2).to(self.sos.dtype) / 255 - 0.5))
        )

    def steering(self, features_BTHWC: Tensor) -> Steering:
        """What every layer needs of the features of pictures."""
        rows = features_BTHWC.flatten(1, 3)
        layers = [layer for layer in self.modules() if isinstance(layer, PictureAttention)]
        return Steering(context=tuple(layer.context(rows) for layer in layers))

    def features(self, pictures_BCTHW: Tensor) -> Tensor:
        """What layers attend to, of pictures in [-0.5, 0.5]: features with positions (B, T, rows, cols, C)."""
        found: Tensor = self.pictures(pictures_BCTHW)
        cells = torch.arange(found[0, ..., 0].numel(), device=found.device).view(found.shape[1:-1])
        made: Tensor = found + self.picture_positions(cells)
        return made


@dataclass(frozen=True, slots=True, eq=False)
class Steering:
    """What a video goes by: a class for each sample, or keys and values of pictures."""

    label_B: Tensor | None = None
    context: Context | None = None


@dataclass(frozen=True, slots=True, eq=False)  # equal is who is the same: tensors cannot be compared like that
class Steered:
    """A model with what its videos go by, computed once for all steps."""

    model: VideoGPT
    steering: Steering

    @property
    def cache_spec(self) -> CacheSpec:
        return self.model.cache_spec

    def __call__(self, tokens_BS: Tensor, slots_S: Tensor, memory: TokenMemory, keep: Tensor | None = None) -> Tensor:
        logits: Tensor = self.model(tokens_BS, slots_S, memory, keep, self.steering)
        return logits


def fit(config: Config, state: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Config:
    """The config of a checkpoint: sizes as its shapes say, heads and what no shape tells as its trainer's arguments."""
    shapes = {key.removeprefix("transformer."): tuple(value.shape) for key, value in state.items()}
    own = "codes.weight" in shapes  # names as in our files, or as in the published ones
    positions, table = ("positions", "codes.weight") if own else ("attn_stack.pos_embd", "vqvae.codebook.embeddings")
    if not shapes.keys() >= {table, "fc_in.weight", *(f"{positions}.emb.d_{axis}" for axis in range(3))}:
        return config  # no VideoGPT prior: loading it will say what is missing
    frames, rows, cols = (shapes[f"{positions}.emb.d_{axis}"][0] for axis in range(3))
    blocks = r"blocks\.\d+" if own else r"attn_stack\.attn_nets\.\d+"
    norms = blocks + r"\.pre_fc_norm\.\w+(\.weight)?"
    heads, attention = settings.get("args.heads"), settings.get("args.attn_type")
    pictures = "picture_positions" if own else "cond_pos_embd"
    given, *sides = (shapes.get(f"{pictures}.emb.d_{axis}", (0,))[0] for axis in range(3))
    return replace(
        config,
        width=shapes["fc_in.weight"][0],
        layers=sum(re.fullmatch(norms, key) is not None for key in shapes) // 2,  # two tensors each
        heads=heads if isinstance(heads, int) else config.heads,
        frames=frames,
        rows=rows,
        cols=cols,
        codebook=shapes[table][0],
        latent=shapes[table][1],
        classes=shapes["norm.w.weight"][1] if "norm.w.weight" in shapes else 0,
        given=given,
        picture_rows=sides[0],
        picture_cols=sides[1],
        sparse=config.sparse if attention is None else attention == "sparse",
    )


def fit_both(config: Config, tokenizer: Any, states: tuple[State, State], settings: Mapping[str, Any]) -> Any:
    """The configs of the prior and of its tokenizer."""
    made = fit(config, states[0], settings)
    return made, tokenizer.fit(states[1], settings, (made.frames, made.rows))


LICENCE = "MIT (the repository's; that of the weights is not stated apart)"


def _published(config: Config, name: str, vq: str, fps: int) -> Variant:
    return Variant(
        config,
        tokenizer=f"videogpt/{vq}",
        actions="none",
        fps=fps,
        sampling=Sampling(),
        licence=LICENCE,
        source=f"wilson1yan/VideoGPT, {name}",
        fit=fit_both,
        prompt_frames=0,
        steered=True,
    )


def _random(config: Config) -> Variant:
    return Variant(
        config,
        tokenizer="videogpt/tiny",
        actions="none",
        fps=20,
        sampling=Sampling(),
        licence="Apache-2.0",
        source="none: random, for tests",
        random=True,
        fit=fit_both,
        prompt_frames=0,
        steered=True,
    )


_TINY = Config(width=48, layers=2, heads=4, rows=4, cols=8, codebook=32, latent=8, picture=Widths(4, (4, 8, 16, 12)))

VARIANTS = {
    "ucf101": _published(Config(width=768, layers=20, heads=8, sparse=True), "ucf101_uncond_gpt", "stride4x4x4", 20),
    "bair": _published(
        Config(width=576, layers=8, heads=4, given=1, picture_rows=16, picture_cols=16, sparse=True),
        "bair_gpt",
        "stride4x2x2",
        20,
    ),
    "tiny": _random(_TINY),
    "tiny-sparse": _random(replace(_TINY, rows=8, sparse=True)),
    "tiny-class": _random(replace(_TINY, classes=5)),
    "tiny-picture": _random(replace(_TINY, given=1, picture_rows=4, picture_cols=8)),
}
