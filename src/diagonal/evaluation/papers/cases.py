"""Every speed that the two papers print, as commands of `diagonal bench`, for `benchmarks/suite.py --papers`.

A case is one model under one schedule, and one file of results, so that a run that was stopped goes on where it was.
Models are at their true size with random weights, which take the same time. What has no row in the papers and belongs
beside them, Cosmos with texts and videos of 45 seconds, is in BESIDE.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from diagonal.catalog.names import find
from diagonal.catalog.variants import token_variant
from diagonal.evaluation.papers import Row, Table, diagonal_decoding, diagonal_distillation
from diagonal.evaluation.speed.floor import Traffic
from diagonal.planning.grid import Grid, Layout
from diagonal.planning.plan import make_plan

RASTER_STEPS = 2000  # that are measured of raster, whose FPS is derived from them; other schedules run whole
REPEAT, WARMUP = 2, 1
BANDWIDTH = 4.2e12  # bytes a second, that `diagonal bench` measured on an H200
LONG = 717  # frames: 45 seconds of Wan in chunks of three latent frames
COSMOS_TEXT = {"cosmos/5b": "cosmos/4b", "cosmos/13b": "cosmos/12b"}  # with texts, and without


@dataclass(frozen=True, slots=True)
class Case:
    """A command of `diagonal bench` without device, dtype and --out; and about how long its steps take at least."""

    name: str  # of its file
    arguments: str
    seconds: float | None  # None: not estimated


def cases() -> list[Case]:
    """All of them, those of a model behind each other."""
    found: dict[str, Case] = {}
    for one in (*_worlds(), *_videos(), *_beside()):
        found.setdefault(one.name, one)
    return sorted(found.values(), key=lambda one: one.arguments.split()[1])


def _worlds() -> Iterator[Case]:
    """The token models of the first paper: every k and d of every table."""
    for table in diagonal_decoding.TABLES:
        for row in table.rows:
            if row.model:
                yield _world(row.model, row.schedule, table)


def _world(model: str, schedule: str, table: Table) -> Case:
    steps, often = len(make_plan(Layout(Grid.parse(table.grid), prefix=1), schedule).steps), f"--repeat {REPEAT}"
    if schedule == "raster":
        steps, often = min(steps, RASTER_STEPS), f"{often} --steps {RASTER_STEPS}"
    floor = (WARMUP + REPEAT) * steps * _weight_bytes(model) / BANDWIDTH
    arguments = f"--model {model} --schedule {schedule} --frames {table.frames} {often} --no-tokenizer"
    return Case(_name(model, schedule, table.frames), arguments, floor)


def _videos() -> Iterator[Case]:
    """Wan under every schedule of the second paper, decoded to pixels as the paper counts."""
    for table in diagonal_distillation.TABLES:
        for row in table.rows:
            if row.model:
                yield _video(row, table.frames)


def _video(row: Row, frames: int) -> Case:
    digits = row.schedule.removeprefix("steps=") if row.schedule.startswith("steps=") else ""
    schedule = f" --schedule {digits}" if digits else ""
    arguments = f"--model {row.model} --preset {row.preset}{schedule} --frames {frames} --repeat {REPEAT}"
    return Case(_name(row.model, f"{row.preset} {digits}".strip(), frames), arguments, None)


def _beside() -> Iterator[Case]:
    """Cosmos with texts under the rows of its twin without, and Wan for 45 seconds."""
    for table in diagonal_decoding.TABLES[:1]:
        for row in table.rows:
            for model, twin in COSMOS_TEXT.items():
                if row.model == twin:
                    yield _world(model, row.schedule, table)
    for preset in ("diagonal-distillation", "infinity"):
        row = Row("", diagonal_distillation.WAN, "", (), preset)
        yield _video(row, LONG)


def _name(model: str, schedule: str, frames: int) -> str:
    return "-".join(["papers", re.sub(r"[/:, ]", "-", f"{model} {schedule}"), f"{frames}f"])


def _weight_bytes(model: str) -> int:
    """What a step must read of bfloat16 weights: reading them is the least that it takes."""
    with torch.device("meta"):
        built = token_variant(find("models", model), model).config.build().to(torch.bfloat16)
    return Traffic.of(built, torch.bfloat16).weights
