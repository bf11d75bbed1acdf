"""Quality against speed: which schedules no other one beats in both, and which to take for a frame rate.

Speed is frames a second, or model calls where the machine does other things as well: those are the same on any.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from diagonal.evaluation.metrics import Better
from diagonal.evaluation.statistics import Interval, bootstrap
from diagonal.media.draw import Panel, Point, save_panels

OTHERS, FRONTIER = "others", "frontier"


class Axis(Enum):
    """By what speed is told."""

    FPS = "fps"
    CALLS = "calls"


NAMES = {Axis.FPS: "frames a second", Axis.CALLS: "model calls a video"}


@dataclass(frozen=True, slots=True)
class Measured:
    """A schedule, what it took, and how good its videos are."""

    schedule: str
    calls: Interval  # of the model, a video
    fps: Interval
    quality: Interval

    def at(self, axis: Axis) -> Interval:
        """How fast, or how long, on an axis."""
        return self.fps if axis is Axis.FPS else self.calls

    def speed(self, axis: Axis) -> float:
        """More is faster, on every axis."""
        return self.fps.mean if axis is Axis.FPS else -self.calls.mean


def frame_rate(times: Mapping[str, Mapping[str, Any]]) -> Interval:
    """Frames a second of one video at a time, with the interval over videos, of what each took."""
    each = np.array([[one["seconds"] / one["frames"]] for one in times.values()])
    seconds = bootstrap(each)
    return Interval(1 / seconds.mean, 1 / seconds.high, 1 / seconds.low)


def calls(times: Mapping[str, Mapping[str, Any]]) -> Interval:
    """Model calls of a video. They are the same for all but under schedules that go by what is decoded."""
    return bootstrap(np.array([[float(one["calls"])] for one in times.values()]))


def pareto(measured: Sequence[Measured], better: Better, axis: Axis = Axis.FPS) -> list[Measured]:
    """Those that no other one reaches in both speed and quality, the fastest first."""
    sign = _sign(better)
    front: list[Measured] = []
    for one in sorted(measured, key=lambda one: (-one.speed(axis), -sign * one.quality.mean)):
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


def draw(measured: Sequence[Measured], metric: str, better: Better, path: Path, axes: Sequence[Axis]) -> None:
    """All schedules over each axis, those that differ in d alone as one curve, and the frontier of each axis."""
    families: dict[str, list[tuple[Measured, str]]] = {}
    for one in measured:
        name, delay = _family(one.schedule)
        families.setdefault(name, []).append((one, delay))
    alone = [name for name, members in families.items() if len(members) == 1]
    panels = []
    for axis in axes:
        curves: dict[str, list[Point]] = {}
        for name, members in families.items():
            several = name not in alone
            found = [_point(one, one.at(axis).mean, delay if several else one.schedule) for one, delay in members]
            curves.setdefault(name if several else OTHERS, []).extend(found)
        loose = tuple(curves)
        curves[FRONTIER] = [Point(one.at(axis).mean, one.quality.mean) for one in pareto(measured, better, axis)]
        panels.append(Panel(NAMES[axis], f"{metric} ({better.value} is better)", curves, loose, (FRONTIER,), log=True))
    save_panels(panels, path, f"{metric} against {' and '.join(NAMES[axis] for axis in axes)}")


def _family(schedule: str) -> tuple[str, str]:
    """A schedule without its d, and how d is labelled."""
    found = re.fullmatch(r"(.*),d=([0-9]+)", schedule)
    return (found[1], f"d={found[2]}") if found else (schedule, "whole")


def _point(one: Measured, x: float, label: str) -> Point:
    return Point(x, one.quality.mean, one.quality.low, one.quality.high, label)
