"""Training runs as Python: a recipe is a module here with a function `recipe()` that returns these numbers, or
`distill()`, which returns the stages that end in a distilled student, or both.

`diagonal train ... --recipe doom` is `diagonal.recipes.doom.recipe()`. Sizes of data and models, steps and seeds are
the recipe's; the code that trains knows none of them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, cast

from diagonal.training.run import RunConfig


@dataclass(frozen=True, slots=True)
class TokenizerRecipe:
    """How a tokenizer is trained. `variant` is its name in `tokenizers`."""

    variant: str
    run: RunConfig
    batch: int
    lr: float = 1e-3
    lpips_scale: float = 0.5


@dataclass(frozen=True, slots=True)
class WorldRecipe:
    """How a world is trained or fine-tuned: each order of the mixture with how often it is taught."""

    run: RunConfig
    batch: int
    mixture: tuple[tuple[str, float], ...]
    lr: float = 3e-3
    muon_lr: float | None = 0.02
    weight_decay: float = 0.01
    corruption: float = 0.0
    held_out_sequences: int = 128  # scored along the way


@dataclass(frozen=True, slots=True)
class JudgeRecipe:
    """How the inverse-dynamics network is trained."""

    run: RunConfig
    batch: int
    lr: float = 1e-3


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that makes a world: recorded data, tokenizer, raster training, diagonal training, judge."""

    model: str  # a name in `models`
    world: str  # where the data comes from: a module of `worlds`
    scenario: str
    frames: int  # recorded for training
    tokenizer_frames: int  # of them, those the tokenizer and the judge are trained on
    held_out_frames: int
    seed: int
    tokenizer: TokenizerRecipe
    base: WorldRecipe
    finetune: WorldRecipe  # the paper's short one
    diagonal: WorldRecipe  # the full one
    judge: JudgeRecipe | None
    held_out_episode: int  # frames of a held-out episode: as long as the longest rollout that is judged

    @property
    def held_out_seed(self) -> int:
        """Held-out episodes are recorded with a seed of their own."""
        return self.seed + 1_000_003


@dataclass(frozen=True, slots=True)
class Staged:
    """Training in stages that ends with a distilled student: what a recipe's function `distill()` returns.

    `make` runs all stages into folders of their names below the one it is given, on a device, each going on where it
    was stopped; it yields the stage's name with each line of its progress.
    """

    steps: Mapping[str, int]  # of each stage, in their order
    make: Callable[[Path, Any], Iterator[tuple[str, dict[str, Any]]]]


def names() -> list[str]:
    """Recipes that `find` knows."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find(name: str) -> Recipe:
    """The recipe of that name; `mcar:700m` hands the part after the colon to the module."""
    module, _, size = name.partition(":")
    if "recipe" not in _functions(module):
        raise ValueError(f"the recipe {module!r} trains no world of tokens; `diagonal distill --recipe` runs it")
    make = _functions(module)["recipe"]
    if size and not signature(make).parameters:
        raise ValueError(f"recipe {module!r} has no sizes, so no {size!r}")
    return cast(Recipe, make(size) if size else make())


def distillation(name: str) -> Staged:
    """The distillation of the recipe of that name."""
    if "distill" not in _functions(name):
        able = ", ".join(one for one in names() if "distill" in _functions(one)) or "none"
        raise ValueError(f"the recipe {name!r} distils nothing; recipes that do: {able}")
    return cast(Staged, _functions(name)["distill"]())


def _functions(module: str) -> dict[str, Any]:
    if module not in names():
        raise ValueError(f"unknown recipe {module!r}; known: {', '.join(names())}")
    return vars(importlib.import_module(f"{__name__}.{module}"))
