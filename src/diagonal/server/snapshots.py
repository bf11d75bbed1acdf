"""Snapshots that clients send: checked for their size before anything is unpacked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diagonal.generation.opening import check_snapshot, find_context
from diagonal.generation.snapshot import Snapshot
from diagonal.generation.world import World
from diagonal.server.wire import RefusedError


def checked(found: Mapping[str, Any], world: World, most: int) -> Snapshot:
    """A snapshot of this world with at most so many frames."""
    try:
        frames, unit = _shape(found.get("shape"))
        if unit != world.layout(1).unit or frames > most:
            raise ValueError(
                f"the snapshot has {frames} frames of {unit} ids; at most {most} of {world.layout(1).unit}"
            )
        saved = Snapshot.from_json(dict(found))
        check_snapshot(world, saved, find_context(world.name, world.model, None))
    except (ValueError, RecursionError, OverflowError) as error:
        raise RefusedError("bad_snapshot", str(error)) from error
    return saved


def _shape(value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2 or not all(type(size) is int and size > 0 for size in value):
        raise ValueError("this is no snapshot of a session: its shape is not two numbers")
    return value[0], value[1]
