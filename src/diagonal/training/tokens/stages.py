"""The stages of a recipe, each a folder that the next one reads: recording, tokenizer, base, diagonal, judge.

Every stage can be killed and started again: recordings keep the shards they have, runs go on from their checkpoint.
A finished stage leaves `model.safetensors`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diagonal import checkpoints
from diagonal.catalog.names import find
from diagonal.catalog.variants import Variant
from diagonal.networks import lpips
from diagonal.networks.inverse_dynamics import Config as JudgeConfig
from diagonal.planning.plan import Order
from diagonal.training.data.recordings import TokenData, ahead, frames, join, read, tokenize
from diagonal.training.judges.actions import JudgeTask
from diagonal.training.loop import claim, fit
from diagonal.training.recipe import JudgeRecipe, Recipe, TokenizerRecipe, WorldRecipe
from diagonal.training.tokens.tokenizer import TokenizerTask
from diagonal.training.tokens.world import WorldTask
from diagonal.worlds import vizdoom
from diagonal.worlds.recordings import Part

Line = dict[str, Any]
MODEL = "model.safetensors"


def build(config: Any, seed: int, device: torch.device | str) -> Any:
    """A module with weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return config.build().to(device)


def frame_size(recipe: Recipe) -> tuple[int, int]:
    """Height and width of the frames that the recipe's model takes."""
    variant: Variant = find("models", recipe.model)
    patch = find("tokenizers", variant.tokenizer).patch
    return variant.config.rows * patch, variant.config.cols * patch


def train_tokenizer(
    recipe: TokenizerRecipe, data: Part, held_out: Part, folder: Path, lpips_file: str | Path | None = None
) -> Iterator[Line]:
    """Train a tokenizer on frames; LPIPS joins the loss where its weights are given."""
    device = data.frames_NHWC.device
    module = build(find("tokenizers", recipe.variant), recipe.run.seed, device)
    perceptual: dict[str, Tensor] | None = None if lpips_file is None else lpips.load(lpips_file, device)
    task = TokenizerTask(
        module,
        data.frames_NHWC,
        held_out.frames_NHWC,
        recipe.batch,
        recipe.lr,
        recipe.run.seed,
        perceptual,
        recipe.lpips_scale,
    )
    claim(folder, settings(recipe))
    yield from fit(task, recipe.run, folder)
    checkpoints.save({"tokenizer": module}, folder / MODEL, {"tokenizer": recipe.variant})


def load_tokenizer(name: str, folder: Path, device: torch.device | str) -> Any:
    """A trained tokenizer, ready to encode."""
    if not (folder / MODEL).is_file():
        raise FileNotFoundError(f"{folder} holds no trained tokenizer ({MODEL})")
    module = find("tokenizers", name).build()
    checkpoints.load(module, checkpoints.read(folder / MODEL), name)
    # Frames lie in memory pixel by pixel; convolutions on a GPU want their weights so too.
    return module.to(device, torch.float32, memory_format=torch.channels_last).eval().requires_grad_(False)


def train_world(
    recipe: WorldRecipe, model: str, data: tuple[TokenData, ...], folder: Path, start: Path | None = None
) -> Iterator[Line]:
    """Train a world on tokens (training, held out), from scratch or from the weights of an earlier stage."""
    train, held_out = data
    device = train.units_NU.device
    variant: Variant = find("models", model)
    module = build(variant.config, recipe.run.seed, device)
    if start is not None:
        checkpoints.load(module, checkpoints.read(start), model)
        module.to(device, torch.float32)  # shipped weights are smaller; masters must not be
    task = WorldTask(
        module,
        train,
        held_out,
        [(Order.of(spec), share) for spec, share in recipe.mixture],
        recipe.batch,
        recipe.run.seed,
        lr=recipe.lr,
        muon_lr=recipe.muon_lr,
        weight_decay=recipe.weight_decay,
        corruption=recipe.corruption,
        held_out_sequences=recipe.held_out_sequences,
    )
    claim(folder, settings(recipe))
    yield from fit(task, recipe.run, folder)
    checkpoints.save({"transformer": module}, folder / MODEL, {"model": model})


def train_judge(recipe: JudgeRecipe, data: Part, held_out: Part, folder: Path) -> Iterator[Line]:
    """Train the inverse-dynamics network."""
    module = build(JudgeConfig(len(vizdoom.ACTIONS)), recipe.run.seed, data.frames_NHWC.device)
    task = JudgeTask(module, data, held_out, recipe.batch, recipe.lr, recipe.run.seed)
    claim(folder, settings(recipe))
    yield from fit(task, recipe.run, folder)
    checkpoints.save({"judge": module}, folder / MODEL, {"judge": "vizdoom"})


def settings(recipe: Any) -> Line:
    """What makes the run of a part of a recipe another run. Its gate judges the run, and changes nothing in it."""
    given: Line = asdict(recipe)
    given.pop("gate", None)
    run: Line = given.pop("run")
    return run | given


def tokens(recipe: Recipe, folder: Path, recording: Path, device: torch.device | str) -> TokenData:
    """A recording through the tokenizer that stands in `folder`, file by file."""
    variant: Variant = find("models", recipe.model)
    tokenizer = load_tokenizer(variant.tokenizer, folder, device)
    read_parts = ahead(read(recording, frame_size(recipe)))
    return join([tokenize(part, tokenizer, variant.config.codebook) for part in read_parts])


def held_out_shards(recipe: Recipe, folder: Path) -> list[vizdoom.Shard]:
    """Episodes that training never sees."""
    return vizdoom.shards(
        recipe.scenario, recipe.held_out_frames, recipe.held_out_seed, folder / "held-out", recipe.held_out_episode
    )


def recordings(recipe: Recipe, folder: Path, device: torch.device | str) -> tuple[Part, Part]:
    """The frames that train the tokenizer and the judge, and the held-out recording, on the device."""
    size = frame_size(recipe)
    if not recipe.tokenizer_frames:
        raise ValueError(f"the recipe of {recipe.model} trains no tokenizer and no judge: it takes finished ones")
    return frames(folder / "train", size, device, recipe.tokenizer_frames), frames(folder / "held-out", size, device)


def make(
    recipe: Recipe, folder: Path, device: torch.device | str, lpips_file: str | Path | None = None, workers: int = 1
) -> Iterator[tuple[str, Line]]:
    """All stages of a recipe into folders below `folder`; yields the stage's name with each line of its curve."""
    if recipe.world != "vizdoom":
        raise ValueError(f"{recipe.model} learns from {recipe.world}, which is not recorded here; train its parts")
    data = folder / "data"
    for part, planned in (
        ("train", vizdoom.shards(recipe.scenario, recipe.frames, recipe.seed, data / "train")),
        ("held-out", held_out_shards(recipe, data)),
    ):
        done = 0
        for new in vizdoom.record(planned, workers):
            done += new
            yield "record " + part, {"step": done}
    train, held_out = recordings(recipe, data, device)
    yield from _named("tokenizer", train_tokenizer(recipe.tokenizer, train, held_out, folder / "tokenizer", lpips_file))
    if recipe.judge is not None:
        yield from _named("judge", train_judge(recipe.judge, train, held_out, folder / "judge"))
    del train, held_out
    both = tuple(tokens(recipe, folder / "tokenizer", data / part, device) for part in ("train", "held-out"))
    yield from _named("base", train_world(recipe.base, recipe.model, both, folder / "base"))
    for name, later in (("finetune", recipe.finetune), ("diagonal", recipe.diagonal)):
        yield from _named(name, train_world(later, recipe.model, both, folder / name, start=folder / "base"))


def _named(name: str, lines: Iterator[Line]) -> Iterator[tuple[str, Line]]:
    return ((name, line) for line in lines)
