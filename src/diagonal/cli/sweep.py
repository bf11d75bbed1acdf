"""`diagonal sweep`: quality against speed over many schedules, and which of them to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.table import Table

from diagonal.cli import app, err, out, print_json
from diagonal.cli.evaluate_folders import Run, Videos
from diagonal.cli.evaluate_model import Clips, evaluated, planned
from diagonal.cli.options import Device, Json, Lpips, WorldSource, flat
from diagonal.planning.plan import Order

if TYPE_CHECKING:
    from diagonal.evaluation.frontier import Measured
    from diagonal.evaluation.metrics import Better

WHOLE = "whole"


@dataclass(frozen=True, kw_only=True)
class Swept:
    """Which schedules are measured, on what."""

    panel: ClassVar[str] = "Sweep"

    data: Annotated[Path, typer.Option(help="Clips that are continued, as for evaluate.")]
    out_path: Annotated[Path, typer.Option("--out", help="Folder for videos and scores; what it has is kept.")]
    k: Annotated[str, typer.Option(help="Values of k, by commas.")] = "1,2,3,4"
    d: Annotated[str, typer.Option(help=f"Values of d, by commas; '{WHOLE}': frame after frame.")] = WHOLE
    schedule: Annotated[
        list[str] | None, typer.Option(help="Others beside them; may be repeated. Default: raster.")
    ] = None
    metrics: Annotated[str, typer.Option(help="As for evaluate; the first one is the quality.")] = "psnr,ssim"
    metric_weights: Annotated[list[str] | None, typer.Option(help="As for evaluate.")] = None
    lpips: Lpips = None
    clips: Annotated[int | None, typer.Option(min=1, help="Default: 16.")] = None
    context: Annotated[int | None, typer.Option(min=1, help="Frames that are given. Default: the model's.")] = None
    frames: Annotated[int | None, typer.Option(min=1, help="Frames that are made. Default: a window.")] = None
    choice: Annotated[int, typer.Option(help="Seed of the choice of clips.")] = 0
    target_fps: Annotated[float | None, typer.Option(help="Name the best schedule that is at least so fast.")] = None
    device: Device = "cpu"
    as_json: Json = False


@app.command()
@flat
def sweep(source: WorldSource, swept: Swept) -> None:
    """Measure quality and speed of many schedules of a token world: table, frontier, picture."""
    clips = Clips(swept.data, swept.clips, swept.context, swept.frames, swept.choice)
    orders, impossible = _possible(source, clips, _grid(swept))
    for text in impossible:
        err.print(f"[yellow]left out:[/] {text}", markup=True)
    videos = Videos(metrics=swept.metrics, metric_weights=swept.metric_weights)
    run = Run(swept.device, swept.lpips, swept.out_path, swept.as_json)
    result = evaluated(source, orders, clips, videos, run)
    metric, better, measured = _measured(result)
    from diagonal.evaluation.frontier import choose, draw, pareto
    from diagonal.evaluation.report import as_json
    from diagonal.media.files import atomic

    front = pareto(measured, better)
    chosen = None if swept.target_fps is None else choose(measured, better, swept.target_fps)
    found: dict[str, Any] = {"metric": metric, "better": better.value, "measured": [asdict(one) for one in measured]}
    found |= {"frontier": [one.schedule for one in front], "chosen": chosen and chosen.schedule}
    with atomic(swept.out_path / "sweep.json") as temporary:
        temporary.write_text(as_json(found))
    draw(measured, metric, better, swept.out_path / "sweep.png")
    if swept.as_json:
        print_json(found)
    else:
        _print(measured, front, metric)
        if chosen is not None:
            out.print(f"at least {swept.target_fps:g} FPS: {chosen.schedule}")
        out.print(f"sweep.json, sweep.png, scores.json and scores.md in {swept.out_path}", markup=False)


def _grid(swept: Swept) -> list[Order]:
    """Every k with every d, behind the other schedules."""
    specs = list(swept.schedule or ["raster"])
    for k, d in product(_values(swept.k), _values(swept.d)):
        specs.append(f"diagonal:k={k}" if d == WHOLE else f"diagonal:k={k},d={d}")
    return [Order.of(spec) for spec in dict.fromkeys(specs)]


def _values(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _possible(source: WorldSource, clips: Clips, orders: Sequence[Order]) -> tuple[list[Order], list[str]]:
    """Orders that the model's frames can be decoded in, and why the others cannot be."""
    fit, why = [], []
    for order in orders:
        try:
            planned(source, [order], clips)
        except ValueError as error:
            why.append(str(error))
        else:
            fit.append(order)
    if not fit:
        raise ValueError(why[0])
    return fit, why


def _measured(result: Mapping[str, Any]) -> tuple[str, Better, list[Measured]]:
    """The first metric of the scores, with the speed of each schedule."""
    from diagonal.evaluation.frontier import Measured
    from diagonal.evaluation.metrics import Better
    from diagonal.evaluation.statistics import Interval

    if not result["scores"]:
        raise ValueError(f"nothing was measured: {result['refused']}")
    metric, better = result["scores"][0]["metric"], Better(result["scores"][0]["better"])
    measured = []
    for one in result["scores"]:
        if one["metric"] == metric:
            speed = result["speed"][one["folder"]]
            fps, quality = Interval(**speed["fps"]), Interval(**one["value"])
            measured.append(Measured(speed["schedule"], speed["calls"], fps, quality))
    return metric, better, measured


def _print(measured: Sequence[Measured], front: Sequence[Measured], metric: str) -> None:
    from diagonal.evaluation.score_tables import short

    table = Table("schedule", "model calls", "FPS", metric, "frontier", box=None, padding=(0, 2, 0, 0))
    for one in sorted(measured, key=lambda one: one.fps.mean):
        table.add_row(
            one.schedule, f"{one.calls:.1f}", short(one.fps), short(one.quality), "yes" if one in front else ""
        )
    out.print(table)
