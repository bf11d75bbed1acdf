"""Models that can be loaded by name, as data: config, surroundings, licence, source, and names of published keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

from torch import Tensor, nn

from diagonal.planning.grid import Grid, Layout
from diagonal.planning.sampling import Sampling

# Makes of a checkpoint's tensors, under their original names, those of the model: what is the same in every call may be
# added up once. (config, tensors) -> tensors.
Fold = Callable[[Any, Mapping[str, Tensor]], Mapping[str, Tensor]]


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
    beside: str = ""  # where a file has no prefix for the model: the one of the tokenizer's keys in it


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """How a model's layers are divided among GPUs (Shoeybi et al., 2019: Megatron-LM). '{}' stands for any layer.

    Of `column_parallel` layers every GPU has a part of the outputs. They name the matrices that lie one below the other
    in them, each by the field of the config that counts its units: of ("heads", "kv_heads", "kv_heads") every GPU has
    as many of each. `row_parallel` layers read these parts; their results are summed over all GPUs. `counts` are the
    modules' numbers of heads, which become those of one GPU. All else is whole everywhere.
    """

    column_parallel: Mapping[str, tuple[str, ...]]
    row_parallel: tuple[str, ...]
    counts: tuple[str, ...]


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
    row_end: int | None = None  # the id that ends each row, in the last column; None: rows end without one
    written: bool = False  # texts are tokens of the sequence, before the picture: the model has `behind`
    steered: bool = False  # videos may go by a class or by pictures: the model has `bind_class` and `bind_pictures`
    fit: Fit | None = None  # for families whose checkpoints differ
    mark: str = ""  # text drawn into every written frame
    prompt_frames: int = 1  # of a clip that is continued, where nobody says how many; 0: it begins with nothing
    card: str = ""  # its model card, among the project's documents
    prompt_last: bool = False  # they are the clip's last frames; else its first, behind which recorded actions go on

    def layout(self, frames: int) -> Layout:
        """The token sequence of a video of so many token frames."""
        config = self.config
        grid = Grid(frames, config.rows, config.cols)
        return Layout(grid, len(config.prefix_ids), config.suffix, self.row_end is not None)


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
    preset: str = "diagonal-distillation"  # how it is run, where nobody says how
    fold: Fold | None = None  # for families whose checkpoints hold more than the model: see `Fold`
    card: str = ""  # its model card, among the project's documents
    random: bool = False  # no weights exist: loads with random ones unless told otherwise
    embedded: str = ""  # the folder of `assets` with the weights that the package ships
    pipelined: bool = False  # the batch of its calls are chunks of one video: it runs under presets with a pipeline


def token_variant(found: Variant | DiffusionVariant, name: str) -> Variant:
    """A model of tokens, where nothing else will do."""
    if isinstance(found, DiffusionVariant):
        raise ValueError(f"{name} denoises latents and has no tokens; this needs a token model, such as mcar/tiny")
    return found


def diffusion_variant(found: Variant | DiffusionVariant, name: str) -> DiffusionVariant:
    """A diffusion model, where nothing else will do."""
    if isinstance(found, Variant):
        raise ValueError(f"{name} is a token world; this needs a diffusion model, such as wan/tiny")
    return found
