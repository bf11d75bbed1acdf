"""The parts of a diffusion model from what is published: transformer, VAE, preview, and where the text encoder is.

Understood are a diffusers pipeline (folders transformer, vae, text_encoder, tokenizer), the folder of Wan's authors
(safetensors, Wan2.1_VAE.pth, models_t5_umt5-xxl-enc-bf16.pth), the `.pt` files of the Self-Forcing family, which hold a
transformer alone, and what `VideoModel.save_pretrained` writes. Each may be a path or a hub id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from diagonal import checkpoints
from diagonal.catalog.names import find
from diagonal.catalog.variants import DiffusionVariant, WeightMap
from diagonal.checkpoints.described import check_described
from diagonal.checkpoints.lora import PREFIX, merge_lora
from diagonal.engine.pipeline.texts import SpecialTokens
from diagonal.text import special_tokens, umt5
from diagonal.text.encoders import ENCODERS, Encoder

NONE = "none"
TRANSFORMER, VAE, TOKENIZER, TEXT = "transformer", "vae", "tokenizer", "text_encoder"  # folders of a diffusers pipeline
VAE_FILE = "Wan2.1_VAE.pth"


@dataclass(frozen=True, slots=True)
class Weights:
    """Where the parts of a model come from: files, folders or hub ids. What is None is looked for beside the
    transformer; without a text encoder there, it is the hub's. A token world has a transformer and LoRAs alone."""

    transformer: str | Path | None = None  # or 'random'; None: those that the package ships, if it does
    vae: str | Path | None = None  # 'none': do without
    preview: str | Path | None = None  # TAEHV, the fast decoder
    text_encoder: str | Path | None = None
    lora: Sequence[str | Path] = ()  # merged into the transformer, one after the other
    lora_scale: float = 1.0
    part: str | None = None  # of a file that holds several models, such as generator or generator_ema
    special_tokens: str | Path | None = None  # of MAGI-1: what stands before a caption; None: nothing does

    def __post_init__(self) -> None:
        if isinstance(self.lora, str):
            raise ValueError(f"lora={self.lora!r} given; it must be a list of files, such as [{self.lora!r}]")

    @property
    def random(self) -> bool:
        """Nothing was trained."""
        return self.transformer is None or str(self.transformer) == checkpoints.RANDOM

    @property
    def foreign(self) -> list[str]:
        """What is named here and no token world has."""
        parts = {"vae": self.vae, "preview": self.preview, "text_encoder": self.text_encoder, "part": self.part}
        parts |= {"special_tokens": self.special_tokens}
        return [name for name, place in parts.items() if place is not None]

    def places(self) -> tuple[str | Path, ...]:
        """The checkpoints that the frames depend on, without the text encoder: transformer, decoders, LoRAs."""
        named = (None if self.random else self.transformer, self.vae, self.preview, *self.lora)
        return tuple(place for place in named if place is not None and str(place) != NONE)


@dataclass(frozen=True, slots=True)
class Components:
    """The modules, on the CPU or the meta device's successor, and the text encoder's place. None: there is none."""

    transformer: Any
    vae: Any
    preview: Any
    encoder: Encoder
    special: SpecialTokens | None = None


def untrained(
    variant: DiffusionVariant, source: Weights, device: torch.device, dtype: torch.dtype | None
) -> Components:
    """Random weights, of torch's seed: as the modules initialise themselves for float32 on a CPU, and otherwise drawn
    on the device. Decoders may be trained ones all the same."""
    if source.lora:
        raise ValueError("lora given, but the weights are random: give those that it belongs to")
    plain = device.type == "cpu" and dtype in (None, torch.float32)
    with torch.device("cpu" if plain else "meta"):
        transformer = variant.config.build()
    if not plain:
        checkpoints.randomise(transformer, device, dtype, torch.initial_seed())
    vae, preview = (
        _untrained(name, place) for name, place in ((variant.vae, source.vae), (variant.preview, source.preview))
    )
    return Components(transformer, vae, preview, _encoder(variant, source, None), _special(variant, source))


def _untrained(name: str, place: str | Path | None) -> Any:
    """A decoder with random weights, or a trained one all the same; None where there is none."""
    if not name or str(place) == NONE:
        return None
    return find("tokenizers", name).build() if place is None else _decoder(name, place)


def published(name: str, variant: DiffusionVariant, source: Weights) -> Components:
    """The parts with their weights, as they are stored."""
    assert source.transformer is not None
    if source.preview is not None and not variant.preview:
        raise ValueError(f"preview {str(source.preview)!r} given; {name} has no other decoder than its VAE")
    folder = checkpoints.locate(source.transformer, folders=(TRANSFORMER, VAE))
    within, special = _within(folder), _special(variant, source)
    if within.is_dir():
        check_described(within, asdict(cast(Any, variant.config)), name)
    with torch.device("meta"):
        transformer: Any = variant.config.build()
    state = checkpoints.read(within, source.part)
    if any(key.endswith(".weight_scale") for key in state):
        raise ValueError(f"{within} holds weights of fp8; give those of bfloat16: quantize='fp8' rounds them here")
    own = checkpoints.prefix(state, transformer.weight_map)
    rest = {key: value for key, value in state.items() if not key.startswith(own)}
    extra = sorted(key for key in rest if not key.startswith(f"{TOKENIZER}."))
    if extra:
        raise ValueError(f"{source.transformer} has keys that belong to no part of {name}: {checkpoints.some(extra)}")
    for file in source.lora:
        state = _with_lora(state, file, source.lora_scale, transformer.weight_map)
    if variant.fold is not None:
        state = _folded(variant, state, transformer.weight_map)
    checkpoints.load(transformer, state, name)
    place = source.vae or next((path for path in (folder / VAE, folder / VAE_FILE) if path.exists()), None)
    if place is None and not rest and source.preview is None:
        raise ValueError(
            f"{source.transformer} holds no VAE; give one too (Weights(vae=...), --vae): {published_vae(variant)}. "
            f"{NONE!r} does without, for latents alone"
        )
    if place is not None:
        vae = None if str(place) == NONE else _decoder(variant.vae, place)
    else:
        vae = _filled(variant.vae, rest) if rest else None
    preview = None if source.preview is None else _decoder(variant.preview, source.preview)
    return Components(transformer, vae, preview, _encoder(variant, source, folder), special)


def _within(folder: Path) -> Path:
    """Where the transformer lies in a folder: in one of its own, or as MAGI-1 is published, in `inference_weight`."""
    if (folder / TRANSFORMER).is_dir():
        return folder / TRANSFORMER
    found = checkpoints.released(folder)
    if len(found) > 1:
        raise ValueError(f"{folder} holds {checkpoints.some([one.name for one in found])}; name the one to load")
    return found[0] if found else folder


def _special(variant: DiffusionVariant, source: Weights) -> SpecialTokens | None:
    """What stands before captions, where a file of it is named."""
    if source.special_tokens is None:
        return None
    if not variant.pipelined:
        raise ValueError(f"special_tokens {str(source.special_tokens)!r} given; only MAGI-1 has some: leave them out")
    return special_tokens.read(source.special_tokens, variant.config.text_dim)


def published_vae(variant: DiffusionVariant) -> str:
    """Where the VAE of a model is found, in words."""
    if variant.pipelined and not variant.random:
        return f"the folder ckpt/vae of {variant.source}"
    if variant.random or variant.embedded:  # nobody else has one of these sizes
        return "a folder that `diagonal convert` or save_pretrained wrote, which holds the model's own"
    return f"{VAE_FILE}, or a folder or hub id with it, such as {variant.source}"


def _decoder(name: str, source: str | Path) -> Any:
    """A VAE, or a preview, from its file or from a folder that holds it among others."""
    path = checkpoints.locate(source, folders=(VAE,))
    within = next((one for one in (path / VAE, path / VAE_FILE) if one.exists()), path)
    return _filled(name, checkpoints.read(within))


def _filled(name: str, state: Mapping[str, Tensor]) -> Any:
    with torch.device("meta"):
        module = find("tokenizers", name).build()
    checkpoints.load(module, state, name)
    return module


def add_lora(model: Any, source: Weights, dtype: torch.dtype | None) -> None:
    """Merge the LoRAs of a token world, of its own names, into its weights: before these are rounded to the dtype."""
    state: checkpoints.State = model.state_dict()
    if dtype is not None:
        state = {key: value.float() for key, value in state.items()}
    for file in source.lora:
        state = merge_lora(state, checkpoints.read(file), source.lora_scale)
    model.load_state_dict(state, strict=True, assign=True)


def _with_lora(state: Mapping[str, Tensor], file: str | Path, scale: float, names: WeightMap) -> checkpoints.State:
    """A transformer's state under its original names, with a LoRA merged, whatever names both had."""
    lora = {PREFIX.sub("", key): value for key, value in checkpoints.read(file).items()}
    return merge_lora(_original(state, names), checkpoints.rename(lora, names.aliases), scale)


def _folded(variant: DiffusionVariant, state: Mapping[str, Tensor], names: WeightMap) -> checkpoints.State:
    """A transformer's state under its original names, without what its family folds into others."""
    assert variant.fold is not None
    return dict(variant.fold(variant.config, _original(state, names)))


def _original(state: Mapping[str, Tensor], names: WeightMap) -> checkpoints.State:
    """The tensors of the transformer among those of a file, under their original names."""
    own = checkpoints.prefix(state, names)
    return checkpoints.rename(
        {key[len(own) :]: value for key, value in state.items() if key.startswith(own)}, names.aliases
    )


def _encoder(variant: DiffusionVariant, source: Weights, folder: Path | None) -> Encoder:
    """Where prompts are encoded: what is named, what lies beside the transformer, or the usual one from the hub."""
    encoder = ENCODERS[variant.text]
    if source.text_encoder is not None:
        pipeline = (Path(source.text_encoder).expanduser() / TEXT).is_dir()
        return replace(encoder, source=str(source.text_encoder), folders=(TOKENIZER, TEXT) if pipeline else ("", ""))
    if folder is None or not folder.is_dir():
        return encoder
    if (folder / TRANSFORMER).is_dir():  # a hub's pipeline is named by its id: the encoder is fetched when needed
        return replace(encoder, source=str(source.transformer), folders=(TOKENIZER, TEXT))
    return replace(encoder, source=str(folder)) if umt5.find(str(folder)) else encoder
