"""Quality against speed: which schedules no other one beats in both, and which to take for a frame rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diagonal.evaluation.metrics import Better
from diagonal.evaluation.statistics import Interval, bootstrap
from diagonal.media.draw import Panel, Point, save_panels


@dataclass(frozen=True, slots=True)
class Measured:
    """A schedule, what it took, and how good its videos are."""

    schedule: str
    calls: float  # of the model, a video
    fps: Interval
    quality: Interval


def frame_rate(times: Mapping[str, Mapping[str, float]]) -> Interval:
    """Frames a second of one video at a time, with the interval over videos, of what each took."""
    each = np.array([[one["seconds"] / one["frames"]] for one in times.values()])
    seconds = bootstrap(each)
    return Interval(1 / seconds.mean, 1 / seconds.high, 1 / seconds.low)


def calls(times: Mapping[str, Mapping[str, float]]) -> float:
    """Model calls of a video, on average."""
    return float(np.mean([one["calls"] for one in times.values()]))


def pareto(measured: Sequence[Measured], better: Better) -> list[Measured]:
    """Those that no other one reaches in both frame rate and quality, the fastest first."""
    sign = _sign(better)
    front: list[Measured] = []
    for one in sorted(measured, key=lambda one: (-one.fps.mean, -sign * one.quality.mean)):
        if not front or sign * one.quality.mean > sign * front[-1].quality.mean:
            front.append(one)
    return front


def choose(measured: Sequence[Measured], better: Better, fps: float) -> Measured:
    """The best quality of those that are surely as fast (the lower end of their interval); of equals the fastest."""
    quick = [one for one in measured if one.fps.low >= fps]
    if not quick:
        fastest = max(measured, key=lambda one: one.fps.low)
        raise ValueError(
            f"no schedule reaches {fps:g} FPS: the fastest, {fastest.schedule}, makes {fastest.fps.mean:.2f} "
            f"[{fastest.fps.low:.2f}, {fastest.fps.high:.2f}]"
        )
    return max(quick, key=lambda one: (_sign(better) * one.quality.mean, one.fps.mean))


def _sign(better: Better) -> int:
    if better is Better.NEITHER:
        raise ValueError("a frontier needs a metric of which more, or less, is better")
    return 1 if better is Better.HIGHER else -1


def draw(measured: Sequence[Measured], metric: str, better: Better, path: Path) -> None:
    """All schedules, and the frontier as a line, over frames a second and over model calls."""
    front = pareto(measured, better)
    places: dict[str, Callable[[Measured], float]] = {
        "frames a second": lambda one: one.fps.mean,
        "model calls a video": lambda one: one.calls,
    }
    panels = []
    for axis, place in places.items():
        every = [_point(one, place(one), one.schedule) for one in measured]
        best = [_point(one, place(one)) for one in front]
        panels.append(Panel(axis, metric, {"measured": every, "frontier": best}, loose=("measured",)))
    save_panels(panels, path, f"{metric} against speed")


def _point(one: Measured, x: float, label: str = "") -> Point:
    return Point(x, one.quality.mean, one.quality.low, one.quality.high, label)
