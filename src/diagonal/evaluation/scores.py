"""Scores folders of videos by metrics. What was seen of a video is kept at once, so that a stopped run goes on.

    for done in score(job): ...      # a step of progress each
    job.results

What is kept is found by what it depends on: the metric and its variant, the hashes of its weights, of the video and of
the true one, and the frames used. Nothing else is, so scores survive other folders, other metrics and a new order.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

import diagonal
from diagonal.evaluation import metrics
from diagonal.evaluation.folders import Folder, VideoFile, check_alike, check_pairs
from diagonal.evaluation.metrics import About, Beside, Metric, MissingWeightsError, Reference, Setting
from diagonal.evaluation.speed.machine import PACKAGE, commit
from diagonal.evaluation.statistics import FloatArray, Interval, bootstrap, slope
from diagonal.media.files import atomic

SPANS = 8  # parts of equal length into which curves are cut, at most


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a curve over time, and the mean in it."""

    first: int
    last: int  # behind its last number
    value: Interval


@dataclass(frozen=True, slots=True)
class Score:
    """A metric of a set of videos."""

    metric: str  # name, and variant behind a colon
    folder: str
    clips: int
    value: Interval
    by_frame: list[float | None] = field(default_factory=list)  # means over clips, where numbers lie along time
    over_time: list[Span] = field(default_factory=list)  # the same in a few parts, with intervals over clips
    slope_per_100: Interval | None = None
    minus_first: Interval | None = None  # to the first folder, paired by name


@dataclass(frozen=True, slots=True)
class Refusal:
    """A metric that could not be had, and why."""

    metric: str
    reason: str


@dataclass(slots=True)
class Job:
    """What is scored, by what, and what came out."""

    folders: Sequence[Folder]
    reference: Folder | None
    metrics: Sequence[str]
    setting: Setting
    keep: Path | None = None  # the folder in which what was seen is kept
    results: list[Score] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    weights: dict[str, str] = field(default_factory=dict)  # hashes of the files that were used

    @property
    def looks(self) -> int:
        """Steps of progress, at most."""
        each = sum(len(folder.videos) for folder in self.folders)
        real = len(self.reference.videos) if self.reference else 0
        sets = sum(metrics.find(name)[0].about.reference is Reference.SET for name in self.metrics)
        return each * len(self.metrics) + real * sets


def check(job: Job) -> None:
    """Refuse what cannot be compared, before anything is computed."""
    if len({folder.name for folder in job.folders}) < len(job.folders):
        raise ValueError("two folders have the same name; tables could not tell them apart: rename one")
    abouts = {name: metrics.find(name)[0].about for name in job.metrics}
    compared = [name for name, about in abouts.items() if about.reference is not Reference.NONE]
    if compared and job.reference is None:
        raise ValueError(f"{', '.join(compared)} compare with real videos; name their folder: --reference")
    for folder in job.folders:
        check_alike(folder)
        if job.reference and any(about.reference is Reference.PAIR for about in abouts.values()):
            check_pairs(folder, job.reference)
        elif job.reference:
            check_alike(replace(folder, videos={**folder.videos, "": next(iter(job.reference.videos.values()))}))
    if job.reference:
        check_alike(job.reference)


def score(job: Job) -> Iterator[str]:
    """Fill in the results. Yields what was just looked at."""
    for spec in job.metrics:
        kind, variant = metrics.find(spec)
        name = f"{spec.partition(':')[0]}:{variant}" if variant else spec
        setting = replace(job.setting, variant=variant)
        try:
            few = min(len(folder.videos) for folder in [*job.folders, *filter(None, [job.reference])])
            if few < kind.about.clips:
                raise metrics.UnfitError(f"needs at least {kind.about.clips} clips; a folder has {few}")
            yield from _score(job, name, kind, setting)
        except (MissingWeightsError, metrics.UnfitError) as error:
            job.refusals.append(Refusal(name, str(error)))


def _score(job: Job, name: str, kind: type[Metric], setting: Setting) -> Iterator[str]:
    hashes = _hashes(kind.about, setting)
    job.weights |= hashes
    looker = Looker(name, _built(kind, setting), job.keep, hashes)
    real: list[FloatArray] = []
    if kind.about.reference is Reference.SET and job.reference is not None:
        for video in job.reference.videos.values():
            real.append(looker.look(video, None))
            yield f"{name} {job.reference.name}/{video.path.name}"
    first: dict[str, FloatArray] = {}
    for folder in job.folders:
        seen = {}
        for key, video in folder.videos.items():
            paired = kind.about.reference is Reference.PAIR and job.reference is not None
            seen[key] = looker.look(video, job.reference.videos[key] if paired and job.reference else None)
            yield f"{name} {folder.name}/{video.path.name}"
        value = looker.metric.total(list(seen.values()), real)
        job.results.append(_paired(Score(name, folder.name, len(seen), value), looker.metric, seen, first))
        first = first or seen


def _built(kind: type[Metric], setting: Setting) -> Metric:
    """The metric with its files; one that they do not fit is not to be had, and the others go on."""
    try:
        return kind(setting)
    except (MissingWeightsError, metrics.UnfitError):
        raise
    except (ValueError, OSError) as error:
        raise metrics.UnfitError(f"cannot use the file that was given: {error}") from error


def _paired(found: Score, metric: Metric, seen: dict[str, FloatArray], first: dict[str, FloatArray]) -> Score:
    """With the curve over time, its slope, and the difference to the first folder, where the metric has such."""
    if metric.about.reference is Reference.SET:
        return found
    curves = [curve for one in seen.values() if (curve := metric.curve(one)) is not None]
    if len(curves) == len(seen) and len({len(curve) for curve in curves}) == 1:
        rise = bootstrap(np.array([[slope(curve)] for curve in curves]))
        mean, spans = _over_time(np.array(curves))
        found = replace(found, by_frame=mean, over_time=spans, slope_per_100=rise)
    both = [name for name in seen if name in first]
    apart = np.array([[metric.of_video(seen[name]) - metric.of_video(first[name])] for name in both])
    if np.isfinite(apart).any():  # a video may have no number, as one without turns has none of turns
        found = replace(found, minus_first=bootstrap(apart))
    return found


def _over_time(curves_NT: FloatArray) -> tuple[list[float | None], list[Span]]:
    """The mean curve, and its parts with intervals; of some clips a number may be missing (nan), of all of them too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where all are missing, so is the mean
        mean = np.nanmean(curves_NT, axis=0)
        every = -(-len(mean) // SPANS)
        ends = [(first, min(first + every, len(mean))) for first in range(0, len(mean), every)]
        parts = [(*end, np.nanmean(curves_NT[:, slice(*end)], axis=1)) for end in ends]
        spans = [Span(first, last, bootstrap(one[:, None])) for first, last, one in parts if np.isfinite(one).any()]
    return [float(one) if np.isfinite(one) else None for one in mean], spans


@dataclass(frozen=True, slots=True)
class Looker:
    """A metric that keeps what it saw."""

    name: str
    metric: Metric
    keep: Path | None
    weights: dict[str, str]

    def look(self, video: VideoFile, true: VideoFile | None) -> FloatArray:
        """What the metric sees of a video, or saw of it before."""
        place = None if self.keep is None else self.keep / self.name.replace(":", "-") / f"{self._key(video, true)}.npy"
        if place is not None and (before := _kept(place)) is not None:
            return before
        loaded = video.load()
        metrics.check(self.name, self.metric.about, loaded)
        seen = self.metric.look(loaded, None if true is None else true.load())
        if not np.isfinite(seen).all():
            raise metrics.UnfitError(f"{self.name} has no finite number for {video.path}")
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            with atomic(place) as temporary:
                np.save(temporary, seen, allow_pickle=False)
        return seen

    def _key(self, video: VideoFile, true: VideoFile | None) -> str:
        facts: list[object] = [
            self.name,
            self.weights,
            video.sha256,
            video.frames,
            str(video.header.fps),
            true and true.sha256,
        ]
        beside = self.metric.about.beside
        facts += [video.note.prompt] if beside is Beside.PROMPT else []
        facts += [video.note.actions] if beside is Beside.ACTIONS else []
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _kept(place: Path) -> FloatArray | None:
    """What was kept there; a damaged file is as none."""
    try:
        found: FloatArray = np.load(place, allow_pickle=False)
    except (FileNotFoundError, ValueError, EOFError):
        return None
    return found


def _hashes(about: About, setting: Setting) -> dict[str, str]:
    """The hashes of the files of a metric that are there."""
    found = {}
    for file in about.needs(setting.variant):
        try:
            path = setting.path(file)
        except MissingWeightsError:
            continue
        with path.open("rb") as content:
            found[file.name] = hashlib.file_digest(content, "sha256").hexdigest()
    return found


def versions() -> dict[str, str]:
    """What decoded and computed: all of it moves scores a little."""
    import av

    own = {"diagonal": commit(PACKAGE) or diagonal.__version__}
    return own | {"decoder": f"PyAV {av.__version__}", "torch": torch.__version__, "numpy": np.__version__}
