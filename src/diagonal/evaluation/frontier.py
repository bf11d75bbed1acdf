"""Quality against speed: which schedules no other one beats in both, and which to take for a frame rate."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diagonal.evaluation.metrics import Better
from diagonal.evaluation.statistics import Interval, bootstrap
from diagonal.media.draw import Panel, Point, save_panels

OTHERS, FRONTIER = "others", "frontier"


@dataclass(frozen=True, slots=True)
class Measured:
    """A schedule, what it took, and how good its videos are."""

    schedule: str
    calls: float  # of the model, a video
    fps: Interval
    quality: Interval


def frame_rate(times: Mapping[str, Mapping[str, Any]]) -> Interval:
    """Frames a second of one video at a time, with the interval over videos, of what each took."""
    each = np.array([[one["seconds"] / one["frames"]] for one in times.values()])
    seconds = bootstrap(each)
    return Interval(1 / seconds.mean, 1 / seconds.high, 1 / seconds.low)


def calls(times: Mapping[str, Mapping[str, Any]]) -> float:
    """Model calls of a video, on average."""
    return float(np.mean([one["calls"] for one in times.values()]))


def by_rate(one: Measured) -> float:
    """How fast it is, in frames a second."""
    return one.fps.mean


def by_calls(one: Measured) -> float:
    """How fast it is, by the calls that it does not need."""
    return -one.calls


def pareto(
    measured: Sequence[Measured], better: Better, speed: Callable[[Measured], float] = by_rate
) -> list[Measured]:
    """Those that no other one reaches in both speed and quality, the fastest first."""
    sign = _sign(better)
    front: list[Measured] = []
    for one in sorted(measured, key=lambda one: (-speed(one), -sign * one.quality.mean)):
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
    """All schedules over frames a second and over model calls, those that differ in d alone as one curve, and the
    frontier of each."""
    families: dict[str, list[tuple[Measured, str]]] = {}
    for one in measured:
        name, delay = _family(one.schedule)
        families.setdefault(name, []).append((one, delay))
    alone = [name for name, members in families.items() if len(members) == 1]
    panels = []
    for axis, speed in (("frames a second", by_rate), ("model calls a video", by_calls)):
        curves: dict[str, list[Point]] = {}
        for name, members in families.items():
            several = name not in alone
            found = [_point(one, abs(speed(one)), delay if several else one.schedule) for one, delay in members]
            curves.setdefault(name if several else OTHERS, []).extend(found)
        loose = tuple(curves)
        curves[FRONTIER] = [Point(abs(speed(one)), one.quality.mean) for one in pareto(measured, better, speed)]
        panels.append(Panel(axis, f"{metric} ({better.value} is better)", curves, loose, (FRONTIER,), log=True))
    save_panels(panels, path, f"{metric} against speed")


def _family(schedule: str) -> tuple[str, str]:
    """A schedule without its d, and how d is labelled."""
    found = re.fullmatch(r"(.*),d=([0-9]+)", schedule)
    return (found[1], f"d={found[2]}") if found else (schedule, "whole")


def _point(one: Measured, x: float, label: str) -> Point:
    return Point(x, one.quality.mean, one.quality.low, one.quality.high, label)
