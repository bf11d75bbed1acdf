"""Counters of a model, as text for Prometheus. Each is written by one thread alone, so none needs a lock."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """How many values there were up to each of some bounds."""

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds, self.sum = bounds, 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """One more value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str) -> Iterable[str]:
        """Its samples."""
        bounds = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        for bound, count in zip(bounds, accumulate(self._counts), strict=True):
            yield f'{name}_bucket{{{labels},le="{bound}"}} {count}'
        yield f"{name}_sum{{{labels}}} {self.sum:.6f}"
        yield f"{name}_count{{{labels}}} {sum(self._counts)}"


@dataclass(slots=True)
class Metrics:
    """Of one model."""

    frames: Counter[str] = field(default_factory=Counter)  # made, by schedule
    frame_seconds: Histogram = field(default_factory=Histogram)  # of the steps in which they were made
    latency: Histogram = field(default_factory=Histogram)  # from a control to the image that shows it
    superseded: int = 0  # frames that were begun over for a control that came early in them
    images: int = 0  # sent
    dropped: int = 0  # images that were not sent, for the client was behind
    sessions: int = 0  # begun
    refused: int = 0  # for want of a seat
    kept: int = 0  # snapshots in the store
    not_kept: int = 0  # snapshots that the store did not take


HELP = {
    "frames_total": ("counter", "Frames made."),
    "frames_superseded_total": ("counter", "Frames begun over for a control that came early in them."),
    "images_total": ("counter", "Images sent."),
    "images_dropped_total": ("counter", "Images not sent because the client was behind."),
    "sessions_total": ("counter", "Sessions begun."),
    "refused_total": ("counter", "Sessions refused for want of a seat."),
    "snapshots_total": ("counter", "Snapshots of sessions that were kept."),
    "snapshots_failed_total": ("counter", "Snapshots of sessions that the store did not take."),
    "sessions": ("gauge", "Sessions that are open."),
    "seats": ("gauge", "Sessions that there can be."),
    "frame_seconds": ("histogram", "Time of a step, in which frames of several sessions may be made."),
    "control_to_image_seconds": ("histogram", "Time from a control to the image that shows it."),
}


def exposition(models: Mapping[str, tuple[Metrics, int, int]]) -> str:
    """The text of `/metrics`: of each model its counters, its open sessions and its seats."""
    found: dict[str, list[str]] = {name: [] for name in HELP}
    for model, (metrics, sessions, seats) in models.items():
        labels = f'model="{model}"'
        found["frames_total"] += [
            f'diagonal_frames_total{{{labels},schedule="{schedule}"}} {count}'
            for schedule, count in sorted(metrics.frames.items())
        ]
        plain = {
            "frames_superseded_total": metrics.superseded,
            "images_total": metrics.images,
            "images_dropped_total": metrics.dropped,
            "sessions_total": metrics.sessions,
            "refused_total": metrics.refused,
            "snapshots_total": metrics.kept,
            "snapshots_failed_total": metrics.not_kept,
            "sessions": sessions,
            "seats": seats,
        }
        for name, value in plain.items():
            found[name].append(f"diagonal_{name}{{{labels}}} {value}")
        found["frame_seconds"] += metrics.frame_seconds.lines("diagonal_frame_seconds", labels)
        found["control_to_image_seconds"] += metrics.latency.lines("diagonal_control_to_image_seconds", labels)
    lines = []
    for name, samples in found.items():
        kind, text = HELP[name]
        lines += [f"# HELP diagonal_{name} {text}", f"# TYPE diagonal_{name} {kind}", *samples]
    return "\n".join(lines) + "\n"
