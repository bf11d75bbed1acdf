"""Where sessions of a world begin: its start views, as tokens, so that joining need not encode them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from diagonal.generation.checks import frame_size
from diagonal.generation.world import World
from diagonal.media.draw import test_card
from diagonal.media.video import VideoArray

CARD = "card"


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Frames as tokens, and the actions between them."""

    tokens_THW: Tensor
    actions: Sequence[Any] | None
    picture: VideoArray  # (H, W, 3): the last of them, from which it goes on


def starts_of(world: World, prompt: VideoArray | None = None) -> dict[str, Start]:
    """The start views of a world by name, and `prompt`, frames to begin with. A world without any begins with a drawn
    picture, if it is not trained."""
    clips: dict[str, tuple[VideoArray, Sequence[Any] | None]] = {}
    if prompt is not None:
        clips["prompt"] = prompt, None
    clips |= {name: world.actions.start(name) for name in world.actions.STARTS}
    if not clips and world.weights == "random":
        clips[CARD] = test_card(*frame_size(world)), None
    if not clips:
        raise ValueError(f"{world.name} has no start views; give --prompt: a picture or a clip to begin with")
    return {name: Start(world.encode(frames)[0][0], actions, frames[-1]) for name, (frames, actions) in clips.items()}
