"""`diagonal evaluate`: how good are a world's videos under each schedule?"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.table import Table

from diagonal.cli import app, load_world, out, print_json, progress_bar
from diagonal.cli.evaluate_folders import Folders, Run, Videos, evaluate_folders
from diagonal.cli.evaluate_model import Clips, evaluate_model
from diagonal.cli.options import Computing, Device, Json, Lpips, WorldSource, flat, given, refuse
from diagonal.cli.spread import Spread
from diagonal.planning.plan import Order

if TYPE_CHECKING:
    from diagonal.evaluation.report import Row
    from diagonal.evaluation.rollouts import Clips as HeldOutClips
    from diagonal.evaluation.rollouts import Judges
    from diagonal.generation.world import World

DEFAULT = ("raster", "diagonal:k=1")
CLIPS, SEEDS, CONTEXT, FRAMES = 256, 3, 4, 12  # of Doom's own evaluation
HEADINGS = {  # of report.COLUMNS, short enough for a terminal
    "psnr": "PSNR",
    "lpips": "LPIPS",
    "frechet_idm": "Frechet IDM",
    "actions_obeyed": "actions obeyed",
    "turns_obeyed": "turns obeyed",
    "walking_turns_obeyed": "walking turns",
    "steps": "steps",
}
WITHOUT_METRICS = ("seeds", "judge", "reference", "first")
DRIFT = 8  # frames that the line of each row names


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """What is continued."""

    panel: ClassVar[str] = "Clips"

    data: Annotated[
        Path | None,
        typer.Option(help="Held-out clips: a folder of shards; with --metrics any clips. Default: Doom, played now."),
    ] = None
    clips: Annotated[
        int | None, typer.Option(min=1, help="Held-out clips, spread over the data. Default: 256; with --metrics 16.")
    ] = None
    seeds: Annotated[int | None, typer.Option(min=1, help="Times that each clip is generated. Default: 3.")] = None
    context: Annotated[
        int | None, typer.Option(min=1, help="True frames that are given. Default: 4; with --metrics the model's.")
    ] = None
    frames: Annotated[
        int | None,
        typer.Option(min=1, help="Frames that are made and measured. Default: 12; with --metrics a window."),
    ] = None
    choice: Annotated[int | None, typer.Option(help="Seed of the choice of clips, with --metrics. Default: 0.")] = None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What is compared, and by which networks."""

    panel: ClassVar[str] = "Measuring"

    schedule: Annotated[
        list[str] | None,
        typer.Option(help=f"As for generate; give it again for more rows. Default: {' and '.join(DEFAULT)}."),
    ] = None
    judge: Annotated[str | None, typer.Option(help="Weights of the judge. Default: the shipped ones.")] = None
    lpips: Lpips = None
    device: Device = "cpu"


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where the result goes."""

    panel: ClassVar[str] = "Output"

    out_path: Annotated[Path | None, typer.Option("--out", help="Folder for table.md, table.json, sheet.png.")] = None
    as_json: Json = False


@app.command()
@flat
def evaluate(
    scored: Folders,
    videos: Videos,
    source: WorldSource,
    held_out: HeldOut,
    compared: Compared,
    output: Output,
    spread: Spread,
) -> None:
    """Generate held-out clips again under each schedule, and measure them; or score folders of videos."""
    if scored.folders:
        others = given(source, held_out, compared, spread)
        refuse({name: others[name] for name in others.keys() - {"lpips", "device"}}, "folders of videos")
        evaluate_folders(scored.folders, videos, _run(videos, compared, output))
        return
    orders = [Order.of(spec) for spec in compared.schedule or DEFAULT]
    if videos.metrics is not None:
        options = given(videos, held_out, compared)
        refuse({name: options[name] for name in options if name in WITHOUT_METRICS}, "--metrics of a world")
        clips = Clips(held_out.data, held_out.clips, held_out.context, held_out.frames, held_out.choice or 0)
        evaluate_model(source, orders, clips, videos, _run(videos, compared, output), spread)
        return
    refuse(given(videos, spread), "a world without --metrics")
    _evaluate_doom(source, orders, held_out, compared, output)


def _run(videos: Videos, compared: Compared, output: Output) -> Run:
    return Run(
        device=compared.device,
        lpips=compared.lpips,
        out=output.out_path,
        as_json=output.as_json,
        vbench=videos.vbench,
        vbench_info=videos.vbench_info,
    )


def _evaluate_doom(
    source: WorldSource, orders: list[Order], held_out: HeldOut, compared: Compared, output: Output
) -> None:
    """By our own judge of Doom's actions, several seeds a clip."""
    from diagonal.checkpoints import ASSETS
    from diagonal.evaluation import report, sweep
    from diagonal.evaluation.rollouts import cut
    from diagonal.training.data.recordings import frames as read_frames

    sweep.check_actions(source.model)
    device, clips, seeds = compared.device, held_out.clips or CLIPS, held_out.seeds or SEEDS
    context, frames = held_out.context or CONTEXT, held_out.frames or FRAMES
    judges = _judges(ASSETS / "judge" if compared.judge is None else compared.judge, compared.lpips, device)
    world = load_world(source, Computing(device=device, dtype="float32"))
    with ExitStack() as stack:
        folder = held_out.data or _play(Path(stack.enter_context(TemporaryDirectory())), clips)
        chosen = cut(read_frames(folder, world.size, device), clips, context, frames)
    rows = _measure(world, orders, chosen, judges, seeds)
    data = str(held_out.data or "played")
    extra: dict[str, Any] = {"model": source.model, "weights": world.weights, "data": data, "clips": clips}
    extra |= {"seeds": seeds, "context": context, "frames": frames}
    extra["lpips_differences"] = report.plain(dict(sweep.differences(rows)))
    if output.out_path is not None:
        sweep.write(rows, chosen, output.out_path, extra)
    if output.as_json:
        place = {} if output.out_path is None else {"out": str(output.out_path)}
        print_json(report.content(rows, extra | place))
    else:
        _print(rows, extra)


def _play(folder: Path, clips: int) -> Path:
    """Held-out episodes of the embedded world's recipe, about one for each clip, recorded for this evaluation."""
    import os

    from diagonal.recipes import find
    from diagonal.training.tokens.stages import held_out_shards
    from diagonal.worlds.vizdoom import record

    recipe = find("doom")
    needed = min(recipe.held_out_frames, (clips + 1) * recipe.held_out_episode)
    planned = held_out_shards(replace(recipe, held_out_frames=needed), folder)
    with progress_bar("frames") as progress:
        task = progress.add_task("playing held-out episodes", total=needed, note="")
        for frames in record(planned, os.cpu_count() or 1):
            progress.advance(task, frames)
    return folder / "held-out"


def _judges(judge: str | Path, lpips: Path | None, device: str) -> Judges:
    from diagonal.evaluation.rollouts import Judges
    from diagonal.evaluation.sweep import load_judge
    from diagonal.networks import lpips as perceptual

    return Judges(load_judge(judge, device), None if lpips is None else perceptual.load(lpips, device))


def _measure(world: World, orders: list[Order], clips: HeldOutClips, judges: Judges, seeds: int) -> list[Row]:
    from diagonal.evaluation.sweep import sweep

    rows = []
    with progress_bar("rows") as progress:
        task = progress.add_task(world.name, total=2 + len(orders), note="references")
        for row in sweep(world, orders, clips, judges, seeds):
            rows.append(row)
            left = orders[max(0, len(rows) - 2) :]
            progress.update(task, advance=1, note=str(left[0]) if left and len(rows) >= 2 else "")
    return rows


def _print(rows: list[Row], extra: dict[str, Any]) -> None:
    names = [name for name in HEADINGS if any(name in row.numbers for row in rows)]
    table = Table("", *(HEADINGS[name] for name in names), box=None, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(row.schedule or row.label, *(_cell(row.numbers[name]) for name in names))
    for column in table.columns[1:]:
        column.no_wrap, column.header = True, str(column.header).replace(" ", "\n")
    out.print(table)
    out.print("\nPSNR by frame, how quality falls with time", markup=False)
    drift = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    for row in rows:
        values = row.numbers["psnr_by_frame"]
        every = -(-len(values) // DRIFT)
        drift.add_row(row.schedule or row.label, *(f"{value:.1f}" for value in values[::every]))
    out.print(drift)
    for name, interval in extra["lpips_differences"].items():
        low, high = interval["low"], interval["high"]
        out.print(f"LPIPS of {name} minus the first: {interval['mean']:+.4f} [{low:+.4f}, {high:+.4f}]", markup=False)
    out.print(
        f"{extra['clips']} clips, {extra['seeds']} seeds, {extra['frames']} frames after {extra['context']} true ones; "
        f"{extra['model']} ({extra['weights']} weights); intervals are 95 %",
        markup=False,
    )


def _cell(value: Any) -> str:
    """A mean above its interval; plain numbers as they are; nothing where nothing could be measured."""
    from diagonal.evaluation.statistics import Interval

    if isinstance(value, Interval):
        digits = 1 if value.high >= 10 else 2
        interval = f"{value.low:.{digits}f}-{value.high:.{digits}f}"
        return "" if math.isnan(value.mean) else f"{value.mean:.3f}\n{interval}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
