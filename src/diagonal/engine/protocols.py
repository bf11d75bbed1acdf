"""What the engine asks of a model, a tokenizer and an action space, and how each is described.

Shape suffixes used throughout: B batch, S inputs of one call, L sequence positions, V vocabulary, H heads,
K key/value heads, D head width, M model width, T frames, C channels. In diffusion models: F latent frames, N tokens of
a latent frame, C channels (of a latent, or of the model).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from diagonal.engine.heads import Heads, LatentHeads
from diagonal.grid import Grid, Layout


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The size of a key/value cache, apart from batch and length."""

    layers: int
    kv_heads: int
    head_dim: int
    group: int  # query heads that share a key/value head


class LayerMemory(Protocol):
    """What one layer attends to."""

    def attend(self, q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor) -> Tensor:
        """Remember the new keys and values, and attend from every query to what it may see."""
        ...


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


class TokenLayerMemory(LayerMemory, Protocol):
    """What one layer of a token model attends to."""

    def attend_heads(self, heads: Heads) -> Tensor:
        """The same from heads that are not normed or rotated yet; what they mixed, side by side (B, S, H * D)."""
        ...


class TokenMemory(Protocol):
    """What the layers of a token model attend to."""

    def layer(self, index: int) -> TokenLayerMemory:
        """The part of one layer."""
        ...

    def by_slot(self, make: Callable[[Tensor], tuple[Tensor, ...]], slots_S: Tensor) -> tuple[Tensor, ...]:
        """make(slots_S): what depends on the slots alone, one row for each, such as a rotation. A model asks once a
        call; a memory that serves many calls makes it for all slots once, and picks the rows."""
        ...


class TokenModel(Protocol):
    """A causal transformer over token ids. Knows nothing of grids, schedules or caches."""

    @property
    def cache_spec(self) -> CacheSpec: ...

    def __call__(self, tokens_BS: Tensor, slots_S: Tensor, memory: TokenMemory, keep: Tensor | None = None) -> Tensor:
        """Logits (B, kept inputs, V) of the token after each input; `keep` picks inputs, None keeps all."""
        ...


class TextModel(TokenModel, Protocol):
    """A model that a text can guide. Called as it is, it runs without one."""

    def bind(self, text_BLC: Tensor) -> TokenModel:
        """The model under a text, given as embeddings (B or 1, rows, C): what depends on it alone is computed here."""
        ...


class Compression(Protocol):
    """What all that shrink videos have. Videos are uint8, (B, T, C, height, width)."""

    @property
    def config(self) -> Any:
        """Its sizes, a dataclass; the whole numbers in it are saved with the weights."""
        ...

    @property
    def patch(self) -> int:
        """Pixels per token or latent along each side of a frame."""
        ...

    @property
    def stride(self) -> int:
        """Frames per token frame after the first, which holds one: n token frames are 1 + stride * (n - 1) frames."""
        ...


class VideoTokenizer(Compression, Protocol):
    """Pixels to token ids and back."""

    def encode(self, video_BTCHW: Tensor) -> Tensor:
        """Token ids (B, token frames, rows, cols)."""
        ...

    def decode(self, tokens_BTHW: Tensor, state: MutableMapping[str, Tensor]) -> Tensor:
        """Pixels of the next frames. `state` carries what earlier frames left behind; start with an empty dict."""
        ...


class VideoCodec(Compression, Protocol):
    """Pixels to latents and back: numbers, not ids. `config.latent` is their number at each place."""

    def encode(self, video_BTCHW: Tensor) -> Tensor:
        """Latents (B, latent frames, C, rows, cols), normalised as a denoiser takes them."""
        ...

    def decode(self, latents_BFCHW: Tensor, state: MutableMapping[str, Tensor]) -> Tensor:
        """Pixels of the next frames. `state` carries what earlier frames left behind; start with an empty dict."""
        ...


class ActionSpace(Protocol):
    """The actions of a world: a module of `worlds`. An action is an object of its own, opaque outside."""

    @property
    def NOOP(self) -> Any:  # noqa: N802
        """The action of doing nothing."""
        ...

    @property
    def STARTS(self) -> Sequence[str]:  # noqa: N802
        """Names of the start views that the package ships."""
        ...

    @property
    def SCRIPT(self) -> str:  # noqa: N802
        """Actions worth showing, in the short text form."""
        ...

    def start(self, name: str) -> tuple[Any, list[Any]]:
        """A start view: frames (T, H, W, 3) and the actions between them."""
        ...

    def parse(self, text: str) -> list[Any]:
        """Actions from the short text form, such as 'forward*8,left*4'."""
        ...

    def read(self, path: str | Path) -> list[Any]:
        """Actions recorded in a file, one per frame."""
        ...

    def tokens(self, actions: Sequence[Any], first_id: int) -> list[list[int]]:
        """Token ids, one row per action, counted from `first_id`."""
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn from logits. temperature=0 takes the most likely one."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    # True keeps the token that crosses top_p (the usual rule); False drops it unless it is the first (WHAM).
    keep_crossing: bool = True

    def __post_init__(self) -> None:
        if self.temperature != 0 and not 1e-4 <= self.temperature < float("inf"):
            raise ValueError(f"temperature={self.temperature} given; it must be 0 (greedy) or from 0.0001 up")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k} given; it must be at least 1, or left out")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} given; it must be above 0 and at most 1, or left out")


class TokenConfig(Protocol):
    """The numbers of a model that its surroundings need; each model's own Config has more."""

    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def suffix(self) -> int: ...

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """Tokens before the first frame."""
        ...

    @property
    def codebook(self) -> int:
        """Image ids are 0 to codebook - 1; action ids follow."""
        ...

    @property
    def frames(self) -> int:
        """Frames that fit the model's window."""
        ...

    @property
    def reference_frames(self) -> int:
        """Newest frames that are kept when a longer video slides past the window."""
        ...

    def valid_ids(self) -> Sequence[tuple[int, int]]:
        """Ids [low, high) that may be sampled at each offset from the start of a frame, suffix included."""
        ...

    def build(self) -> nn.Module:
        """The model, uninitialised where the device context says so."""
        ...


@dataclass(frozen=True, slots=True)
class WeightMap:
    """How a published checkpoint's keys become ours: the first prefix that occurs is stripped; then each of our
    keys is the concatenation (along dimension 0) of the published ones. '{}' stands for any layer number. Keys of
    the form `ignore` hold nothing that the model needs, such as tables that it computes, and are left out. Where a
    model is published under two sets of names, `aliases` makes those of `keys` from the other ones, and comes first."""

    prefixes: tuple[str, ...] = ("",)
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()  # published keys that hold nothing of ours


State = Mapping[str, Tensor]
# Adapts the model's and the tokenizer's config to a checkpoint: (config, tokenizer config, (model state, tokenizer
# state), hyper-parameters by path) -> both configs.
Fit = Callable[[Any, Any, tuple[State, State], Mapping[str, Any]], tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Variant:
    """One model that can be loaded by name: its config, its surroundings, and where its weights come from."""

    config: TokenConfig
    tokenizer: str  # names are paths: tokenizers/<family>.py, VARIANTS[<variant>]
    actions: str  # worlds/<name>.py
    fps: int | Fraction
    sampling: Sampling
    licence: str
    source: str
    random: bool = False  # no weights exist: loads with random ones unless told otherwise
    embedded: str = ""  # the folder of `assets` with the weights that the package ships
    text: str = ""  # the encoder of the texts that guide it, in text.ENCODERS
    fit: Fit | None = None  # for families whose checkpoints differ
    mark: str = ""  # text drawn into every written frame
    prompt_frames: int = 1  # of a clip that is continued, where nobody says how many

    def layout(self, frames: int) -> Layout:
        """The token sequence of a video of so many token frames."""
        config = self.config
        return Layout(Grid(frames, config.rows, config.cols), len(config.prefix_ids), config.suffix)


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


class DiffusionConfig(Protocol):
    """The numbers of a diffusion model that its surroundings need."""

    @property
    def channels(self) -> int:
        """Channels of a latent."""
        ...

    @property
    def patch(self) -> int:
        """Latent cells per token along each side of a frame."""
        ...

    @property
    def text_dim(self) -> int:
        """Width of the prompt's embeddings."""
        ...

    @property
    def text_length(self) -> int:
        """Rows of the prompt's embeddings, at most."""
        ...

    def build(self) -> nn.Module:
        """The model, uninitialised where the device context says so."""
        ...


@dataclass(frozen=True, slots=True)
class DiffusionVariant:
    """One diffusion model that can be loaded by name: its config, its surroundings, and where its weights come from."""

    config: DiffusionConfig
    vae: str  # names are paths: tokenizers/<family>.py, VARIANTS[<variant>]
    preview: str  # the fast decoder of the same latents, likewise; '': there is none
    text: str  # the encoder of the prompts, in text.ENCODERS
    licence: str
    source: str
    fps: int | Fraction = 16
    size: tuple[int, int] = (480, 832)  # height and width of the frames it was trained on
    frames: int = 81  # of the videos that it was trained on
    random: bool = False  # no weights exist: loads with random ones unless told otherwise
    embedded: str = ""  # the folder of `assets` with the weights that the package ships


def token_variant(found: Variant | DiffusionVariant, name: str) -> Variant:
    """A model of tokens, where nothing else will do."""
    if isinstance(found, DiffusionVariant):
        raise ValueError(f"{name} denoises latents and has no tokens; this needs a token model, such as mcar/tiny")
    return found
