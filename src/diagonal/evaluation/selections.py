"""Which clips of a data set are continued: a seeded choice, written down with the hashes of what it was made from.

A data set is a folder, however deep its files lie, as it is published:

    videos               .mp4, .mov (BDD100K), .avi (UCF101), ...; with .jsonl of the same name, the actions too (VPT)
    folders of pictures  in the order of their numbers (RealEstate10K by timestamps, BridgeData V2)
    .npz                 pictures and gamepad actions (WHAM's evaluation set)
    .safetensors         shards that `diagonal record` wrote

Of a trajectory of BridgeData V2 the first camera is taken, images0; other cameras and depth beside it show the same.
Of UCF101 the clips of its first test list are taken, where ucfTrainTestlist/testlist01.txt is in the folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from diagonal.media.files import atomic
from diagonal.media.video import PICTURES, VIDEOS, VideoArray, header, read
from diagonal.worlds import vizdoom, vpt, xbox

SHARD, ARCHIVE = ".safetensors", ".npz"
CAMERA = "images0"  # of a trajectory of BridgeData V2, the one over the shoulder
TEST_LIST = Path("ucfTrainTestlist", "testlist01.txt")  # of UCF101


@dataclass(frozen=True, slots=True)
class Entry:
    """A clip: so many frames of a source from `first` on."""

    name: str  # of the videos that are made of it
    source: str  # relative to the folder of the data set
    first: int
    frames: int
    sha256: str  # of the source


@dataclass(frozen=True, slots=True)
class Footage:
    """Frames (T, H, W, 3), and the action taken on each; None: the data set has none."""

    frames: VideoArray
    actions: list[Any] | None


def choose(folder: Path, count: int, frames: int, seed: int = 0) -> list[Entry]:
    """`count` clips of so many frames, spread over as many sources as there are; those of a source do not overlap."""
    found = list(sources(folder))
    if not found:
        endings = ", ".join((*VIDEOS, ARCHIVE, SHARD))
        raise ValueError(f"{folder} holds no clips ({endings}, folders of pictures)")
    rng = np.random.default_rng(seed)
    order = [found[index] for index in rng.permutation(len(found))]
    left: dict[Path, list[int]] = {}
    chosen: list[tuple[Path, int]] = []
    while len(chosen) < count and order:
        for path in order:  # a clip of each, then another one of each
            if path not in left:
                left[path] = rng.permutation(starts(path, frames)).tolist()
            if left[path]:
                chosen.append((path, left[path].pop()))
            if len(chosen) == count:
                break
        order = [path for path in order if left.get(path)]
    if len(chosen) < count:
        raise ValueError(
            f"{folder} has {len(found)} sources, and room for {len(chosen)} clips of {frames} frames in them; "
            f"{count} are asked for"
        )
    return [
        Entry(f"{number:04}-{path.stem}", path.relative_to(folder).as_posix(), first, frames, _sha256(path))
        for number, (path, first) in enumerate(chosen)
    ]


def sources(folder: Path) -> Iterator[Path]:
    """Files and folders that hold a clip each, in the order of their names."""
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is no folder of clips")
    listed = _test_list(folder)
    for path in sorted(folder.rglob("[!.]*")):
        if path.is_dir():
            taken = _pictures(path) > 1 and (path.name == CAMERA or not (path.parent / CAMERA).is_dir())
        else:
            taken = path.suffix.lower() in (*VIDEOS, ARCHIVE, SHARD)
        if taken and (listed is None or "/".join(path.parts[-2:]) in listed):
            yield path


def _test_list(folder: Path) -> set[str] | None:
    """The clips of UCF101's first test list, class/name; None: there is no list."""
    place = folder / TEST_LIST
    return set(place.read_text(encoding="utf-8").split()) if place.is_file() else None


def _pictures(folder: Path) -> int:
    return sum(file.suffix.lower() in PICTURES for file in folder.iterdir())


def starts(path: Path, frames: int) -> list[int]:
    """Where clips of so many frames may begin in a source, none overlapping."""
    if path.suffix == SHARD:
        _, episodes = _shard(path)
        return [
            first
            for first in range(0, len(episodes) - frames + 1, frames)
            if episodes[first] == episodes[first + frames - 1]
        ]
    if path.is_dir():
        length = _pictures(path)
    elif path.suffix == ARCHIVE:
        length = len(xbox.read_clip(path)[0])
    else:
        length = header(path).frames or len(read(path))
    return list(range(0, length - frames + 1, frames))


def load(folder: Path, entry: Entry) -> Footage:
    """The frames of an entry, and the actions taken on them."""
    path, some = folder / entry.source, slice(entry.first, entry.first + entry.frames)
    actions: list[Any] | None = None
    if path.suffix == SHARD:
        recorded, _ = _shard(path)
        frames, actions = recorded.frames, [vizdoom.ACTIONS[row[0]] for row in recorded.actions]
    elif path.suffix == ARCHIVE:
        frames, actions = xbox.read_clip(path)
    else:
        frames = read(path, some.stop)
        if path.with_suffix(".jsonl").is_file():
            actions = vpt.read(path.with_suffix(".jsonl"))
    if len(frames) < some.stop or (actions is not None and len(actions) < some.stop):
        raise ValueError(f"{path} has fewer than {some.stop} frames or actions, which the selection names")
    return Footage(frames[some], None if actions is None else actions[some])


@lru_cache(maxsize=1)
def _shard(path: Path) -> tuple[Any, Any]:
    """A shard as it was recorded, and the episode of each frame."""
    recorded = vizdoom.read_recording(path, (vizdoom.HEIGHT, vizdoom.WIDTH))
    return recorded, recorded.episodes


def write(entries: Sequence[Entry], path: Path) -> None:
    """The list as JSON."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps([asdict(entry) for entry in entries], indent=1) + "\n")


def read_list(path: Path, folder: Path) -> list[Entry]:
    """A written list, whose sources must be what they were."""
    try:
        entries = [Entry(**one) for one in json.loads(path.read_text())]
    except (TypeError, ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no list of clips: {error}") from error
    for entry in entries:
        source = (folder / entry.source).resolve()
        if not source.is_relative_to(folder.resolve()) or not source.exists():
            raise FileNotFoundError(f"{path} names {entry.source}, which is not in {folder}")
        if _sha256(folder / entry.source) != entry.sha256:
            raise ValueError(f"{folder / entry.source} is not the file that {path} was made from: its hash differs")
    return entries


@lru_cache(maxsize=1024)
def _sha256(path: Path) -> str:
    """Of a file; of a folder, of the names and contents in it."""
    if not path.is_dir():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    total = hashlib.sha256()
    for inside in sorted(path.iterdir()):
        if inside.is_file():
            total.update(f"{inside.name} {_sha256(inside)}\n".encode())
    return total.hexdigest()
