"""What a live session begins with and takes: start views, prompts, actions and snapshots, or why they cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from diagonal.generation.checks import Described
from diagonal.generation.snapshot import UNKNOWN, Snapshot
from diagonal.media.video import VideoArray

if TYPE_CHECKING:
    from diagonal.generation.world import World

ROLL, REFILL = "roll", "refill"
CONTEXTS = (ROLL, REFILL)


def check_live(world: Described) -> None:
    """Refuse worlds that cannot be played a frame at a time."""
    stride = int(world.tokenizer.stride)
    if stride != 1:
        raise ValueError(
            f"{world.name} makes {stride} frames of one token frame, and takes no actions: it cannot be played; use "
            "World.stream"
        )


def find_context(name: str, model: Any, asked: str | None) -> str:
    """What happens when the window is full: as asked for, or the best that the model can."""
    relative = bool(model.relative_positions)
    if asked is None:
        return ROLL if relative else REFILL
    if asked not in CONTEXTS:
        raise ValueError(f"context {asked!r} is not known; known: {', '.join(CONTEXTS)}")
    if asked == ROLL and not relative:
        raise ValueError(
            f"{name} has learned positions, none beyond its window: it cannot roll on; take context={REFILL!r}"
        )
    return asked


def check_seed(seed: int) -> int:
    """The seed, if it is one."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed {seed} given; a seed is a whole number from 0 to 2^63 - 1")
    return seed


def check_snapshot(world: World, saved: Snapshot, context: str) -> None:
    """Refuse snapshots of other worlds, or that do not fit this one."""
    if saved.model != world.name:
        raise ValueError(f"the snapshot is of {saved.model}, not of {world.name}; load that model")
    if saved.weights != world.fingerprint():
        raise ValueError(
            f"the snapshot was made with other weights of {world.name} ({saved.weights}, these are "
            f"{world.fingerprint()}): the same frames would not follow"
        )
    if saved.context != context:
        raise ValueError(f"the snapshot has the context {saved.context!r}, this arena {context!r}")
    layout, config = world.layout(1), world.variant.config
    units = saved.units_TU
    cells, acts = units[:, : layout.grid.frame_tokens], units[:-1, layout.grid.frame_tokens :]
    if units.shape[1] != layout.unit or saved.given > config.frames or saved.frame < len(units) - 1:
        raise ValueError(f"the snapshot has frames of {units.shape[1]} ids; {world.name} has {layout.unit}")
    if int(cells.min()) < 0 or int(cells.max()) >= config.codebook:
        raise ValueError(f"the snapshot has ids that are no cells of {world.name}: 0 to {config.codebook - 1} are")
    if acts.numel() and int(acts.min()) < config.codebook:
        raise ValueError(f"the snapshot has ids that are no actions of {world.name}")


def action_ids(world: World, action: Any) -> list[int]:
    """The ids of one action: an object of the world's, or its text."""
    if isinstance(action, str):
        parsed = world.actions.parse(action)
        if len(parsed) > 1:
            raise ValueError(f"{action!r} are {len(parsed)} actions; a step takes one")
        action = parsed[0] if parsed else world.actions.NOOP
    return world.actions.tokens([action], world.variant.config.codebook)[0]


def opening(
    world: World, prompt: str | VideoArray | Tensor, actions: Sequence[Any] | None, window: int, newest: int
) -> tuple[Tensor, int]:
    """The frames that a session begins with, and what follows each (T, unit), and the number of the first of them. A
    prompt that fills the window is cut to its newest frames."""
    if isinstance(prompt, str):
        if actions is not None:
            raise ValueError(f"the start view {prompt!r} has actions of its own; leave out actions")
        clip, actions = world.actions.start(prompt)
        tokens_BTHW, batched = world.encode(clip)
    else:
        tokens_BTHW, batched = world.encode(prompt)
    if batched:
        raise ValueError(f"{len(tokens_BTHW)} prompts given; a session plays one: take a seat for each (World.arena)")
    tokens, layout = tokens_BTHW[0], world.layout(1)
    between = [world.actions.NOOP] * (len(tokens) - 1) if actions is None else list(actions)
    if len(between) != len(tokens) - 1:
        raise ValueError(
            f"{len(between)} actions given for {len(tokens)} prompt frames; one between each two is needed"
        )
    ids = world.actions.tokens(between, world.variant.config.codebook)
    units = torch.full((len(tokens), layout.unit), UNKNOWN, dtype=torch.long)
    units[:, : layout.grid.frame_tokens] = tokens.flatten(1).cpu()
    units[:-1, layout.grid.frame_tokens :] = torch.tensor(ids, dtype=torch.long).reshape(len(tokens) - 1, layout.suffix)
    dropped = max(0, len(units) - newest) if len(units) >= window else 0
    return units[dropped:], dropped
