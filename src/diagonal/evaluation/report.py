"""Rows of a table: each a world under an order, measured on the same held-out clips."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diagonal.evaluation import rollouts
from diagonal.evaluation.rollouts import Clips, Judges, Rollouts, measure, roll
from diagonal.evaluation.statistics import Interval, bootstrap
from diagonal.generation.world import World
from diagonal.media.files import atomic
from diagonal.planning.plan import Order

COLUMNS = ("psnr", "lpips", "frechet_idm", "actions_obeyed", "turns_obeyed", "walking_turns_obeyed", "steps")


@dataclass(frozen=True, slots=True)
class Row:
    """One setting's numbers, and its videos (N, seeds, T, C, H, W)."""

    label: str
    schedule: str
    numbers: dict[str, Any]
    videos: Tensor


def references(world: World, clips: Clips, judges: Judges) -> Iterator[Row]:
    """What bounds the table: the tokenizer's reconstruction of the true frames, and the last frame standing still."""
    true = clips.true
    decoded = torch.cat([world.tokenizer.decode(world.tokenizer.encode(part), {}) for part in true.split(32)])
    still = clips.frames[:, clips.context - 1 : clips.context].expand_as(true)
    for label, video in (("true frames through the tokenizer", decoded), ("last frame repeated", still)):
        made = Rollouts(video[:, None], 0, 0.0)
        yield Row(label, "", measure(clips, made, judges), made.videos)


def row(label: str, world: World, order: Order, clips: Clips, judges: Judges, seeds: int = 3) -> Row:
    """Generate and measure one setting with the world's own sampling."""
    made = roll(world, clips, order, world.variant.sampling, seeds)
    return Row(label, str(order), measure(clips, made, judges), made.videos)


def compare(first: Row, second: Row) -> Interval:
    """LPIPS of the first minus that of the second, paired by clip."""
    difference = first.numbers["lpips_values"].mean(-1) - second.numbers["lpips_values"].mean(-1)
    return bootstrap(np.asarray(difference)[:, None])


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    names = [name for name in COLUMNS if any(name in row.numbers for row in rows)]
    lines = ["| | schedule | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    for one in rows:
        cells = [_cell(one.numbers.get(name)) for name in names]
        lines.append(f"| {one.label} | {one.schedule} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def plain(numbers: dict[str, Any]) -> dict[str, Any]:
    """Numbers as JSON takes them; what could not be measured is null."""
    return {key: _plain(value) for key, value in numbers.items() if not isinstance(value, np.ndarray)}


def _plain(value: Any) -> Any:
    if isinstance(value, Interval):
        return None if math.isnan(value.mean) else asdict(value)
    return value


def content(rows: Sequence[Row], extra: dict[str, Any]) -> dict[str, Any]:
    """A whole table as JSON takes it."""
    return extra | {"rows": [{"label": r.label, "schedule": r.schedule} | plain(r.numbers) for r in rows]}


def save(rows: Sequence[Row], path: str | Path, extra: dict[str, Any]) -> None:
    """All numbers as JSON, written atomically."""
    with atomic(path) as temporary:
        temporary.write_text(as_json(content(rows, extra)))


def as_json(numbers: dict[str, Any]) -> str:
    """Numbers as the text of a file."""
    return json.dumps(numbers, indent=1) + "\n"


def sheet(rows: Sequence[Row], clips: Clips, clip: int, every: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """True frames and every row's first seed, one above the other."""
    return rollouts.sheet(clips, {one.label + one.schedule: one.videos[clip, 0] for one in rows}, clip, every)
