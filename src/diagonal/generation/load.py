"""From names and files to models: worlds of tokens and diffusion models.

world = load("mcar/700m", weights="700M_16f.ckpt")
model = load("wan/1.3b", Weights("Wan-AI/Wan2.1-T2V-1.3B-Diffusers"), device="cuda", dtype=torch.bfloat16)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, overload

import torch

from diagonal import checkpoints
from diagonal.catalog.names import HF, find
from diagonal.catalog.variants import DiffusionVariant, Variant
from diagonal.engine.ranks import Ranks
from diagonal.generation.checks import check_weights
from diagonal.generation.components import Weights, add_lora, published, untrained
from diagonal.generation.devices import check_device, kernels_last
from diagonal.generation.video import VideoModel
from diagonal.generation.world import World
from diagonal.models.sharding import Shard


@overload
def load(  # type: ignore[overload-overlap]  # these names are not of worlds, which a type of all others cannot say
    name: Literal[
        "wan/1.3b", "wan/14b", "wan/tiny", "skyreels/1.3b", "skyreels/14b", "skyreels/tiny", "doom-t2v", "doom-t2v/tiny"
    ]
    | Literal["magi/4.5b", "magi/24b", "magi/tiny"],
    weights: str | Path | Weights | None = None,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = torch.float32,
    seed: int = 0,
) -> VideoModel:
    """A diffusion model."""


@overload
def load(
    name: str,
    weights: str | Path | Weights | None = None,
    *,
    tokenizer: str | Path | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = torch.float32,
    seed: int = 0,
) -> World:
    """A token model."""


def load(
    name: str,
    weights: str | Path | Weights | None = None,
    *,
    tokenizer: str | Path | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = torch.float32,
    seed: int = 0,
) -> World | VideoModel:
    """A model by name, with weights from a file, a folder or a hub id; `weights="random"` needs none.

    `tokenizer` names a file of its own for the tokenizer, where the checkpoint has none; the parts of a diffusion model
    are named in `Weights`, and so are LoRAs, of any model: `Weights("folder", lora=["adapter.safetensors"])`.
    `dtype=None` leaves the weights as they are stored. `seed` is that of random weights: as the modules initialise
    themselves for float32 on a CPU, and otherwise drawn on the device in the dtype, so that a large model is never held
    twice. The two differ.
    """
    if name.startswith(HF):
        if weights is not None or tokenizer is not None:
            raise ValueError(f"weights and tokenizer are those of {name.removeprefix(HF)}; leave them out")
        from diagonal.generation.hf import load_hf

        return load_hf(name.removeprefix(HF), check_device(device), dtype)
    found = find("models", name)
    if isinstance(found, DiffusionVariant):
        if tokenizer is not None:
            raise ValueError(f"tokenizer given; {name} has a VAE in its place: weights=Weights(..., vae=...)")
        return load_video_model(name, weights, device=device, dtype=dtype, seed=seed)
    source = weights if isinstance(weights, Weights) else Weights(weights)
    if source.foreign:
        raise ValueError(f"Weights with {', '.join(source.foreign)} given; {name} is a token model and has none")
    return load_world(name, found, (source, tokenizer), Place(check_device(device), dtype), seed)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model computes, and in which dtype; with other ranks, each of which has a shard, or alone."""

    device: torch.device
    dtype: torch.dtype | None
    ranks: Ranks | None = None

    @property
    def as_initialised(self) -> bool:
        """Whether random weights are those with which modules initialise themselves."""
        return self.device.type == "cpu" and self.dtype in (None, torch.float32)


def load_world(
    name: str, variant: Variant, sources: tuple[Weights, str | Path | None], place: Place, seed: int = 0
) -> World:
    """A token model with its tokenizer; `sources` are the weights, and the tokenizer's where they are apart."""
    source, tokenizer = sources
    weights = source.transformer
    check_weights(name, variant, weights)
    label = label_of(name, variant, weights)
    if weights is None and variant.embedded:
        weights = checkpoints.ASSETS / variant.embedded
    network = find("tokenizers", variant.tokenizer)
    if weights is None or str(weights) == checkpoints.RANDOM:
        if source.lora:
            raise ValueError(f"lora given, but the weights of {name} are random: give those that it belongs to")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            world = World(name, variant, network, checkpoints.RANDOM, "cpu" if place.as_initialised else "meta")
            shard = world.divide(place.ranks)
            if not place.as_initialised:
                world.tokenizer = network.build()  # small, and it may keep tables that it computes
                checkpoints.randomise(world.model, place.device, place.dtype, seed, shard)
    else:
        read = checkpoints.read if place.ranks is None else checkpoints.read_stored
        state: Mapping[str, checkpoints.Stored] = read(weights)
        separate: Mapping[str, checkpoints.Stored] | None = None if tokenizer is None else read(tokenizer)
        if variant.fit is not None:
            settings = checkpoints.settings(weights if tokenizer is None else tokenizer)
            states: Any = (state, separate or state)  # it asks for names and shapes alone
            config, network = variant.fit(variant.config, network, states, settings)
            variant = replace(variant, config=config)
        world = World(name, variant, network, label, "meta")
        world.sources = tuple(one for one in (weights, tokenizer, *source.lora) if one is not None)
        _fill(world, state, separate, world.divide(place.ranks))
        if source.lora:
            add_lora(world.model, source, place.dtype)
    for module in (world.model, world.tokenizer):
        module.to(device=place.device, dtype=place.dtype).eval().requires_grad_(False)
    world.connect()
    if place.device.type in ("cuda", "cpu"):
        kernels_last(world.tokenizer)
    return world


def label_of(name: str, variant: Variant | DiffusionVariant, weights: str | Path | None) -> str:
    """What a loaded model says of its weights: 'embedded', 'random', or where they were."""
    if name.startswith(HF):
        return name.removeprefix(HF)
    if weights is None:
        return checkpoints.EMBEDDED if variant.embedded else checkpoints.RANDOM
    return str(weights)


def _fill(
    world: World,
    state: Mapping[str, checkpoints.Stored],
    separate: Mapping[str, checkpoints.Stored] | None,
    shard: Shard | None,
) -> None:
    """Load the model and the tokenizer, and refuse what belongs to neither."""
    own = checkpoints.prefix(state, world.model.weight_map)
    beside = world.model.weight_map.beside if not own else ""
    if beside:  # copies: what both have must not be one tensor, which could not be saved twice
        rest: dict[str, checkpoints.Stored] = {
            key: checkpoints.whole(value).clone() for key, value in state.items() if key.startswith(beside)
        }
    else:
        rest = {key: value for key, value in state.items() if not key.startswith(own)}
    tokenizers = checkpoints.prefix(rest, world.tokenizer.weight_map)
    if separate is None and not tokenizers:
        raise ValueError(f"{world.weights} holds no tokenizer; give its file too (tokenizer=..., --tokenizer)")
    extra = sorted(key for key in rest if not tokenizers or not key.startswith(tokenizers))
    if extra:
        raise ValueError(f"{world.weights} has keys that belong to no part of {world.name}: {checkpoints.some(extra)}")
    checkpoints.load(world.model, state, world.name, shard)
    checkpoints.load(world.tokenizer, rest if separate is None else separate, world.variant.tokenizer)


def load_video_model(
    name: str,
    weights: str | Path | Weights | None = None,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = torch.float32,
    seed: int = 0,
) -> VideoModel:
    """A diffusion model by name; the arguments are those of `load`, and `Weights` names its parts one by one."""
    variant, device = find("models", name), check_device(device)
    source = weights if isinstance(weights, Weights) else Weights(weights)
    check_weights(name, variant, source.transformer)
    label = label_of(name, variant, source.transformer)
    if source.transformer is None and variant.embedded:
        source = replace(source, transformer=checkpoints.ASSETS / variant.embedded)
    if source.random:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            parts = untrained(variant, source, device, dtype)
    else:
        parts = published(name, variant, source)
    for module in filter(None, (parts.transformer, parts.vae, parts.preview)):
        module.to(device=device, dtype=dtype).eval().requires_grad_(False)
    if device.type == "cuda":
        for codec in filter(None, (parts.vae, parts.preview)):
            kernels_last(codec)
    model = VideoModel(name, variant, checkpoints.RANDOM if source.random else label, parts)
    model.sources = source.places()
    return model
