"""Training runs as Python: a recipe is a module here with one or more of these functions:

    recipe()    -> Recipe       the numbers of a world of tokens
    video()     -> VideoRecipe  the numbers of a text-to-video world
    distill()   -> Chain        the stages that end in a distilled student

`diagonal train ... --recipe doom` is `diagonal.recipes.doom.recipe()`. Sizes of data and models, steps and seeds are
the recipe's; the code that trains knows none of them. The folder `questions` has the papers' open questions, as tables
of such runs.
"""

from __future__ import annotations

import importlib
import pkgutil
from inspect import signature
from typing import Any, cast

from diagonal.training.recipe import Chain, Recipe, VideoRecipe


def names(kind: str = "recipe") -> list[str]:
    """Modules here with a function of that name: `recipe`, `video` or `distill`."""
    return [name for name in _modules() if kind in _functions(name)]


def find(name: str) -> Recipe:
    """The recipe of that name; `mcar:700m` hands the part after the colon to the module."""
    return cast(Recipe, _call(name, "recipe", "trains no world of tokens"))


def find_video(name: str) -> VideoRecipe:
    """The text-to-video recipe of that name, or of a name and a size, such as `doom_t2v:smoke`."""
    return cast(VideoRecipe, _call(name, "video", "trains no text-to-video world"))


def distillation(name: str) -> Chain:
    """The distillation of the recipe of that name, or of a name and a size, such as `doom:smoke`."""
    return cast(Chain, _call(name, "distill", "distils nothing"))


def _call(name: str, kind: str, lacking: str) -> Any:
    given, colon, size = name.partition(":")
    module = given.replace("-", "_")  # which modules must have in its place
    if module not in _modules():
        raise ValueError(f"unknown recipe {given!r}; known: {', '.join(_modules())}")
    if kind not in _functions(module):
        raise ValueError(f"the recipe {given!r} {lacking}; recipes that do: {', '.join(names(kind)) or 'none'}")
    make = _functions(module)[kind]
    if colon and not signature(make).parameters:
        raise ValueError(f"recipe {given!r} has no sizes, so no {size!r}")
    return make(size) if colon else make()


def _modules() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)


def _functions(module: str) -> dict[str, Any]:
    return vars(importlib.import_module(f"{__name__}.{module}"))
