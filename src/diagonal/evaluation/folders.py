"""Folders of videos from any program: what is in them, and whether they can be compared.

Everything is checked before the first score is made, by the headers of the files; a file is decoded when it is looked
at, one at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import torch

from diagonal.evaluation import manifest
from diagonal.evaluation.manifest import Note
from diagonal.evaluation.metrics import Video
from diagonal.media.video import VIDEOS, Header, header, read

MANY = 5  # names that an error lists


@dataclass(frozen=True)
class VideoFile:
    """A video, by what its header says, and what is used of it."""

    path: Path
    header: Header
    frames: int | None = None  # only the first ones; None: all
    note: Note = field(default_factory=Note)

    @cached_property
    def sha256(self) -> str:
        """Of the file."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @property
    def length(self) -> int | None:
        """Frames that are used; None: the header does not say."""
        known = self.header.frames
        return known if self.frames is None else self.frames if known is None else min(known, self.frames)

    def load(self) -> Video:
        """Its frames."""
        frames = read(self.path, self.frames)
        if self.frames is not None and len(frames) < self.frames:
            raise ValueError(f"{self.path} has {len(frames)} frames; {self.frames} are asked for")
        actions = self.note.actions
        if self.frames is not None and actions is not None:
            actions = actions[: self.frames - 1]
        pixels = torch.from_numpy(frames).permute(0, 3, 1, 2).contiguous()
        return Video(pixels, self.header.fps, self.path, self.note.prompt, actions)


@dataclass(frozen=True)
class Folder:
    """A set of videos by the names of their files without the ending."""

    path: Path
    videos: dict[str, VideoFile]

    @classmethod
    def of(cls, path: Path, frames: int | None = None) -> Folder:
        """The videos that lie in a folder; those deeper inside do not count."""
        if not path.is_dir():
            raise NotADirectoryError(f"{path} is no folder of videos")
        notes = manifest.read(path)
        found: dict[str, VideoFile] = {}
        for file in sorted(path.iterdir()):
            if file.suffix.lower() not in VIDEOS or file.name.startswith("."):
                continue
            if file.stem in found:
                raise ValueError(f"{path} has two videos called {file.stem}: which one is meant is unclear")
            video = VideoFile(file, header(file), frames, notes.get(file.stem) or manifest.named(file.stem))
            if frames is not None and video.length is not None and video.length < frames:
                raise ValueError(f"{file} has {video.length} frames; {frames} are asked for")
            found[file.stem] = video
        if not found:
            raise ValueError(f"{path} holds no videos ({', '.join(VIDEOS)})")
        return cls(path, found)

    @property
    def sha256(self) -> str:
        """Of all names and files, in order."""
        lines = [f"{name} {video.sha256}\n" for name, video in self.videos.items()]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def name(self) -> str:
        """As tables show it."""
        return self.path.resolve().name


def check_alike(folder: Folder) -> None:
    """Refuse a set whose videos differ in length, size or frame rate: a mean over them would hide it."""
    first, *others = folder.videos.values()
    for other in others:
        for what, one, two in _differences(first, other):
            hint = "; --first takes the first ones of all" if what == "frames" else ""
            raise ValueError(f"{folder.path}: {first.path.name} has {what} {one}, {other.path.name} has {two}{hint}")


def check_pairs(folder: Folder, reference: Folder) -> None:
    """Refuse videos that have no true one of the same name, length, size and frame rate."""
    missing = [name for name in folder.videos if name not in reference.videos]
    if missing:
        there = ", ".join(list(reference.videos)[:MANY])
        raise ValueError(
            f"{len(missing)} videos of {folder.path} have no partner of the same name in {reference.path}: "
            f"{', '.join(missing[:MANY])}; there are: {there}"
        )
    for name, video in folder.videos.items():
        for what, one, two in _differences(video, reference.videos[name]):
            hint = "; --first takes the first ones of both" if what == "frames" else ""
            raise ValueError(f"{video.path} has {what} {one}, {reference.videos[name].path} has {two}{hint}")


def _differences(one: VideoFile, other: VideoFile) -> Sequence[tuple[str, object, object]]:
    known = one.length is not None and other.length is not None
    pairs = [
        ("frames", one.length, other.length) if known else ("frames", 0, 0),
        ("size", _size(one.header), _size(other.header)),
        ("frame rate", _rate(one.header.fps), _rate(other.header.fps)),
    ]
    return [pair for pair in pairs if pair[1] != pair[2]]


def _size(header: Header) -> str:
    return f"{header.height}x{header.width}"


def _rate(fps: Fraction) -> str:
    return f"{float(fps):g}"
