"""No actions: for models that only watch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diagonal.media.video import VideoArray

NOOP = "noop"
STARTS: tuple[str, ...] = ()
SCRIPT = ""
CONTROLS: dict[str, str] = {}


def start(name: str) -> tuple[VideoArray, list[str]]:
    """Nothing is shipped for this world."""
    raise ValueError(f"there is no start view {name!r}; give a prompt")


def parse(text: str) -> list[str]:
    """Nothing can be done here: only the empty text is right."""
    if text.strip():
        raise ValueError(f"actions {text!r} given, but this model takes none; say how many frames to make instead")
    return []


def read(path: str | Path) -> list[str]:
    """Nothing can be done here, so no recording can be played."""
    raise ValueError(f"actions {str(path)!r} given, but this model takes none; say how many frames to make instead")


def tokens(actions: Sequence[str], first_id: int) -> list[list[int]]:
    """No ids for any frame."""
    return [[] for _ in actions]
