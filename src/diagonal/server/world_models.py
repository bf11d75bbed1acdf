"""A world as it is served: its start views, its seats, its thread, and what `/v1/models` says of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from diagonal.generation.world import World
from diagonal.media.video import VideoArray
from diagonal.planning.decoding import DEFAULT
from diagonal.server.metrics import Metrics
from diagonal.server.seats import Seats
from diagonal.server.settings import Limits
from diagonal.server.starts import Start, starts_of
from diagonal.server.ticker import Ticker
from diagonal.worlds.protocols import ActionSpace
from diagonal.worlds.script import together

SCHEDULES = (
    "raster",
    "diagonal:k=1",
    "diagonal:k=2",
    "lossless",
)  # each takes memory: any number of others would fill it


@dataclass(frozen=True, slots=True)
class ServedWorld:
    """A world that is played. Made by `serve_world`."""

    name: str
    world: World
    starts: Mapping[str, Start]
    seats: Seats
    ticker: Ticker
    created: int

    @property
    def metrics(self) -> Metrics:
        """Its counters."""
        return self.ticker.metrics

    def start(self) -> None:
        """Start its thread."""
        self.ticker.start()

    def stop(self) -> None:
        """Finish the frame that is being made, and end."""
        self.ticker.stop()

    @property
    def controls(self) -> list[str]:
        """What can be held: each is a part of an action."""
        return list(dict.fromkeys(self.world.actions.CONTROLS.values()))

    def describe(self) -> dict[str, Any]:
        """As `/v1/models` lists it."""
        height, width = self.world.size
        chords = chords_of(self.world.actions, self.controls)
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "diagonal",
            "kind": "world",
            "starts": [*self.starts],
            "actions": list(dict.fromkeys(["noop", *self.controls, *chords.values()])),
            "controls": self.controls,
            "chords": chords,
            "keys": dict(self.world.actions.CONTROLS),
            "schedules": [*SCHEDULES],
            "default_schedule": DEFAULT,
            "fps": float(self.world.variant.fps),
            "width": width,
            "height": height,
            "seats": self.seats.count,
            "free": self.seats.free,
            "random_weights": self.world.weights == "random",
        }


def serve_world(world: World, seats: int, limits: Limits, prompt: VideoArray | None = None) -> ServedWorld:
    """A world ready to be played; its thread is not started yet."""
    starts = starts_of(world, prompt)
    ticker = Ticker(world, seats, limits.timeline)
    return ServedWorld(world.name, world, starts, Seats(seats), ticker, int(time.time()))


def chords_of(actions: ActionSpace, controls: Sequence[str]) -> dict[str, str]:
    """The action of every two controls that can be held together."""
    pairs = ("+".join(pair) for pair in combinations(controls, 2) if _combine(actions, pair))
    return {pair: pair for pair in pairs}


def _combine(actions: ActionSpace, pair: tuple[str, str]) -> bool:
    return together(pair, actions.parse) == "+".join(pair)
