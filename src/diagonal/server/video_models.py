"""A diffusion model as it is served: one thread that makes chunks, a chunk of each video in turn."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from diagonal.generation.video import VideoModel
from diagonal.server.metrics import Metrics
from diagonal.server.seats import Seats

# Prompts to begin with, by what reads them: the encoder of Doom's captions knows the words of these alone.
EXAMPLES = {
    "doom": (
        "walking forward through a brick corridor",
        "turning left in a mossy green courtyard",
        "shooting in a silver base with red lights",
        "walking backwards in a dark stone maze, then turning right",
    ),
}
ANY = (
    "a cat walks through tall grass in the morning sun, close-up",
    "a red tram climbs a steep street between old houses, seen from behind",
    "waves break on black rocks at dusk, slow motion",
)


@dataclass(frozen=True, slots=True)
class ServedVideo:
    """Made by `serve_video`."""

    name: str
    model: VideoModel
    seats: Seats
    created: int
    metrics: Metrics = field(default_factory=Metrics)
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "video"))

    def start(self) -> None:
        """Its thread starts with the first chunk."""

    def stop(self) -> None:
        """Finish the chunk that is being made, and end."""
        self.thread.shutdown(cancel_futures=True)

    def describe(self) -> dict[str, Any]:
        """As `/v1/models` lists it."""
        variant = self.model.variant
        height, width = variant.size
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "diagonal",
            "kind": "video",
            "fps": float(variant.fps),
            "width": width,
            "height": height,
            "frames": variant.frames,
            "examples": [*EXAMPLES.get(variant.text, ANY)],
            "seats": self.seats.count,
            "free": self.seats.free,
            "random_weights": self.model.weights == "random",
        }


def serve_video(model: VideoModel, seats: int) -> ServedVideo:
    """A diffusion model ready to be asked."""
    return ServedVideo(model.name, model, Seats(seats), int(time.time()))
