"""Metrics of videos, one file each: full reference, distributions, VBench's, and proxies under their own names.

A metric's name is its module: `imaging_quality` is the class `ImagingQuality` of `imaging_quality.py`, and
`fvd:cd-fvd` one of its variants. A new metric is one new file here. No metric knows a model that makes videos.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from diagonal.evaluation.statistics import FloatArray, Interval, bootstrap


class Reference(Enum):
    """What a metric compares videos with."""

    NONE = "none"
    PAIR = "the true video of the same name"
    SET = "a set of real videos"


class Beside(Enum):
    """What a metric must know of a video beside its frames."""

    NOTHING = "nothing"
    PROMPT = "its prompt"
    ACTIONS = "the actions between its frames"


class Better(Enum):
    """Which way quality lies."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """A file that a metric needs, by its published name, and where its authors publish it."""

    name: str
    where: str


class MissingWeightsError(ValueError):
    """A metric's file was not given."""


class UnfitError(ValueError):
    """A metric cannot be had of these videos, or on this machine."""


@dataclass(frozen=True, slots=True)
class About:
    """What a metric is, and what it asks of videos."""

    citation: str
    reference: Reference = Reference.NONE
    better: Better = Better.HIGHER
    beside: Beside = Beside.NOTHING
    variants: tuple[str, ...] = ()  # the first is meant where none is named
    files: tuple[WeightsFile, ...] = ()
    own_files: Mapping[str, tuple[WeightsFile, ...]] = field(default_factory=dict)  # of one variant each
    frames: int = 1  # at least
    side: int = 1  # pixels, at least
    clips: int = 1  # at least

    def needs(self, variant: str) -> tuple[WeightsFile, ...]:
        """The files that a variant needs."""
        return (*self.files, *self.own_files.get(variant, ()))


@dataclass(frozen=True, slots=True)
class Video:
    """A video as metrics see it."""

    frames_TCHW: Tensor  # uint8
    fps: Fraction = Fraction(24)
    path: Path | None = None  # of its file, for what is lost in RGB
    prompt: str | None = None
    actions: tuple[str, ...] | None = None  # between each frame and the next one


@dataclass(frozen=True, slots=True)
class Setting:
    """How a metric is run: its variant, where files of weights are, and the device."""

    variant: str = ""
    folder: Path | None = None  # with files of weights under their published names
    files: Mapping[str, Path] = field(default_factory=dict)  # single ones, by published name
    device: torch.device | str = "cpu"

    def path(self, file: WeightsFile) -> Path:
        """Where a file of weights is."""
        if file.name in self.files:
            return self.files[file.name]
        if self.folder is not None and (self.folder / file.name).is_file():
            return self.folder / file.name
        raise MissingWeightsError(f"needs {file.name}; its authors publish it: {file.where}")


class Metric(ABC):
    """A metric looks at one video after the other, and then makes one number of what it saw.

    What it saw of a video is an array: (n,) numbers along time, or (n, F) features.
    """

    about: ClassVar[About]

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    @abstractmethod
    def look(self, made: Video, true: Video | None) -> FloatArray:
        """What is seen of a video; `true` is given where the metric compares pairs."""

    def of_video(self, seen: FloatArray) -> float:
        """One number of one video, where the metric has such."""
        return float(seen.mean())

    def curve(self, seen: FloatArray) -> FloatArray | None:
        """What of it lies along time, a number a frame or pair; None: nothing does."""
        return seen if seen.ndim == 1 and len(seen) > 1 else None

    def total(self, made: Sequence[FloatArray], real: Sequence[FloatArray]) -> Interval:
        """One number of all videos; `real` is what was seen of the real ones, where a set is compared."""
        return bootstrap(np.array([[self.of_video(seen)] for seen in made]))


def names() -> list[str]:
    """All metrics that `find` knows."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find(spec: str) -> tuple[type[Metric], str]:
    """The metric named by `name` or `name:variant`, and its variant."""
    name, _, variant = spec.strip().partition(":")
    if name not in names():
        raise ValueError(f"unknown metric {name!r}; known: {', '.join(names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    kind: type[Metric] = vars(module)["".join(part.capitalize() for part in name.split("_"))]
    variants = kind.about.variants
    if variant and variant not in variants:
        known = ", ".join(variants) or "none"
        raise ValueError(f"{name} has no variant {variant!r}; its variants: {known}")
    return kind, variant or next(iter(variants), "")


def check(name: str, about: About, video: Video) -> None:
    """Refuse a video that is too short or too small for a metric, or of which too little is known."""
    frames, _, height, width = video.frames_TCHW.shape
    if frames < about.frames:
        raise UnfitError(f"{name} needs at least {about.frames} frames; the video has {frames}")
    if min(height, width) < about.side:
        raise UnfitError(f"{name} needs sides of at least {about.side} pixels; the video has {height}x{width}")
    if about.beside is Beside.PROMPT and video.prompt is None:
        raise UnfitError(
            f"{name} needs the prompt of {video.path}: in manifest.json beside it, or in its name, 'prompt-index.mp4'"
        )
    if about.beside is Beside.ACTIONS and (video.actions is None or len(video.actions) != frames - 1):
        given = "none" if video.actions is None else f"{len(video.actions)}"
        raise UnfitError(
            f"{name} needs the {frames - 1} actions between the frames of {video.path}, in manifest.json beside it; "
            f"there are {given}"
        )
