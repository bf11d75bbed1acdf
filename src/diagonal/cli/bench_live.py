"""The part of `diagonal bench` that is for sessions that are played."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.table import Table

from diagonal.cli import load_world, out, progress_bar
from diagonal.cli.options import Computing, WorldSource

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = {  # of the printed table: a field and its format
    "sessions": ("sessions", "{}"),
    "FPS\neach": ("fps", "{:.2f}"),
    "while\nfilling": ("fps_filling", "{:.2f}"),
    "lock\nstep": ("lock_step_fps", "{:.2f}"),
    "ms\nmedian": ("median_ms", "{:.1f}"),
    "p95": ("p95_ms", "{:.1f}"),
    "worst": ("worst_ms", "{:.1f}"),
    "floor": ("floor_ms", "{:.1f}"),
    "equal\ntokens": ("equal_tokens", "{:.2%}"),
    "MB\na seat": ("seat_mb", "{:.0f}"),
}


@dataclass(frozen=True, kw_only=True)
class SessionsMeasured:
    """What is asked of worlds that are played."""

    panel: ClassVar[str] = "Sessions"

    sessions: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Play so many sessions in one arena instead; give it again for more."),
    ] = None
    context: Annotated[str | None, typer.Option(help="Of full windows: roll or refill. Default: roll if it can.")] = (
        None
    )


def bench_live(
    source: WorldSource, computing: Computing, schedules: Sequence[str], asked: SessionsMeasured, frames: int | None
) -> dict[str, Any]:
    """Each schedule with each number of sessions."""
    from diagonal.catalog.names import find
    from diagonal.catalog.variants import token_variant
    from diagonal.evaluation.speed.live import DEFINITION, LiveSettings, measure_live
    from diagonal.planning.plan import Order

    orders = [Order.of(schedule) for schedule in schedules]
    settings = LiveSettings(tuple(asked.sessions or ()), frames or 200, asked.context)
    variant = token_variant(find("models", source.model), source.model)
    weights = source.weights if source.weights is not None or variant.embedded else "random"
    world = load_world(replace(source, weights=weights), computing)
    cases: list[dict[str, Any]] = []
    with progress_bar("numbers of sessions") as progress:
        task = progress.add_task(world.name, total=len(orders) * len(settings.sessions), note="")
        for order in orders:
            cases += measure_live(world, order, settings, lambda: progress.advance(task))
    return {"cases": cases, "definition": DEFINITION}


def print_sessions(result: dict[str, Any]) -> None:
    """The table, where it was measured, and what the numbers mean."""
    cases = result["cases"]
    table = Table("schedule", *COLUMNS, box=None, padding=(0, 1, 0, 0))
    for case in cases:
        cells = ((case[field], form) for field, form in COLUMNS.values())
        table.add_row(case["schedule"], *("" if value is None else form.format(value) for value, form in cells))
    out.print(table)
    one = cases[0]
    out.print(
        f"{one['model']}, {one['weights']} weights, {one['dtype']}, context {one['context']}; {one['device']}, "
        f"{one['bandwidth_gbs']:.0f} GB/s, PyTorch {one['torch']}, diagonal {one['commit']}",
        markup=False,
    )
    out.print(f"\n{result['definition']}", markup=False, style="dim")
