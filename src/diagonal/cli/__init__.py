"""The `diagonal` command: parses, calls the library, prints. `--help` answers without importing torch.

Each module here is one command, or one family of them. Results go to stdout (a table, or one JSON object with
--json), progress and remarks to stderr. What the user got wrong ends with one line and exit code 2;
DIAGONAL_TRACEBACK=1 in the environment shows where it arose.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from diagonal.planning.plan import StandIn

if TYPE_CHECKING:
    from rich.progress import Progress

    from diagonal.generation.world import World
    from diagonal.planning.plan import Order

# The order is that of --help.
COMMANDS = ("plan", "models", "convert", "generate", "record", "train", "distill", "evaluate", "bench")

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Fast autoregressive video generation.")
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False)

Schedule = Annotated[str, typer.Option(help="raster, diagonal:k=1,d=10 (d left out: whole frames) or window:s=8.")]
StandInOption = Annotated[StandIn, typer.Option(help="What is fed where a row starts before the row above is done.")]
Refeed = Annotated[bool, typer.Option("--refeed/--no-refeed", help="Feed true row ends when they become known.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, or auto: what this machine computes fastest.")]
Quantize = Annotated[str, typer.Option(help="none; int8 (tokens): small weights; fp8: fast products, of latents too.")]
Lpips = Annotated[Path | None, typer.Option(help="LPIPS weights (safetensors); left out: no LPIPS.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def make_order(spec: str, stand_in: StandIn, refeed: bool) -> Order:
    """The order that the options of a command describe."""
    from diagonal.planning.decoding import parse
    from diagonal.planning.plan import Order

    return Order(parse(spec), stand_in, refeed)


def load_world(
    model: str,
    weights: str | None,
    tokenizer: str | None,
    device: str,
    dtype: str = "float32",
    quantize: str = "none",
) -> World:
    """The library's `load`, with a remark where the weights are random."""
    from diagonal.catalog.names import find
    from diagonal.catalog.variants import token_variant
    from diagonal.generation.devices import find_dtype
    from diagonal.generation.load import load

    token_variant(find("models", model), model)
    world = load(model, weights, tokenizer=tokenizer, device=device, dtype=find_dtype(dtype, device))
    remark_random(model, world.weights)
    if quantize != "none":
        world.quantize(quantize)
    return world


def remark_random(model: str, weights: str) -> None:
    """Say so where nothing was trained."""
    if weights == "random":
        err.print(f"[yellow]{model} has random weights: speed is real, the pictures are noise.[/]")


def refuse(context: typer.Context, names: Collection[str], why: str) -> None:
    """Options that were given but would have no effect are not taken silently."""
    idle = []
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in names and source is not None and source.name == "COMMANDLINE":
            idle.append(option.opts[0])
    if idle:
        raise ValueError(f"{', '.join(idle)} cannot go with {why}; leave it out")


def progress_bar(unit: str) -> Progress:
    """A bar on stderr that goes away when it is done; tasks may show a text of their own, `note`."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )


def print_json(value: Any) -> None:
    """One line on stdout."""
    sys.stdout.write(json.dumps(value) + "\n")


def _ask_again(lost: Any) -> None:
    """Repeat a request to end that came where Python only reports exceptions: in a destructor, or in a callback."""
    number = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}.get(lost.exc_type)
    if number is None:
        sys.__unraisablehook__(lost)
        return
    later = threading.Timer(0.05, os.kill, [os.getpid(), number])  # in here it would be lost as well
    later.daemon = True
    later.start()


def main() -> None:
    """Run the command; errors of use are one line and exit code 2."""
    # A polite end unwinds, so that temporary files are removed; Ctrl-C does so by itself.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.unraisablehook = _ask_again
    for name in COMMANDS:
        importlib.import_module(f"{__name__}.{name}")  # each adds its commands to the app
    try:
        app()
    except (ValueError, OSError) as error:
        if os.environ.get("DIAGONAL_TRACEBACK"):
            raise
        err.print(f"[red]error:[/] {type(error).__name__ + ': ' if not str(error) else ''}", end="")
        err.print(str(error), markup=False, soft_wrap=True)
        raise SystemExit(2) from error
