"""Continues clips of a data set under several schedules, as folders of videos that are then scored like any others.

    OUT/selection.json        what was chosen, with hashes
    OUT/run.json              model, weights, sizes: a second run into OUT must have the same
    OUT/videos/real           the true frames behind the prompts
    OUT/videos/<schedule>     what the model made of the same prompts; times.json: calls and seconds of each

Where actions have names, manifest.json beside the videos has those between the frames of each.

A video that is there is not made again. Videos are lossless, so that scores are those of the frames.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from diagonal.evaluation import manifest
from diagonal.evaluation.selections import Entry, load
from diagonal.generation.world import World
from diagonal.media.files import atomic, locked
from diagonal.media.video import VideoArray, cover, writer
from diagonal.planning.plan import Order

REAL = "real"


@dataclass(frozen=True, slots=True)
class Continuation:
    """What is continued, and how."""

    world: World
    data: Path
    entries: Sequence[Entry]
    context: int  # frames that are given; 0: the model begins with nothing, and the clips are there to be compared with
    seed: int

    def facts(self) -> dict[str, Any]:
        """What must be the same for videos to belong together."""
        world = self.world
        return {
            "model": world.name,
            "weights": world.fingerprint(),
            "quantize": world.quantized or "none",
            "dtype": str(world.cache_dtype).removeprefix("torch."),
            "size": list(world.size),
            "context": self.context,
            "seed": self.seed,
        }


def folder_of(out: Path, order: Order | None) -> Path:
    """Where the videos of a schedule are; None: the true ones."""
    return out / "videos" / (REAL if order is None else named(str(order)))


def named(schedule: str) -> str:
    """A schedule as the name of a folder."""
    return re.sub(r"[:, ]", "-", schedule)


class Video(NamedTuple):
    """One that is to be made: the clip of this number, continued under an order; None: its true frames."""

    order: Order | None
    number: int


def missing(entries: Sequence[Entry], orders: Sequence[Order], out: Path) -> list[Video]:
    """All videos that are not there yet; their folders are made."""
    found = []
    for order in (None, *orders):
        folder = folder_of(out, order)
        folder.mkdir(parents=True, exist_ok=True)
        taken = times(folder)
        for number, entry in enumerate(entries):
            is_noted = order is None or entry.name in taken
            if not (is_noted and (folder / f"{entry.name}.mp4").exists()):
                found.append(Video(order, number))
    return found


def make(asked: Continuation, video: Video, out: Path) -> str:
    """Make a video and write down what it took. Gives its name."""
    folder, (order, number) = folder_of(out, video.order), video
    name = asked.entries[number].name
    _write(asked, order, number, folder / f"{name}.mp4")
    return f"{folder.name} {name}"


def _write(asked: Continuation, order: Order | None, number: int, target: Path) -> None:
    world = asked.world
    footage = load(asked.data, asked.entries[number])
    frames = fitted(footage.frames, world.size)
    prompt, true = frames[: asked.context] if asked.context else None, frames[asked.context :]
    if order is None:
        with writer(target, world.variant.fps, lossless=True) as file:
            file.write(true)
        _note_actions(asked, footage.actions, target)
        return
    actions = None if footage.actions is None or not world.variant.config.suffix else footage.actions[:-1]
    stream = world.stream(prompt, actions, frames=len(true), schedule=order, seed=asked.seed + number)
    calls, start = 0, time.perf_counter()
    with writer(target, world.variant.fps, lossless=True) as file:
        for piece in stream:
            file.write(piece.frames)
            calls += piece.calls
        seconds = time.perf_counter() - start
    _note_actions(asked, footage.actions, target)
    note_times(target.parent, target.stem, {"calls": calls, "seconds": seconds, "frames": len(true)})


def _note_actions(asked: Continuation, actions: Sequence[Any] | None, target: Path) -> None:
    """Keep the actions between the frames of a video, which begin behind the prompt, where actions have names."""
    between = [] if actions is None else list(actions)[asked.context : -1]
    if between and all(isinstance(action, str) for action in between):
        manifest.add(target.parent, target.stem, {"actions": between})


def fitted(frames: VideoArray, size: tuple[int, int]) -> VideoArray:
    """Frames scaled to cover the size, and their middle cut out."""
    return frames if frames.shape[1:3] == size else cover(frames, *size)


def times(folder: Path) -> dict[str, dict[str, float]]:
    """Calls, seconds and frames of each video of a schedule."""
    place = folder / "times.json"
    found: dict[str, dict[str, float]] = json.loads(place.read_text()) if place.exists() else {}
    return found


def note_times(folder: Path, name: str, taken: dict[str, float]) -> None:
    """Keep what a video took."""
    with locked(folder), atomic(folder / "times.json") as temporary:
        temporary.write_text(json.dumps(times(folder) | {name: taken}, indent=1) + "\n")
