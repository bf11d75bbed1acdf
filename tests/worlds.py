"""Whole worlds on grids small enough to play many frames of: random weights, every family of actions."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from diagonal import World
from diagonal.catalog.names import find
from diagonal.catalog.variants import Variant

PLAYABLE = ("doom/tiny", "mcar/tiny", "wham/tiny")
SMALL = {"rows": 3, "cols": 4, "frames": 5, "reference_frames": 2}
SPATIAL = ("raster", "diagonal:k=1", "diagonal:k=2", "window:s=2")


@cache
def small_world(name: str, **changes: Any) -> World:
    """A tiny variant with a window of a few frames, which have a few cells where its tokenizer takes them."""
    variant: Variant = find("models", name)
    usual = {"frames": 5, "reference_frames": 4} if name == "wham/tiny" else SMALL
    config: Any = replace(variant.config, **(usual | changes))  # type: ignore[type-var]
    torch.manual_seed(0)
    world = World(name, replace(variant, config=config), find("tokenizers", variant.tokenizer), "random", "cpu")
    for module in (world.model, world.tokenizer):
        module.eval().requires_grad_(False)
    return world


def prompt_of(world: World, frames: int, seed: int = 0) -> Tensor:
    """Random token frames to begin with."""
    config = world.variant.config
    noise = torch.Generator().manual_seed(seed)
    return torch.randint(1, config.codebook, (frames, config.rows, config.cols), generator=noise)


def actions_of(world: World, count: int, seed: int = 0) -> list[Any]:
    """Random actions of a world."""
    texts = {
        "vizdoom": "forward,left,right,back,noop,forward+left,attack",
        "vpt": "forward,left+jump,yaw=20,back,noop,pitch=-10,attack",
        "xbox": "x1=1,b0,x1=1+x2=0.6,noop,b3,x0=-1,b1",
    }
    known = world.actions.parse(texts[world.variant.actions])
    chosen = torch.randint(len(known), (count,), generator=torch.Generator().manual_seed(seed))
    return [known[index] for index in chosen.tolist()]
