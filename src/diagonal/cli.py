"""The `diagonal` command: parses, calls the library, prints. `--help` answers without importing torch.

Results go to stdout (a table, or one JSON object with --json), progress and remarks to stderr. What the user got
wrong ends with one line and exit code 2; DIAGONAL_TRACEBACK=1 in the environment shows where it arose.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from diagonal.plan import StandIn

if TYPE_CHECKING:
    from diagonal.pipeline import Stream, World
    from diagonal.plan import Order
    from diagonal.video import VideoArray

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Fast autoregressive video generation.")
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False)

Schedule = Annotated[str, typer.Option(help="raster, diagonal:k=1,d=10 (d left out: whole frames) or window:s=8.")]
StandInOption = Annotated[StandIn, typer.Option(help="What is fed where a row starts before the row above is done.")]
Refeed = Annotated[bool, typer.Option("--refeed/--no-refeed", help="Feed true row ends when they become known.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def plan(
    grid: Annotated[str, typer.Option(help="FRAMESxROWSxCOLS of all frames, known ones included.")],
    schedule: Schedule = "diagonal:k=1",
    prefix: Annotated[
        int | None, typer.Option(help="Tokens before the first frame. Default: 1 if no frame is known.")
    ] = None,
    suffix: Annotated[int, typer.Option(help="Given tokens after each frame (actions).")] = 0,
    known_frames: Annotated[int, typer.Option(help="How many of the frames are a prompt.")] = 0,
    stand_in: StandInOption = StandIn.PREVIOUS_FRAME,
    refeed: Refeed = True,
    picture: Annotated[Path | None, typer.Option(help="Also draw the wave into this PNG.")] = None,
    as_json: Json = False,
) -> None:
    """Show a decoding schedule: its steps, how many tokens each decodes, and the wave."""
    from diagonal.draw import save_plan, wave
    from diagonal.grid import Grid, Layout
    from diagonal.plan import make_plan

    start = (known_frames == 0) if prefix is None else prefix
    order = _order(schedule, stand_in, refeed)
    made = make_plan(Layout(Grid.parse(grid), int(start), suffix), order, known_frames)
    numbers = {
        "grid": grid,
        "schedule": str(order),
        "steps": len(made.steps),
        "tokens": made.tokens,
        "max_width": int(made.decoded.max()),
        "mean_width": made.tokens / len(made.steps),
        "max_inputs": int(made.widths[1:].max(initial=0)),
        "prompt_inputs": int(made.widths[0]),
        "speedup": made.speedup,
    }
    if picture is not None:
        save_plan(made, picture, f"{order} on {grid}: {len(made.steps)} steps, {made.speedup:.1f}x fewer than raster")
    if as_json:
        _print_json(numbers | ({} if picture is None else {"picture": str(picture)}))
        return
    out.print(wave(made, out.width))
    table = Table("", "", box=None, show_header=False)
    table.add_row("steps", f"{len(made.steps)}")
    table.add_row("tokens decoded", f"{made.tokens}")
    table.add_row("widest step", f"{numbers['max_width']} tokens decoded, {numbers['max_inputs']} fed")
    table.add_row("mean width", f"{numbers['mean_width']:.2f} tokens per step")
    table.add_row("speed-up over raster", f"{made.speedup:.2f}x fewer steps")
    out.print(table)


@app.command()
def models(as_json: Json = False) -> None:
    """List the models that can be loaded, with the licence and the source of their weights."""
    import torch

    from diagonal.names import find, listing

    rows = []
    for name in listing("models"):
        variant, config = find("models", name), find("models", name).config
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in config.build().parameters())
        rows.append(
            {
                "name": name,
                "parameters": size,
                "grid": f"{config.frames}x{config.rows}x{config.cols}",
                "actions": variant.actions,
                "licence": variant.licence,
                "source": variant.source,
            }
        )
    if as_json:
        _print_json(rows)
        return
    table = Table("model", "parameters", "grid", "actions", "licence", "weights", box=None)
    table.columns[0].no_wrap = True
    for row in rows:
        size = f"{row['parameters'] / 1e6:,.1f} M"
        table.add_row(row["name"], size, row["grid"], row["actions"], row["licence"], row["source"])
    out.print(table)


@dataclass(frozen=True)
class Run:
    """What one generation did and how long it took."""

    schedule: str
    steps: int
    frames: int
    seconds: float

    def numbers(self) -> dict[str, Any]:
        per_frame = self.seconds / self.frames
        return asdict(self) | {"ms_per_frame": 1000 * per_frame, "fps": 1 / per_frame}


@app.command()
def generate(
    model: Annotated[str, typer.Option(help="A name from `diagonal models`.")] = "mcar/tiny",
    weights: Annotated[str | None, typer.Option(help="Checkpoint file, folder or hub id; 'random' for none.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Checkpoint of the tokenizer, if it is apart.")] = None,
    prompt: Annotated[Path | None, typer.Option(help="Clip, picture or folder of pictures to continue.")] = None,
    prompt_frames: Annotated[int, typer.Option(min=1, help="Frames of the prompt that are used, from its start.")] = 1,
    resize: Annotated[bool, typer.Option("--resize", help="Resize the prompt to the model's frame size.")] = False,
    actions: Annotated[
        str | None,
        typer.Option(
            help="'forward*8,left*4' for the new frames, or a .jsonl with one action per frame from the prompt's "
            "first on. Default: none taken."
        ),
    ] = None,
    frames: Annotated[int | None, typer.Option("--frames", "--num-frames", min=1, help="New frames.")] = None,
    schedule: Schedule = "diagonal:k=1",
    compare: Annotated[str | None, typer.Option(help="A second schedule, drawn beside the first.")] = None,
    stand_in: StandInOption = StandIn.PREVIOUS_FRAME,
    refeed: Refeed = True,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy. Default: the model's.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Default: the model's.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Default: the model's.")] = None,
    seed: Annotated[int, typer.Option(help="Of sampling; the same seed gives the same clip.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    out_path: Annotated[str, typer.Option("--out", help="Video to write; '-' streams mp4 to stdout.")] = "out.mp4",
    as_json: Json = False,
) -> None:
    """Continue a clip: frames are written as they complete."""
    orders = [_order(spec, stand_in, refeed) for spec in (schedule, compare) if spec is not None]
    if out_path == "-" and (as_json or compare is not None):
        raise ValueError("--out - streams the video to stdout; it goes neither with --json nor with --compare")
    from diagonal.names import find
    from diagonal.pipeline import load
    from diagonal.video import check_target

    # All that can be refused is refused before a large model is loaded.
    check_target(out_path)
    chosen: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    given = {key: value for key, value in chosen.items() if value is not None}
    sampling = replace(find("models", model).sampling, **given)
    if prompt is None and prompt_frames != 1:
        raise ValueError(f"--prompt-frames {prompt_frames} needs --prompt")
    if prompt is not None and not prompt.exists():
        raise FileNotFoundError(f"--prompt {prompt} does not exist; give a video, a picture, or a folder of pictures")
    world = load(model, weights, tokenizer=tokenizer, device=device)
    if world.weights == "random":
        err.print(f"[yellow]{model} has random weights: speed is real, the pictures are noise.[/]")
    clip = _prompt(world, prompt, prompt_frames, resize)
    taken, frames = _actions(world, actions, len(clip), frames)

    def stream(order: Order, count: int | None) -> Stream:
        used = taken if count is None else taken[: len(clip) - 1 + count]
        return world.stream(clip, used, schedule=order, sampling=sampling, seed=seed)

    if compare is None:
        runs = [_write(stream(orders[0], None), orders[0], out_path, world.variant.fps)]
    else:
        for _ in stream(orders[0], 1):  # warm-up: the first frame of a process pays for set-up
            pass
        runs = _write_compared([(order, stream(order, None)) for order in orders], out_path, world.variant.fps)
    shared = {"model": model, "weights": world.weights, "seed": seed, "out": out_path}
    if as_json:
        both = {} if compare is None else {"compare": runs[1].numbers(), "speedup": runs[1].seconds / runs[0].seconds}
        _print_json(shared | runs[0].numbers() | both)
    elif out_path != "-":
        _print_runs(runs, shared)


def _order(spec: str, stand_in: StandIn, refeed: bool) -> Order:
    from diagonal.plan import Order
    from diagonal.schedules.decoding import parse

    return Order(parse(spec), stand_in, refeed)


def _prompt(world: World, path: Path | None, frames: int, resize: bool) -> VideoArray:
    from diagonal import draw, video

    if path is None:
        if world.weights != "random":
            raise ValueError("give --prompt: a clip, a picture or a folder of pictures to continue")
        return draw.test_card(*world.size)
    clip = video.read(path, most=frames)
    if len(clip) < frames:
        raise ValueError(f"{path} has {len(clip)} frames; --prompt-frames asks for {frames}")
    return video.resize(clip, *world.size) if resize else clip


def _actions(world: World, given: str | None, known: int, frames: int | None) -> tuple[list[Any], int]:
    """Actions for every frame but the last, and how many new frames they make."""
    between = [world.actions.NOOP] * (known - 1)
    if given is None:
        frames = frames or max(world.variant.config.frames - known, 1)
        return between + [world.actions.NOOP] * frames, frames
    if given.endswith(".jsonl"):
        recorded = world.actions.read(given)
        frames = frames or max(1, min(world.variant.config.frames, len(recorded) + 1) - known)
        needed = known - 1 + frames
        if len(recorded) < needed:
            raise ValueError(
                f"{given} has {len(recorded)} actions; {known} prompt and {frames} new frames need {needed}"
            )
        return recorded[:needed], frames
    new = world.actions.parse(given)
    if frames not in (None, len(new)):
        raise ValueError(f"--actions has {len(new)} actions and --frames asks for {frames}; give one action per frame")
    return between + new, len(new)


def _run(stream: Stream, order: Order, each: Any) -> Run:
    """Consume a stream with a progress bar. Seconds: model calls and frame decoding; loading and encoding apart."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task(str(order), total=stream.steps)
        stream.on_step = lambda: progress.advance(task)
        start = time.perf_counter()
        for frame in stream:
            each(frame.pixels)
            progress.update(task, description=f"{order}  frame {frame.index + 1}")
        seconds = time.perf_counter() - start
    return Run(str(order), stream.steps, stream.frames, seconds)


def _write(stream: Stream, order: Order, path: str, fps: int | Fraction) -> Run:
    from diagonal.video import writer

    with writer(path, fps) as video:
        return _run(stream, order, video.write)


def _write_compared(streams: list[tuple[Order, Stream]], path: str, fps: int | Fraction) -> list[Run]:
    import numpy as np

    from diagonal.draw import side_by_side
    from diagonal.video import writer

    runs, clips = [], []
    with writer(path, fps) as video:
        for order, stream in streams:
            pixels: list[VideoArray] = []
            runs.append(_run(stream, order, pixels.append))
            clips.append(np.stack(pixels))
        labels = [f"{run.schedule}   {run.steps} steps   {run.seconds:.1f} s" for run in runs]
        video.write(side_by_side(clips[::-1], labels[::-1]))
    return runs


def _print_runs(runs: list[Run], shared: dict[str, Any]) -> None:
    table = Table("schedule", "steps", "seconds", "ms per frame", "FPS", "speed-up", box=None)
    slowest = max(run.seconds for run in runs)
    for run in reversed(runs):
        numbers = run.numbers()
        cells = [f"{run.seconds:.2f}", f"{numbers['ms_per_frame']:.0f}", f"{numbers['fps']:.2f}"]
        table.add_row(run.schedule, f"{run.steps}", *cells, f"{slowest / run.seconds:.2f}x")
    out.print(table)
    out.print(
        f"{runs[0].frames} frames of {shared['model']} ({shared['weights']} weights) in {shared['out']}", markup=False
    )
    out.print(
        "[dim]seconds: all model calls and the decoding of frames to pixels; loading and the prompt not counted[/]"
    )


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")


def main() -> None:
    """Run the command; errors of use are one line and exit code 2."""
    # A polite end unwinds, so that temporary files are removed; Ctrl-C does so by itself.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        app()
    except (ValueError, OSError) as error:
        if os.environ.get("DIAGONAL_TRACEBACK"):
            raise
        err.print(f"[red]error:[/] {type(error).__name__ + ': ' if not str(error) else ''}", end="")
        err.print(str(error), markup=False, soft_wrap=True)
        raise SystemExit(2) from error
