"""What `diagonal evaluate` does: one world under several orders, on the same held-out clips, beside the references."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from diagonal import checkpoints
from diagonal.catalog.names import find
from diagonal.catalog.variants import token_variant
from diagonal.evaluation import report
from diagonal.evaluation.report import Row
from diagonal.evaluation.rollouts import Clips, Judges
from diagonal.evaluation.statistics import Interval
from diagonal.generation.world import World
from diagonal.media.files import atomic
from diagonal.media.video import write_picture
from diagonal.networks.inverse_dynamics import Config, InverseDynamics
from diagonal.networks.opening import opened
from diagonal.planning.plan import Order
from diagonal.worlds import vizdoom

SHEET_FRAMES = 12  # at most, side by side


def load_judge(source: str | Path, device: torch.device | str) -> InverseDynamics:
    """A trained inverse-dynamics network, from a file or a folder."""
    return opened(Config(len(vizdoom.ACTIONS)).build, checkpoints.locate(source), device)


def check_actions(model: str) -> None:
    """The judge knows the actions of one game."""
    variant = token_variant(find("models", model), model)
    if variant.actions != "vizdoom":
        raise ValueError(f"the judge knows Doom's actions; those of {model} are {variant.actions}")


def sweep(world: World, orders: Sequence[Order], clips: Clips, judges: Judges, seeds: int) -> Iterator[Row]:
    """The references, then one row per order."""
    yield from report.references(world, clips, judges)
    for order in orders:
        yield report.row(world.name, world, order, clips, judges, seeds)


def differences(rows: Sequence[Row]) -> dict[str, Interval]:
    """LPIPS of every generated row minus that of the first one, where LPIPS was measured."""
    made = [row for row in rows if row.schedule and "lpips_values" in row.numbers]
    return {row.schedule: report.compare(row, made[0]) for row in made[1:]}


def write(rows: Sequence[Row], clips: Clips, folder: Path, extra: dict[str, Any]) -> None:
    """table.md, table.json and sheet.png (the clip in the middle)."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic(folder / "table.md") as temporary:
        temporary.write_text(report.table(rows) + "\n")
    report.save(rows, folder / "table.json", extra)
    every = -(-clips.true.shape[1] // SHEET_FRAMES)
    write_picture(folder / "sheet.png", report.sheet(rows, clips, len(clips.frames) // 2, every))
