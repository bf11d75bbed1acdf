"""`diagonal sweep`: quality against speed over many schedules, and which of them to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer
from rich.console import Console
from rich.table import Table

from diagonal.cli import app, err, out, print_json
from diagonal.cli.evaluate_folders import WIDTH, Run, Videos
from diagonal.cli.evaluate_model import Clips, evaluated, planned
from diagonal.cli.options import Device, Json, Lpips, WorldSource, flat, given, refuse
from diagonal.cli.spread import Spread
from diagonal.cli.sweep_video import StepGrid, requests_of, swept_video
from diagonal.planning.plan import Order

if TYPE_CHECKING:
    from diagonal.evaluation.frontier import Axis, Measured
    from diagonal.evaluation.metrics import Better

WHOLE = "whole"
K, D, METRICS = "1,2,3,4", WHOLE, "psnr,ssim"


@dataclass(frozen=True, kw_only=True)
class Swept:
    """What is measured, and where the result goes."""

    panel: ClassVar[str] = "Sweep"

    out_path: Annotated[Path, typer.Option("--out", help="Folder for videos and scores; what it has is kept.")]
    schedule: Annotated[
        list[str] | None, typer.Option(help="Others beside the grid; may be repeated. Default: raster, for worlds.")
    ] = None
    metrics: Annotated[
        str | None,
        typer.Option(help=f"As for evaluate; the first one is the quality. Default: {METRICS}, for worlds."),
    ] = None
    metric_weights: Annotated[list[str] | None, typer.Option(help="As for evaluate.")] = None
    lpips: Lpips = None
    frames: Annotated[int | None, typer.Option(min=1, help="Frames that are made. Default: the model's.")] = None
    axis: Annotated[
        Literal["fps", "calls"],
        typer.Option(help="What speed is: frames a second, or model calls, where the machine does other things too."),
    ] = "fps"
    target_fps: Annotated[float | None, typer.Option(help="Name the best schedule that is at least so fast.")] = None
    device: Device = "cpu"
    as_json: Json = False

    def __post_init__(self) -> None:
        if self.axis == "calls" and self.target_fps is not None:
            raise ValueError(f"--target-fps {self.target_fps:g} needs frames a second, which --axis calls leaves out")


@dataclass(frozen=True, kw_only=True)
class CellGrid:
    """Which decoding schedules are measured, on what."""

    panel: ClassVar[str] = "Token worlds"

    data: Annotated[Path | None, typer.Option(help="Clips that are continued, as for evaluate.")] = None
    k: Annotated[str | None, typer.Option(help=f"Values of k, by commas. Default: {K}.")] = None
    d: Annotated[
        str | None, typer.Option(help=f"Values of d, by commas; '{WHOLE}': frame after frame. Default: {D}.")
    ] = None
    clips: Annotated[int | None, typer.Option(min=1, help="Default: 16.")] = None
    context: Annotated[int | None, typer.Option(min=1, help="Frames that are given. Default: the model's.")] = None
    choice: Annotated[int | None, typer.Option(help="Seed of the choice of clips. Default: 0.")] = None


@app.command()
@flat
def sweep(source: WorldSource, swept: Swept, cells: CellGrid, steps: StepGrid, spread: Spread) -> None:
    """Measure quality and speed of many schedules of a model: table, frontier, picture."""
    from diagonal.catalog.names import find
    from diagonal.catalog.variants import DiffusionVariant

    # Scores are shown with the speed, a schedule a line.
    run = Run(swept.device, swept.lpips, swept.out_path, as_json=True)
    if isinstance(find("models", source.model), DiffusionVariant):
        refuse(given(cells), source.model)
        result = _of_prompts(source, swept, steps, run, spread)
    else:
        refuse(given(steps), source.model)
        result = _of_clips(source, swept, cells, run, spread)
    _report(swept, result)


def _of_clips(source: WorldSource, swept: Swept, cells: CellGrid, run: Run, spread: Spread) -> dict[str, Any]:
    """Clips continued by a token world."""
    clips = Clips(cells.data, cells.clips, cells.context, swept.frames, cells.choice or 0)
    orders, impossible = _possible(source, clips, _grid(swept, cells))
    for text in impossible:
        err.print(f"[yellow]left out:[/] {text}", markup=True)
    return evaluated(source, orders, clips, _videos(swept, METRICS), run, spread)


def _of_prompts(source: WorldSource, swept: Swept, steps: StepGrid, run: Run, spread: Spread) -> dict[str, Any]:
    """Videos of prompts by a diffusion model."""
    if swept.metrics is None:
        raise ValueError("--metrics is needed, the first one as the quality: what prompts ask for has no true videos")
    requests = requests_of(source, steps, steps.schedules(swept.schedule), swept.frames)
    return swept_video(requests, steps.reference, _videos(swept, ""), run, spread)


def _videos(swept: Swept, metrics: str) -> Videos:
    return Videos(metrics=swept.metrics or metrics, metric_weights=swept.metric_weights)


def _report(swept: Swept, result: Mapping[str, Any]) -> None:
    """Frontier and choice: as files, and as a table or JSON."""
    from diagonal.evaluation.frontier import Axis, draw, pareto
    from diagonal.evaluation.report import as_json
    from diagonal.media.files import atomic

    metric, better, measured = _measured(result)
    axis = Axis(swept.axis)
    front = pareto(measured, better, axis)
    rows = [asdict(one) | ({} if axis is Axis.FPS else {"fps": None}) for one in measured]
    found: dict[str, Any] = {"metric": metric, "better": better.value, "axis": axis.value, "measured": rows}
    found |= {"frontier": [one.schedule for one in front], "others": _others(result, metric)}
    found["chosen"], why_none = _choice(swept.target_fps, measured, better)
    with atomic(swept.out_path / "sweep.json") as temporary:
        temporary.write_text(as_json(found))
    draw(measured, metric, better, swept.out_path / "sweep.png", list(Axis) if axis is Axis.FPS else [axis])
    if swept.as_json:
        print_json(found)
    else:
        _print(measured, front, metric, found["others"], axis)
        for name, reason in result["refused"].items():
            out.print(f"not had: {name} {reason}", markup=False)
        if found["chosen"]:
            out.print(f"at least {swept.target_fps:g} FPS: {found['chosen']}")
        out.print(f"sweep.json, sweep.png, scores.json and scores.md in {swept.out_path}", markup=False)
    if why_none:
        raise ValueError(why_none)  # all else is done, and stays


def _choice(fps: float | None, measured: Sequence[Measured], better: Better) -> tuple[str | None, str]:
    """The schedule to take for a frame rate; or none, and why."""
    from diagonal.evaluation.frontier import choose

    try:
        return (None if fps is None else choose(measured, better, fps).schedule), ""
    except ValueError as error:
        return None, str(error)


def _grid(swept: Swept, cells: CellGrid) -> list[Order]:
    """Every k with every d, behind the other schedules."""
    specs = list(swept.schedule or ["raster"])
    for k, d in product(_values(cells.k or K), _values(cells.d or D)):
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
            measured.append(Measured(speed["schedule"], Interval(**speed["calls"]), fps, quality))
    return metric, better, measured


def _others(result: Mapping[str, Any], first: str) -> dict[str, dict[str, dict[str, float]]]:
    """All other metrics, by name and schedule."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for one in result["scores"]:
        if one["metric"] != first:
            found.setdefault(one["metric"], {})[result["speed"][one["folder"]]["schedule"]] = one["value"]
    return found


def _print(
    measured: Sequence[Measured],
    front: Sequence[Measured],
    metric: str,
    others: Mapping[str, Mapping[str, Any]],
    axis: Axis,
) -> None:
    """A schedule a line, the slowest first; of other metrics the mean alone."""
    from diagonal.evaluation.frontier import Axis
    from diagonal.evaluation.score_tables import short

    rates = ["FPS"] if axis is Axis.FPS else []
    table = Table("schedule", "calls", *rates, metric, *others, "frontier", box=None, padding=(0, 2, 0, 0))
    for column in table.columns:
        column.no_wrap = True
    for one in sorted(measured, key=lambda one: one.speed(axis)):
        rest = [f"{values[one.schedule]['mean']:.4g}" if one.schedule in values else "" for values in others.values()]
        best = "yes" if one in front else ""
        rate = [short(one.fps)] if rates else []
        count = f"{one.calls.mean:.1f}" if one.calls.low == one.calls.high else short(one.calls)
        table.add_row(one.schedule, count, *rate, short(one.quality), *rest, best)
    Console(width=WIDTH, highlight=False).print(table)
