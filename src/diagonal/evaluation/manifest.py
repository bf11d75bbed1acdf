"""What is known of each video in a folder beside its frames: its prompt, its seed, the actions between its frames.

    DIR/manifest.json    {"videos": {"a cat-0": {"prompt": "a cat", "seed": 0}, ...}}

Whoever makes videos writes it; metrics of text and of actions read it. Where a folder has none, the names of its files
are taken as VBench wants them: `prompt-index`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagonal.media.files import atomic, locked

NAME, RUN = "manifest.json", "run.json"
NUMBERED = re.compile(r"(.+)-[0-9]+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Note:
    """What a video was asked to show."""

    prompt: str | None = None
    actions: tuple[str, ...] | None = None  # between each frame and the next one


def read(folder: Path) -> dict[str, Note]:
    """The notes of a folder, by the names of its videos without the ending."""
    notes = {}
    for name, entry in entries(folder).items():
        prompt, actions = entry.get("prompt"), entry.get("actions")
        listed = isinstance(actions, list) and all(isinstance(action, str) for action in actions)
        if not (prompt is None or isinstance(prompt, str)) or not (actions is None or listed):
            raise ValueError(f"{folder / NAME}: of {name}, prompt must be a text and actions a list of texts")
        notes[name] = Note(prompt, None if actions is None else tuple(actions))
    return notes


def named(stem: str) -> Note:
    """What the name of a file says, `prompt-index`."""
    found = NUMBERED.fullmatch(stem)
    return Note(found[1] if found else None)


def entries(folder: Path) -> dict[str, dict[str, Any]]:
    """All that is written of the videos of a folder."""
    place = folder / NAME
    try:
        content = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {"videos": {}}
    except ValueError as error:
        raise ValueError(f"{place} is no JSON: {error}; remove it, and what it says is lost") from error
    videos = content.get("videos") if isinstance(content, dict) else None
    if not isinstance(videos, dict) or not all(isinstance(entry, dict) for entry in videos.values()):
        raise ValueError(f'{place} must be {{"videos": {{name: {{"prompt": ..., "actions": [...]}}}}}}')
    return videos


def add(folder: Path, name: str, entry: Mapping[str, Any]) -> None:
    """Write down what a video is, beside what is written of the others."""
    with locked(folder), atomic(folder / NAME) as temporary:
        content = {"videos": entries(folder) | {name: dict(entry)}}
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def run_of(folder: Path) -> dict[str, Any] | None:
    """What made the videos of a folder, where that is noted."""
    place = folder / RUN
    if not place.exists():
        return None
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{place} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{place} must be an object with the facts of a run")
    return content


def check_run(folder: Path, facts: Mapping[str, Any]) -> None:
    """Note what a run is (run.json), or refuse to mix it with another one."""
    with locked(folder):
        other = run_of(folder)
        if other is None:
            with atomic(folder / RUN) as temporary:
                temporary.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
            return
    for name, value in facts.items():
        if other.get(name) != value:
            raise ValueError(
                f"{folder} holds videos of another run, where {name} was {other.get(name)}, not {value}: "
                "name another --out"
            )
