"""From names and files to models: worlds of tokens and diffusion models.

world = load("mcar/700m", weights="700M_16f.ckpt")
model = load("wan/1.3b", Weights("Wan-AI/Wan2.1-T2V-1.3B-Diffusers"), device="cuda", dtype=torch.bfloat16)
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal, overload

import torch

from diagonal import checkpoints
from diagonal.catalog.names import HF, find
from diagonal.catalog.variants import DiffusionVariant, Variant
from diagonal.generation.checks import check_weights
from diagonal.generation.components import Weights, add_lora, published, untrained
from diagonal.generation.devices import check_device, kernels_last
from diagonal.generation.video import VideoModel
from diagonal.generation.world import World


@overload
def load(  # type: ignore[overload-overlap]  # these names are not of worlds, which a type of all others cannot say
    name: Literal["wan/1.3b", "wan/14b", "wan/tiny", "doom-t2v", "doom-t2v/tiny"],
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
    return _load_world(name, found, source, tokenizer, (check_device(device), dtype), seed)


def _load_world(
    name: str,
    variant: Variant,
    source: Weights,
    tokenizer: str | Path | None,
    place: tuple[torch.device, torch.dtype | None],
    seed: int,
) -> World:
    """A token model with its tokenizer, on a device and in a dtype."""
    weights = source.transformer
    check_weights(name, variant, weights)
    device, dtype = place
    label = label_of(name, variant, weights)
    if weights is None and variant.embedded:
        weights = checkpoints.ASSETS / variant.embedded
    network = find("tokenizers", variant.tokenizer)
    if weights is None or str(weights) == checkpoints.RANDOM:
        if source.lora:
            raise ValueError(f"lora given, but the weights of {name} are random: give those that it belongs to")
        plain = device.type == "cpu" and dtype in (None, torch.float32)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            world = World(name, variant, network, checkpoints.RANDOM, "cpu" if plain else "meta")
            if not plain:
                world.tokenizer = network.build()  # small, and it may keep tables that it computes
                checkpoints.randomise(world.model, device, dtype, seed)
    else:
        state = checkpoints.read(weights)
        separate = None if tokenizer is None else checkpoints.read(tokenizer)
        if variant.fit is not None:
            settings = checkpoints.settings(weights if tokenizer is None else tokenizer)
            config, network = variant.fit(variant.config, network, (state, separate or state), settings)
            variant = replace(variant, config=config)
        world = World(name, variant, network, label, "meta")
        world.sources = tuple(place for place in (weights, tokenizer, *source.lora) if place is not None)
        _fill(world, state, separate)
        if source.lora:
            add_lora(world.model, source, dtype)
    for module in (world.model, world.tokenizer):
        module.to(device=device, dtype=dtype).eval().requires_grad_(False)
    if device.type in ("cuda", "cpu"):
        kernels_last(world.tokenizer)
    return world


def label_of(name: str, variant: Variant | DiffusionVariant, weights: str | Path | None) -> str:
    """What a loaded model says of its weights: 'embedded', 'random', or where they were."""
    if name.startswith(HF):
        return name.removeprefix(HF)
    if weights is None:
        return checkpoints.EMBEDDED if variant.embedded else checkpoints.RANDOM
    return str(weights)


def _fill(world: World, state: checkpoints.State, separate: checkpoints.State | None) -> None:
    """Load the model and the tokenizer, and refuse what belongs to neither."""
    own = checkpoints.prefix(state, world.model.weight_map)
    beside = world.model.weight_map.beside if not own else ""
    if beside:  # copies: what both have must not be one tensor, which could not be saved twice
        rest = {key: value.clone() for key, value in state.items() if key.startswith(beside)}
    else:
        rest = {key: value for key, value in state.items() if not key.startswith(own)}
    tokenizers = checkpoints.prefix(rest, world.tokenizer.weight_map)
    if separate is None and not tokenizers:
        raise ValueError(f"{world.weights} holds no tokenizer; give its file too (tokenizer=..., --tokenizer)")
    extra = sorted(key for key in rest if not tokenizers or not key.startswith(tokenizers))
    if extra:
        raise ValueError(f"{world.weights} has keys that belong to no part of {world.name}: {checkpoints.some(extra)}")
    checkpoints.load(world.model, state, world.name)
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
