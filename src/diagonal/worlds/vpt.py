"""Minecraft as the VPT dataset records it (Baker et al., 2022): clips (mp4) with one action per line (jsonl).

Two kinds of lines are read: raw recordings (`keyboard` and `mouse`) and actions already named
(`{"forward": 1, ..., "camera": [pitch, yaw]}`). `tokens` gives MineWorld's 11 ids per action.
An action belongs to the frame on which it is taken: it leads to the next frame.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagonal.media.video import VideoArray
from diagonal.media.video import read as read_video
from diagonal.worlds.recordings import Recorded, resized
from diagonal.worlds.script import parse as parse_script

RECORDINGS = (".mp4", "clips of the VPT dataset, each with its actions in a .jsonl of the same name")
MAX_BYTES = 512 * 2**20  # of an action file; an hour of raw recording is about 50 MB

# In the order of their token ids.
BUTTONS = (
    *("use", "attack", "forward", "back", "left", "right", "jump", "sneak", "sprint"),
    *("drop", "swapHands", "pickItem", "inventory", "ESC"),
    *(f"hotbar.{i}" for i in range(1, 10)),
)
# The slots of an action between the camera and the end: the first of these pressed is the slot's token.
HOTBAR = BUTTONS[14:]
PAIRS = (
    ("forward", "back"),
    ("left", "right"),
    ("sprint", "sneak"),
    ("use", "attack"),
    ("jump",),
    ("drop", "pickItem"),
)

CAMERA_MAX = 90.0  # degrees
CAMERA_BINS = 21
CAMERA_MU = 11.4887  # mu-law: fine steps near the centre
PITCH = len(BUTTONS)
YAW = PITCH + CAMERA_BINS
BOS, NULL, EOS = range(YAW + CAMERA_BINS, YAW + CAMERA_BINS + 3)
VOCABULARY = EOS + 1

KEYS = {
    "key.keyboard.w": "forward",
    "key.keyboard.s": "back",
    "key.keyboard.a": "left",
    "key.keyboard.d": "right",
    "key.keyboard.space": "jump",
    "key.keyboard.left.shift": "sneak",
    "key.keyboard.left.control": "sprint",
    "key.keyboard.q": "drop",
    "key.keyboard.f": "swapHands",
    "key.keyboard.e": "inventory",
    "key.keyboard.escape": "ESC",
    **{f"key.keyboard.{i}": f"hotbar.{i}" for i in range(1, 10)},
}
MOUSE = {0: "attack", 1: "use", 2: "pickItem"}
DEGREES_PER_PIXEL = 360 / 2400
# Pairs that cancel each other in a raw recording.
OPPOSITES = (
    ("forward", "back"),
    ("left", "right"),
    ("sprint", "sneak"),
    ("jump", "sneak"),
    ("attack", "use"),
)


@dataclass(frozen=True, slots=True)
class Action:
    """Buttons held and the camera's turn in degrees (pitch: down is positive; yaw: right is positive)."""

    buttons: frozenset[str] = frozenset()
    pitch: float = 0.0
    yaw: float = 0.0

    def __post_init__(self) -> None:
        unknown = self.buttons - set(BUTTONS)
        if unknown:
            raise ValueError(f"unknown buttons {sorted(unknown)}; known: {', '.join(BUTTONS)}")
        if not (math.isfinite(self.pitch) and math.isfinite(self.yaw)):
            raise ValueError(f"camera ({self.pitch}, {self.yaw}) is not two numbers of degrees")


NOOP = Action()
STARTS: tuple[str, ...] = ()
SCRIPT = "forward*4,forward+jump*2,yaw=15*2"
CONTROLS = {
    "w": "forward",
    "s": "back",
    "a": "left",
    "d": "right",
    "space": "jump",
    "x": "sneak",
    "c": "sprint",
    "f": "attack",
    "e": "use",
    "g": "drop",
    "v": "pickItem",
    "left": "yaw=-15",
    "right": "yaw=15",
    "up": "pitch=-10",
    "down": "pitch=10",
}


def start(name: str) -> tuple[VideoArray, list[Action]]:
    """Minecraft's frames are not ours to ship: there is no start view."""
    raise ValueError(f"there is no start view {name!r}: Minecraft needs a --prompt of your own")


def tokens(actions: Sequence[Action], first_id: int) -> list[list[int]]:
    """MineWorld's 11 ids per action, counted from `first_id` (the size of the image codebook)."""
    return [[first_id + local for local in _local_ids(action)] for action in actions]


def _local_ids(action: Action) -> list[int]:
    """begin, pitch, yaw, hotbar, forward/back, left/right, sprint/sneak, use/attack, jump, drop/pick, end."""
    slots = [BOS, PITCH + camera_bin(action.pitch), YAW + camera_bin(action.yaw)]
    hotbar = [name for name in HOTBAR if name in action.buttons]
    slots.append(BUTTONS.index(hotbar[0]) if hotbar else NULL)
    for pair in PAIRS:
        pressed = [name for name in pair if name in action.buttons]
        slots.append(BUTTONS.index(pressed[0]) if len(pressed) == 1 else NULL)
    return [*slots, EOS]


def camera_bin(degrees: float) -> int:
    """Bin 0 to 20 of a camera turn: clipped to +-90 degrees, mu-law companded, rounded half to even."""
    clipped = max(-CAMERA_MAX, min(CAMERA_MAX, degrees)) / CAMERA_MAX
    companded = math.copysign(math.log1p(CAMERA_MU * abs(clipped)) / math.log1p(CAMERA_MU), clipped)
    width = 2 * CAMERA_MAX / (CAMERA_BINS - 1)
    return round((companded * CAMERA_MAX + CAMERA_MAX) / width)


def parse(text: str) -> list[Action]:
    """Actions from the short form: 'forward*8, forward+jump*2, yaw=15*4, noop'.

    A comma separates actions, '+' joins what is held together, '*n' repeats. pitch and yaw are degrees per frame.
    """
    return parse_script(text, _parse_held)


def _parse_held(held: str) -> Action:
    buttons, camera = set(), {"pitch": 0.0, "yaw": 0.0}
    for word in (part.strip() for part in held.split("+")):
        name, equals, value = word.partition("=")
        if equals and name in camera and re.fullmatch(r"-?\d+(\.\d+)?", value):
            camera[name] = float(value)
        elif word in BUTTONS:
            buttons.add(word)
        elif word != "noop":
            known = ", ".join(["noop", *BUTTONS, "pitch=DEGREES", "yaw=DEGREES"])
            raise ValueError(f"unknown action {word!r}; known: {known}")
    return Action(frozenset(buttons), **camera)


def read(path: str | Path) -> list[Action]:
    """The actions of a jsonl file, one per frame."""
    path = Path(path)
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path} is larger than {MAX_BYTES // 2**20} MB; split the recording")
    actions: list[Action] = []
    raw = _Raw()
    convert: Callable[[dict[str, Any]], Action] | None = None
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if line.strip():
            record = _json(line, f"{path}, line {number}")
            try:
                # The first record says which kind the file holds.
                convert = convert or (raw.action if "mouse" in record else _named)
                actions.append(convert(record))
            except (ValueError, OverflowError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
            except (KeyError, TypeError, AttributeError, IndexError) as error:
                kinds = "a raw VPT record (keyboard, mouse, hotbar) nor named actions (forward, ..., camera)"
                raise ValueError(f"{path}, line {number}: neither {kinds}: {error!r}") from error
    if not actions:
        raise ValueError(f"{path} holds no actions")
    return actions


def _json(line: bytes, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error})") from error


def _named(record: dict[str, Any]) -> Action:
    if not record.keys() & {*BUTTONS, "camera"}:
        raise ValueError(f"no known action among {sorted(record)}; known: {', '.join(BUTTONS)}, camera")
    camera = record.get("camera", [0, 0])
    if len(camera) != 2:
        raise ValueError(f"camera {camera} is not two numbers of degrees, pitch and yaw")
    return Action(frozenset(name for name in BUTTONS if record.get(name)), *(float(turn) for turn in camera))


@dataclass
class _Raw:
    """Raw recordings, with the corrections the dataset's own loader makes.

    An attack button held before the recording began is ignored until it is pressed anew, and a change of the
    selected hotbar slot (by wheel or key) counts as pressing that slot's key.
    """

    hotbar: int = 0
    stuck: bool | None = None  # whether attack is held since before the start; None before the first record

    def action(self, record: dict[str, Any]) -> Action:
        mouse, slot = record["mouse"], record["hotbar"]
        if self.stuck is None:
            self.stuck = mouse["newButtons"] == [0]
        elif 0 in mouse["newButtons"]:
            self.stuck = False
        buttons = {KEYS[key] for key in record["keyboard"]["keys"] if key in KEYS}
        buttons |= {MOUSE[b] for b in mouse["buttons"] if b in MOUSE and not (self.stuck and b == 0)}
        if slot not in range(len(HOTBAR)):
            raise ValueError(f"hotbar {slot!r} is not a slot from 0 to {len(HOTBAR) - 1}")
        if slot != self.hotbar:
            self.hotbar = slot
            buttons.add(HOTBAR[slot])
        cancelled = {name for pair in OPPOSITES if buttons.issuperset(pair) for name in pair}
        return Action(frozenset(buttons - cancelled), _degrees(mouse["dy"]), _degrees(mouse["dx"]))


def _degrees(pixels: float) -> float:
    """Whole degrees toward zero, as the dataset's loader stores them; jumps beyond half a turn are dropped by it."""
    degrees = pixels * DEGREES_PER_PIXEL
    if not math.isfinite(degrees):
        raise ValueError(f"a mouse that moves {pixels} pixels is not a number")
    return float(int(degrees)) if abs(degrees) <= 180 else 0.0


def read_clip(video: str | Path, actions: str | Path | None = None) -> tuple[VideoArray, list[Action]]:
    """A clip and its actions (by default the .jsonl of the same name); both must have the same length."""
    actions = Path(video).with_suffix(".jsonl") if actions is None else Path(actions)
    frames, taken = read_video(video), read(actions)
    if len(frames) != len(taken):
        raise ValueError(f"{video} has {len(frames)} frames but {actions} has {len(taken)} actions; one each is needed")
    return frames, taken


def read_recording(path: Path, size: tuple[int, int]) -> Recorded:
    """A clip, resized: one episode."""
    frames, taken = read_clip(path)
    return Recorded(resized(frames, size), tokens(taken, 0))
