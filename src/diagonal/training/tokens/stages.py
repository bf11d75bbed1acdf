"""The stages of a recipe for a world of tokens: recordings, tokenizer, judge, base, finetune, diagonal.

    for name, line in run(stages(recipe, Path("run"), torch.device("cuda"))): ...

Every stage has a folder of its name below the run's. Recordings keep the shards they have; stages that train go on from
their checkpoint and leave `model.safetensors`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from diagonal import checkpoints
from diagonal.catalog.names import find
from diagonal.catalog.variants import Variant
from diagonal.generation.ahead import ahead
from diagonal.media.files import atomic
from diagonal.networks import lpips
from diagonal.planning.plan import Order
from diagonal.training.data.record import recording
from diagonal.training.data.recordings import PARTS, TokenData, frames, join, read, tokenize
from diagonal.training.judges import inverse_dynamics
from diagonal.training.parallel import Sharing, shard_tokenizer, shard_world
from diagonal.training.recipe import Mixture, Recipe, WorldRecipe
from diagonal.training.stages import MODEL, Stage, build, training
from diagonal.training.tokens import adapters
from diagonal.training.tokens.tokenizer import TokenizerTask
from diagonal.training.tokens.world import WorldTask
from diagonal.worlds import vizdoom
from diagonal.worlds.recordings import Part

LORA = "lora/adapter.safetensors"  # what a stage that trains adapters leaves; MODEL has them merged


@dataclass
class RecipeData:
    """The recordings of a recipe, train/ and held-out/ in a folder, as frames and as tokens.

    What was asked for last is kept for the next stage that needs it, and let go before anything else is read.
    """

    recipe: Recipe
    folder: Path
    device: torch.device
    sharing: Sharing = field(default_factory=Sharing)
    _kept: dict[Any, Any] = field(default_factory=dict)

    def frames(self) -> tuple[Part, Part]:
        """The frames that train the tokenizer and the judge, and the held-out recording, on the device."""
        recipe, (train, held_out) = self.recipe, (self.folder / part for part in PARTS)
        if not recipe.tokenizer_frames:
            raise ValueError(f"the recipe of {recipe.model} trains no tokenizer and no judge: it takes finished ones")
        size, device = frame_size(recipe), self.device
        made: tuple[Part, Part] = self._keep(
            "frames", lambda: (frames(train, size, device, recipe.tokenizer_frames), frames(held_out, size, device))
        )
        return made

    def tokens(self, folder: Path) -> tuple[TokenData, TokenData]:
        """Both recordings through the tokenizer of a folder."""
        made: tuple[TokenData, TokenData] = self._keep(
            folder, lambda: tuple(tokens(self.recipe, folder, self.folder / part, self.device) for part in PARTS)
        )
        return made

    def _keep(self, what: Any, make: Callable[[], Any]) -> Any:
        if what not in self._kept:
            self._kept.clear()
            self._kept[what] = make()
        return self._kept[what]


def frame_size(recipe: Recipe) -> tuple[int, int]:
    """Height and width of the frames that the recipe's model takes."""
    variant: Variant = find("models", recipe.model)
    patch = find("tokenizers", variant.tokenizer).patch
    return variant.config.rows * patch, variant.config.cols * patch


def tokens(recipe: Recipe, folder: Path, recorded: Path, device: torch.device | str) -> TokenData:
    """A recording through the tokenizer of a folder, file by file."""
    variant: Variant = find("models", recipe.model)
    tokenizer = load_tokenizer(variant.tokenizer, folder, device)
    read_parts = ahead(read(recorded, frame_size(recipe)))
    return join([tokenize(part, tokenizer, variant.config.codebook) for part in read_parts])


def load_tokenizer(name: str, folder: Path, device: torch.device | str) -> Any:
    """A trained tokenizer, ready to encode."""
    if not (folder / MODEL).is_file():
        raise FileNotFoundError(f"{folder} holds no trained tokenizer ({MODEL})")
    module = find("tokenizers", name).build()
    checkpoints.load(module, checkpoints.read(folder / MODEL), name)
    # Frames lie in memory pixel by pixel; convolutions on a GPU want their weights so too.
    return module.to(device, torch.float32, memory_format=torch.channels_last).eval().requires_grad_(False)


def tokenizer_stage(data: RecipeData, folder: Path, lpips_file: Path | None = None, start: Path | None = None) -> Stage:
    """Train the recipe's tokenizer on frames, from scratch or from the weights in `start`; LPIPS joins the loss where
    its weights are given."""
    how, device, sharing = data.recipe.tokenizer, data.device, data.sharing
    if data.recipe.tuned and start is None:
        raise ValueError(
            f"the recipe of {data.recipe.model} fine-tunes a tokenizer that was trained before: give its weights, a "
            f"file of {how.variant} (--tokenizer)"
        )

    def task() -> TokenizerTask:
        module = build(find("tokenizers", how.variant), how.run.seed, device)
        if start is not None:
            checkpoints.load(module, checkpoints.read(start), how.variant)
            module.to(device, torch.float32)
        train, held_out = data.frames()
        if sharing.group is not None and sharing.world > 1:
            shard_tokenizer(module, sharing.group.mesh)
        return TokenizerTask(
            module=module,
            frames=train.frames_NHWC,
            held_out=held_out.frames_NHWC,
            batch=how.batch,
            lr=how.lr,
            seed=how.run.seed,
            lpips_weights=None if lpips_file is None else lpips.load(lpips_file, device),
            lpips_scale=how.lpips_scale,
            shard=sharing.batch_shard(how.batch),
        )

    def keep(made: TokenizerTask) -> None:
        sharing.save("tokenizer", made.module, folder / MODEL, {"tokenizer": how.variant})

    return training("tokenizer", how, folder, task, keep, sharing.group)


def judge_stage(data: RecipeData, folder: Path) -> Stage:
    """Train the recipe's judge on the same frames: a small network, by one process."""
    if data.recipe.judge is None:
        raise ValueError(f"the recipe of {data.recipe.model} has no judge")
    return data.sharing.by_first(inverse_dynamics.training_stage(data.recipe.judge, folder, data.frames))


def world_stage(
    name: str, how: WorldRecipe, data: RecipeData, tokenizer: Path, folder: Path, start: Path | None = None
) -> Stage:
    """Train the recipe's world on tokens, from scratch or from the weights in the folder `start`."""
    model, sharing = data.recipe.model, data.sharing
    sharing.batch_shard(how.batch)  # refused now where processes cannot share it

    def task() -> WorldTask:
        return world_task(how, model, data.tokens(tokenizer), start, sharing)

    if sharing.world > 1 and (how.lora is not None or how.only is not None):
        raise ValueError("adapters (--lora) and parts (--only) are learnt by one process; start without torchrun")
    return training(name, how, folder, task, lambda made: keep_world(how, model, made, folder, sharing), sharing.group)


def keep_world(how: WorldRecipe, model: str, made: WorldTask, folder: Path, sharing: Sharing | None = None) -> None:
    """Write what was trained: the weights, and before they are merged the adapters, where such were learnt."""
    if how.lora is not None:
        (folder / LORA).parent.mkdir(exist_ok=True)
        with atomic(folder / LORA) as temporary:
            checkpoints.save_tensors(adapters.adapters(made.module), temporary, {"model": model})
        adapters.merge(made.module)
    (sharing or Sharing()).save("transformer", made.module, folder / MODEL, {"model": model})


def world_task(
    how: WorldRecipe,
    model: str,
    data: tuple[TokenData, TokenData],
    start: Path | None = None,
    sharing: Sharing | None = None,
) -> WorldTask:
    """What is trained: a world of a variant, on tokens (training, held out)."""
    train, held_out = data
    device, sharing = train.units_NU.device, sharing or Sharing()
    variant: Variant = find("models", model)
    module = build(variant.config, how.run.seed, device)
    if start is not None:
        checkpoints.load(module, checkpoints.read(start), model)
        module.to(device, torch.float32)  # shipped weights are smaller; masters must not be
    module.requires_grad_(True)
    if how.lora is not None:
        adapters.adapt(module, how.lora, how.run.seed)
    if how.only is not None:
        adapters.learn_only(module, how.only)
    if sharing.group is not None and sharing.world > 1:
        shard_world(module, sharing.group.mesh)
    return WorldTask(
        module=module,
        data=train,
        held_out=held_out,
        mixture=_orders(how.mixture),
        rolled=how.rolled or 0,
        later=[(round(begin * how.run.steps), _orders(mixture)) for begin, mixture in how.later or ()],
        batch=how.batch,
        seed=how.run.seed,
        lr=how.lr,
        muon_lr=how.muon_lr,
        weight_decay=how.weight_decay,
        corruption=how.corruption,
        held_out_sequences=how.held_out_sequences,
        shard=sharing.batch_shard(how.batch),
    )


def _orders(mixture: Mixture) -> list[tuple[Order, float]]:
    return [(Order.of(spec), share) for spec, share in mixture]


def held_out_shards(recipe: Recipe, folder: Path) -> list[vizdoom.Shard]:
    """Episodes that training never sees."""
    return vizdoom.shards(
        recipe.scenario, recipe.held_out_frames, recipe.held_out_seed, folder / "held-out", recipe.held_out_episode
    )


@dataclass(frozen=True, slots=True)
class Beside:
    """What a run takes beside its recipe."""

    recordings: Path | None = None  # folder with train/ and held-out/, of worlds that are not recorded here
    tokenizer: Path | None = None  # weights that its tokenizer starts from
    lpips: Path | None = None
    workers: int = 1  # processes that record
    sharing: Sharing = field(default_factory=Sharing)


def stages(recipe: Recipe, folder: Path, device: torch.device, beside: Beside | None = None) -> list[Stage]:
    """All stages of a recipe in their order, each in its folder below `folder`."""
    beside = beside or Beside()
    data = RecipeData(recipe, beside.recordings or folder / "data", device, beside.sharing)
    tokenizer, base = folder / "tokenizer", folder / "base"
    made = [*_recorded(data, beside), tokenizer_stage(data, tokenizer, beside.lpips, beside.tokenizer)]
    if recipe.judge is not None:
        made.append(judge_stage(data, folder / "judge"))
    made.append(world_stage("base", recipe.base, data, tokenizer, base))
    for name, later in (("finetune", recipe.finetune), ("diagonal", recipe.diagonal)):
        if name == "finetune" or later != recipe.finetune:
            made.append(world_stage(name, later, data, tokenizer, folder / name, start=base))
    return made


def _recorded(data: RecipeData, beside: Beside) -> list[Stage]:
    """The stages that record; none where somebody else has."""
    recipe = data.recipe
    if recipe.world == "vizdoom":
        if beside.recordings is not None:
            raise ValueError(f"{beside.recordings} given; the recipe of {recipe.model} records by itself: leave it out")
        train, held_out = (data.folder / part for part in PARTS)
        shards = vizdoom.shards(recipe.scenario, recipe.frames, recipe.seed, train)
        both = [
            recording("train", train, shards, beside.workers),
            recording("held-out", held_out, held_out_shards(recipe, data.folder), beside.workers),
        ]
        return [beside.sharing.by_first(stage) for stage in both]
    missing = [part for part in PARTS if not (data.folder / part).is_dir()]
    if beside.recordings is None or missing:
        raise ValueError(
            f"{recipe.model} learns from {recipe.world}, which is not recorded here; give a folder with recordings in "
            f"{' and '.join(f'{part}/' for part in PARTS)} (--data)"
            + (f": {data.folder} lacks {missing[0]}/" if beside.recordings is not None else "")
        )
    return []
