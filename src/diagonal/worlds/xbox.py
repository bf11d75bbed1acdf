"""A gamepad as WHAM's data record it: 12 buttons and 4 stick axes, each axis in 11 bins; 16 tokens per action.

The release does not name buttons and axes: here they are b0 to b11 and x0 to x3, in the order of their tokens.
Actions are read from npz files with bins (`actions`, as the published clips hold them beside `images`) and from json
with numbers from -1 to 1. An action belongs to the frame on which it is taken: it leads to the next frame.
"""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diagonal.media.video import MAX_BYTES, VideoArray
from diagonal.worlds.recordings import Recorded, resized
from diagonal.worlds.script import parse as parse_script

RECORDINGS = (".npz", "clips as WHAM's release publishes them, with images and actions")
BUTTONS, AXES = 12, 4
EDGES = (
    -1.05,
    -0.95,
    -0.75,
    -0.5,
    -0.25,
    -0.05,
    0.05,
    0.25,
    0.5,
    0.75,
    0.95,
    1.05,
)  # of the bins, the lower one inside
CENTRES = (-1.0, -0.85, -0.625, -0.375, -0.15, 0.0, 0.15, 0.375, 0.625, 0.85, 1.0)
REST = CENTRES.index(0.0)
VOCABULARY = 2 * BUTTONS + len(CENTRES) * AXES


@dataclass(frozen=True, slots=True)
class Action:
    """The buttons held, by number, and the bin of each stick axis."""

    buttons: frozenset[int] = frozenset()
    sticks: tuple[int, ...] = (REST,) * AXES

    def __post_init__(self) -> None:
        if not self.buttons <= set(range(BUTTONS)):
            raise ValueError(f"buttons {sorted(self.buttons)} given; they are numbered 0 to {BUTTONS - 1}")
        if len(self.sticks) != AXES or not set(self.sticks) <= set(range(len(CENTRES))):
            raise ValueError(f"sticks {self.sticks} given; {AXES} bins from 0 to {len(CENTRES) - 1} are needed")

    def __str__(self) -> str:
        """The short form, with the centre of each bin."""
        held = [f"b{index}" for index in sorted(self.buttons)]
        held += [f"x{axis}={CENTRES[place]:g}" for axis, place in enumerate(self.sticks) if place != REST]
        return "+".join(held) or "noop"


NOOP = Action()
STARTS: tuple[str, ...] = ()
SCRIPT = "x1=1*4,x1=1+x2=0.6*3,b0*2,noop"
BUTTON_KEYS = ("space", "f", "e", "x", "c", "v", "g", "z", "h", "j", "k", "l")
CONTROLS = {
    "a": "x0=-1",
    "d": "x0=1",
    "w": "x1=1",
    "s": "x1=-1",
    "left": "x2=-0.6",
    "right": "x2=0.6",
    "up": "x3=0.6",
    "down": "x3=-0.6",
    **{key: f"b{number}" for number, key in enumerate(BUTTON_KEYS)},
}


def start(name: str) -> tuple[VideoArray, list[Action]]:
    """The game's frames are not ours to ship: there is no start view."""
    raise ValueError(f"there is no start view {name!r}: WHAM needs a --prompt of your own")


def tokens(actions: Sequence[Action], first_id: int) -> list[list[int]]:
    """WHAM's 16 ids per action, counted from `first_id`: two for each button (up, held), then eleven for each axis."""
    return [[first_id + local for local in _local_ids(action)] for action in actions]


def from_tokens(ids: Sequence[int], first_id: int) -> Action:
    """The action that 16 ids stand for, counted from `first_id`: the inverse of `tokens`."""
    local = [token - first_id for token in ids]
    held = frozenset(index for index, token in enumerate(local[:BUTTONS]) if token == 2 * index + 1)
    places = [token - 2 * BUTTONS - len(CENTRES) * axis for axis, token in enumerate(local[BUTTONS:])]
    action = Action(held, tuple(places))
    if _local_ids(action) != local:
        raise ValueError(f"ids {list(ids)} are no action")
    return action


def _local_ids(action: Action) -> list[int]:
    buttons = [2 * index + (index in action.buttons) for index in range(BUTTONS)]
    return buttons + [2 * BUTTONS + len(CENTRES) * axis + place for axis, place in enumerate(action.sticks)]


def stick_bin(value: float) -> int:
    """Bin 0 to 10 of a stick axis from -1 to 1; at rest it is 5."""
    if not -1 <= value <= 1:
        raise ValueError(f"stick {value} given; an axis goes from -1 to 1")
    return bisect_right(EDGES, value) - 1


def parse(text: str) -> list[Action]:
    """Actions from the short form: 'b3*5, b0+x1=0.6, noop'.

    A comma separates actions, '+' joins what is held together, '*n' repeats. x0 to x3 are axes from -1 to 1.
    """
    return parse_script(text, _parse_held)


def _parse_held(held: str) -> Action:
    buttons, sticks = set(), [REST] * AXES
    for word in (part.strip() for part in held.split("+")):
        axis = re.fullmatch(r"x(\d)=(-?\d+(?:\.\d+)?)", word)
        button = re.fullmatch(r"b(\d{1,2})", word)
        if axis and int(axis[1]) < AXES:
            sticks[int(axis[1])] = stick_bin(float(axis[2]))
        elif button and int(button[1]) < BUTTONS:
            buttons.add(int(button[1]))
        elif word != "noop":
            raise ValueError(
                f"unknown action {word!r}; known: noop, b0 to b{BUTTONS - 1}, x0=VALUE to x{AXES - 1}=VALUE (-1 to 1)"
            )
    return Action(frozenset(buttons), tuple(sticks))


def read(path: str | Path) -> list[Action]:
    """The actions of a file, one per frame: npz with bins, json (a list) or jsonl (lines) with numbers from -1 to 1.

    In json an action is a row of 12 buttons and 4 axes, or {"buttons": [...], "sticks": [...]}.
    """
    path = Path(path)
    if path.suffix == ".npz":
        return _actions(path, *_arrays(path, "actions"))
    if path.suffix not in (".json", ".jsonl"):
        raise ValueError(f"{path} holds no gamepad actions: its name must end in .npz, .json or .jsonl")
    records = _records(path)
    if not isinstance(records, list) or not records:
        raise ValueError(f"{path} holds no actions; it must be a list of them")
    return [_action(record, f"{path}, action {number}") for number, record in enumerate(records, 1)]


def read_clip(path: str | Path) -> tuple[VideoArray, list[Action]]:
    """The frames (T, H, W, 3) and the actions of a published clip: an npz with `images` (T, 3, H, W) and `actions`."""
    path = Path(path)
    images, taken = _arrays(path, "images", "actions")
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(f"{path}: images are {images.dtype} of shape {images.shape}; uint8 (T, 3, H, W) is needed")
    actions = _actions(path, taken)
    if len(images) != len(actions):
        raise ValueError(f"{path} has {len(images)} images but {len(actions)} actions; one each is needed")
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1)), actions


def read_recording(path: Path, size: tuple[int, int]) -> Recorded:
    """A published clip, resized: one episode."""
    frames, taken = read_clip(path)
    return Recorded(resized(frames, size), tokens(taken, 0))


def _arrays(path: Path, *names: str) -> list[npt.NDArray[Any]]:
    """Arrays of an npz file; objects in it are never unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(archive.getinfo(f"{name}.npy").file_size for name in names)
        if size <= MAX_BYTES:
            with np.load(path, allow_pickle=False) as file:
                return [file[name] for name in names]
    except FileNotFoundError:
        raise
    except (KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error, MemoryError, ValueError) as error:
        wanted = " and ".join(names)
        raise ValueError(f"{path} is no readable npz file with {wanted} ({type(error).__name__})") from error
    raise ValueError(f"{path} is too large to hold in memory: {size / 2**30:.1f} GiB")


def _actions(path: Path, taken: npt.NDArray[Any]) -> list[Action]:
    """Rows of 16 bins, as the published clips hold them."""
    if taken.dtype.kind not in "biuf" or taken.ndim != 2 or taken.shape[1] != BUTTONS + AXES or not len(taken):
        raise ValueError(f"{path}: actions are {taken.dtype} of shape {taken.shape}; numbers (T, 16) are needed")
    return [_from_bins(row, f"{path}, action {number}") for number, row in enumerate(taken.tolist(), 1)]


def _from_bins(row: list[float], where: str) -> Action:
    try:
        return Action(_held(row[:BUTTONS]), tuple(map(_bin, row[BUTTONS:])))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _bin(place: float) -> int:
    if place not in range(len(CENTRES)):
        raise ValueError(f"stick bin {place} given; bins are 0 to {len(CENTRES) - 1}")
    return int(place)


def _records(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.split("\n") if line.strip()]
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from error


def _action(record: Any, where: str) -> Action:
    try:
        row = [*record["buttons"], *record["sticks"]] if isinstance(record, dict) else list(record)
        if len(row) != BUTTONS + AXES:
            raise ValueError(f"{len(row)} numbers; {BUTTONS} buttons and {AXES} axes are needed")
        return Action(_held(row[:BUTTONS]), tuple(map(stick_bin, row[BUTTONS:])))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f'{where}: no row of 16 numbers and no {{"buttons": ..., "sticks": ...}}: {error}') from error


def _held(row: Sequence[float]) -> frozenset[int]:
    if not all(value in (0, 1) for value in row):
        raise ValueError(f"buttons {list(row)} given; each is 0 or 1")
    return frozenset(index for index, value in enumerate(row) if value)
