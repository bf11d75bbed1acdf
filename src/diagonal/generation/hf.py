"""`load("hf:BAAI/Emu3-Gen")`: pictures by token models of transformers, behind a text, under our schedules.

A family says where the picture begins, which ids it has, and how ids become pixels. Weights are read by transformers,
from safetensors alone; no code of a repository is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diagonal.catalog.variants import Variant, WeightMap
from diagonal.generation.world import World
from diagonal.models.hf import Config, HFTokenModel, Written
from diagonal.planning.sampling import Sampling

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Emu3:
    """One vocabulary for texts and pictures; rows end with a token of their own."""

    def base(self, model: Any) -> Any:
        return model.model.text_model

    def embed(self, model: Any, tokens_BS: Tensor, pictures_S: Tensor) -> Tensor:
        embedded: Tensor = model.model.text_model.embed_tokens(tokens_BS)
        return embedded

    def head(self, model: Any, hidden_BSM: Tensor) -> Tensor:
        logits: Tensor = model.lm_head(hidden_BSM)
        return logits


@dataclass(frozen=True, slots=True)
class Chameleon:
    """One vocabulary; rows follow each other directly. Its head is asked itself: the model hides ids of pictures."""

    def base(self, model: Any) -> Any:
        return model.model

    def embed(self, model: Any, tokens_BS: Tensor, pictures_S: Tensor) -> Tensor:
        embedded: Tensor = model.model.embed_tokens(tokens_BS)
        return embedded

    def head(self, model: Any, hidden_BSM: Tensor) -> Tensor:
        logits: Tensor = model.lm_head(hidden_BSM)
        return logits


@dataclass(frozen=True, slots=True)
class Janus:
    """Pictures have an embedding and a head of their own."""

    def base(self, model: Any) -> Any:
        return model.model.language_model

    def embed(self, model: Any, tokens_BS: Tensor, pictures_S: Tensor) -> Tensor:
        whole, codes = model.model, model.model.generation_embeddings
        words = whole.language_model.embed_tokens
        text: Tensor = words(tokens_BS.clamp(max=words.num_embeddings - 1))
        drawn: Tensor = whole.generation_aligner(codes(tokens_BS.clamp(max=codes.num_embeddings - 1)))
        embedded: Tensor = torch.where(pictures_S[:, None], drawn, text)
        return embedded

    def head(self, model: Any, hidden_BSM: Tensor) -> Tensor:
        logits: Tensor = model.model.generation_head(hidden_BSM)
        return logits


class Pixels(nn.Module):
    """Ids of a picture to pixels, by the model's own decoder."""

    whole, stride = False, 1
    weight_map = WeightMap(prefixes=("tokenizer.", ""))

    def __init__(self, config: PixelsConfig) -> None:
        super().__init__()
        self.config, self.patch = config, config.patch

    def encode(self, video_BTCHW: Tensor) -> Tensor:
        """Pictures begin with a text, so none is read."""
        raise ValueError("this model makes pictures from a text; it continues none")

    def decode(self, tokens_BTHW: Tensor, state: MutableMapping[str, Tensor]) -> Tensor:
        """Pixels of each picture, uint8."""
        ids_NHW = tokens_BTHW.flatten(0, 1)[..., : tokens_BTHW.shape[-1] - self.config.row_end]
        with torch.inference_mode():
            pixels = self.config.decode(ids_NHW).float().clamp(-1, 1)
            shown = ((pixels + 1) * 127.5).round().to(torch.uint8)
        frames: Tensor = shown.unflatten(0, tokens_BTHW.shape[:2])
        return frames


@dataclass(frozen=True, slots=True)
class PixelsConfig:
    """How ids become pixels (N, 3, H, W) in [-1, 1]."""

    patch: int
    row_end: bool
    decode: Callable[[Tensor], Tensor]

    def build(self) -> Pixels:
        return Pixels(self)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is known of a family of models."""

    make: Callable[[Any, Any], tuple[Config, PixelsConfig]]  # of (the model, its text tokenizer)
    sampling: Sampling
    licence: str


def load_hf(source: str, device: torch.device, dtype: torch.dtype | None) -> World:
    """A world of pictures from a folder or a hub id."""
    try:
        from transformers import AutoConfig, AutoModelForImageTextToText, AutoTokenizer
    except ImportError as error:
        raise ValueError(f"models of transformers need it ({error}): pip install 'diagonal[text]'") from error
    if not Path(source).is_dir() and not HUB_ID.fullmatch(source):
        raise FileNotFoundError(f"{source} is no folder, and no hub id such as BAAI/Emu3-Gen")
    try:
        settings = AutoConfig.from_pretrained(source)
    except OSError as error:
        raise ValueError(f"{source} could not be read: {str(error).splitlines()[0]}") from error
    kind = KINDS.get(settings.model_type)
    if kind is None:
        raise ValueError(
            f"{source} is a {settings.model_type}, of which nobody has said how it makes pictures; known: "
            f"{', '.join(sorted(KINDS))}. A new family is a few lines (docs/hf.md)"
        )
    text = AutoTokenizer.from_pretrained(source)
    model: Any = AutoModelForImageTextToText.from_pretrained(source, dtype=dtype or "auto", use_safetensors=True)
    model.to(device).eval().requires_grad_(False)
    config, pixels = kind.make(model, text)
    variant = Variant(
        config,
        tokenizer="",
        actions="none",
        fps=1,
        sampling=kind.sampling,
        licence=kind.licence,
        source=source,
        prompt_frames=0,
        row_end=config.row_end,
        written=True,
    )
    world = World(f"hf:{source}", variant, pixels, source, "meta")
    world.sources = (source,) if Path(source).is_dir() else ()  # of a hub id transformers alone knows the files
    world.model = world.runner = HFTokenModel(config, model)
    return world


def _emu3(model: Any, text: Any) -> tuple[Config, PixelsConfig]:
    words = model.config.vocabulary_map
    ids = torch.tensor([words[name] for name in sorted(words) if name.startswith("<|visual token")])
    low, vq = int(ids.min()), model.model.vqmodel
    if not torch.equal(ids, torch.arange(low, low + len(ids))):
        raise ValueError("the ids of this Emu3's pictures are not in a row, in the order of their codes: not supported")
    end = words["<|extra_200|>"]

    def write(config: Config, words: str, other: str) -> Written:
        begin = f"<|image start|>{config.rows}*{config.cols - 1}<|image token|>"
        texts = (f"{text.bos_token}{part}{begin}" for part in (words, other))
        return _written(*(text.encode(one, add_special_tokens=False) for one in texts))

    ids_LH = (low, low + len(ids))
    config = Config(Emu3(), model.config, 90, 91, ids_LH, row_end=end, write=write, guidance=3.0)
    return config, PixelsConfig(int(vq.spatial_scale_factor), True, lambda ids_NHW: vq.decode(ids_NHW - low))


def _chameleon(model: Any, text: Any) -> tuple[Config, PixelsConfig]:
    mapping = model.model.vocabulary_mapping
    low, high = min(mapping.image_tokens), max(mapping.image_tokens) + 1
    if high - low != len(mapping.image_tokens):
        raise ValueError("the ids of this model's pictures are not in a row: not supported")

    def decode(ids_NHW: Tensor) -> Tensor:
        raise ValueError(
            "transformers has no decoder of this model's pictures; take the ids: stream(None).token_frames()"
        )

    def write(config: Config, words: str, other: str) -> Written:
        return _written(*(text.encode(f"{part}<racm3:break>") for part in (words, other)))

    return Config(Chameleon(), model.config, 32, 32, (low, high), write=write), PixelsConfig(16, False, decode)


def _janus(model: Any, text: Any) -> tuple[Config, PixelsConfig]:
    vq = model.model.vqmodel
    side = round(int(model.model.vision_model.config.num_image_tokens) ** 0.5)

    def write(config: Config, words: str, other: str) -> Written:
        ids = text.encode(f"{text.bos_token}{words}<begin_of_image>", add_special_tokens=False)
        kept = {ids[0], ids[-1]}
        padding = text.pad_token_id
        return Written(ids, [one if one in kept else padding for one in ids])

    codes = (0, int(vq.config.num_embeddings))
    config = Config(Janus(), model.config, side, side, codes, write=write, guidance=5.0)
    patch = 2 ** (len(vq.config.channel_multiplier) - 1)
    return config, PixelsConfig(patch, False, lambda ids_NHW: vq.decode(ids_NHW.flatten(1)))


def _written(ids: list[int], other: list[int]) -> Written:
    """Both of the length of the longer one: what is guided away from is padded, and so is a text that is shorter."""
    if len(other) > len(ids):
        raise ValueError("the negative text is longer than the text; shorten it, or say more of what is to be seen")
    return Written(ids, [-1] * (len(ids) - len(other)) + other)


KINDS = {
    "emu3": _Kind(_emu3, Sampling(top_k=2048), "Apache-2.0"),
    "chameleon": _Kind(_chameleon, Sampling(), "Chameleon Research License: non-commercial"),
    "janus": _Kind(_janus, Sampling(), "DeepSeek Model License"),
}
