"""Counters of jobs, as text for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

HELP = {
    "jobs_created_total": ("counter", "Jobs that were taken."),
    "jobs_ended_total": ("counter", "Jobs that ended: completed, or the code of their error."),
    "job_frames_total": ("counter", "Frames made for jobs."),
    "jobs": ("gauge", "Jobs that wait or are being made."),
}


@dataclass(slots=True)
class Counters:
    """Of one model."""

    created: int = 0
    frames: int = 0
    ended: Counter[str] = field(default_factory=Counter)


def exposition(models: Mapping[str, Counters], waiting: Mapping[tuple[str, str], int]) -> str:
    """Text for `/metrics`. `waiting`: jobs by model and status."""
    return "".join(line + "\n" for line in _lines(models, waiting))


def _lines(models: Mapping[str, Counters], waiting: Mapping[tuple[str, str], int]) -> Iterator[str]:
    for name, (kind, text) in HELP.items():
        yield f"# HELP diagonal_{name} {text}"
        yield f"# TYPE diagonal_{name} {kind}"
        if name == "jobs":
            yield from (
                f'diagonal_jobs{{model="{model}",status="{status}"}} {n}' for (model, status), n in waiting.items()
            )
        for model, counters in models.items():
            if name == "jobs_created_total":
                yield f'diagonal_{name}{{model="{model}"}} {counters.created}'
            elif name == "job_frames_total":
                yield f'diagonal_{name}{{model="{model}"}} {counters.frames}'
            elif name == "jobs_ended_total":
                ended = sorted(counters.ended.items())
                yield from (f'diagonal_{name}{{model="{model}",outcome="{how}"}} {n}' for how, n in ended)
