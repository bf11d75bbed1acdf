"""Recorded gameplay, whatever world it is of: frames, actions, episodes.

A module of `worlds` that has RECORDINGS and `read_recording` reads recordings (see `Recordings`). It is found by
looking: a new reader is one file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import numpy.typing as npt

from diagonal.media.video import VideoArray, resize

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a recording, or several, as tensors."""

    frames_NHWC: Tensor  # uint8
    actions_NA: Tensor  # ids, counted from 0
    episodes_N: Tensor


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a file of a recording holds. An action belongs to the frame on which it is taken."""

    frames: VideoArray
    actions: Sequence[Sequence[int]]  # ids of each frame's action, counted from 0
    episodes: npt.NDArray[np.integer] | None = None  # of each frame; None: the file is one episode


class Recordings(Protocol):
    """A module of `worlds` that reads recordings."""

    @property
    def RECORDINGS(self) -> tuple[str, str]:  # noqa: N802
        """How the names of the files end, such as '.mp4', and what the files are, in words."""
        ...

    def read_recording(self, path: Path, size: tuple[int, int]) -> Recorded:
        """One file; its frames have the size (height, width) that is asked for, or are refused."""
        ...


def readers() -> dict[str, Recordings]:
    """The modules of `worlds` that read recordings; those that cannot be imported are left out."""
    found: dict[str, Recordings] = {}
    for module in pkgutil.iter_modules(importlib.import_module("diagonal.worlds").__path__):
        try:
            world = importlib.import_module(f"diagonal.worlds.{module.name}")
        except Exception:  # whatever a module does when it is imported: it breaks no other
            continue
        if "RECORDINGS" in vars(world):
            found[module.name] = cast(Recordings, world)
    return found


def find(folder: str | Path) -> tuple[Recordings, list[Path]]:
    """What reads the recording in a folder, and its files in the order of their names."""
    folder = Path(folder)
    # Names that begin with a dot are what a killed process had not finished.
    files = sorted(path for path in folder.glob("[!.]*") if path.is_file())
    known = readers()
    matching = {name: [path for path in files if path.name.endswith(one.RECORDINGS[0])] for name, one in known.items()}
    matching = {name: paths for name, paths in matching.items() if paths}
    if len(matching) != 1:
        wrong = "files of several recordings" if matching else "no recording"
        listed = "; ".join(f"{what} ({ending})" for ending, what in (one.RECORDINGS for one in known.values()))
        raise ValueError(f"{folder} holds {wrong}: there are {_content(folder)}. It must be one of these: {listed}")
    ((name, paths),) = matching.items()
    return known[name], paths


def _content(folder: Path) -> str:
    """What a folder holds, in a few words."""
    entries = sorted(folder.glob("[!.]*"))
    counts = Counter(path.suffix or path.name for path in entries if path.is_file())
    found = [f"{count} {ending}" for ending, count in counts.items()]
    found += [f"the folder {path.name}" for path in entries if path.is_dir()]
    return ", ".join(found) or "no files"


def resized(frames: VideoArray, size: tuple[int, int]) -> VideoArray:
    """Frames of the size (height, width) that is asked for."""
    return frames if frames.shape[1:3] == size else resize(frames, *size)
