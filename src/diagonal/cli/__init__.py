"""The `diagonal` command: parses, calls the library, prints. `--help` answers without importing torch.

Each module here is one command, or one family of them; options.py has the options that they share. Results go to
stdout (a table, or one JSON object with --json), progress and remarks to stderr. What the user got wrong ends with one
line and exit code 2; DIAGONAL_TRACEBACK=1 in the environment shows where it arose.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

import diagonal
from diagonal.cli.options import Computing, WorldSource

if TYPE_CHECKING:
    from rich.progress import Progress

    from diagonal.engine.ranks import Ranks
    from diagonal.generation.world import World

# The order is that of --help.
COMMANDS = (
    "plan",
    "models",
    "convert",
    "generate",
    "play",
    "serve",
    "video",
    "record",
    "train",
    "distill",
    "evaluate",
    "sweep",
    "report",
    "attention",
    "compare",
    "verify",
    "bench",
)

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Fast autoregressive video generation.")
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False)


def _show_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"diagonal {diagonal.__version__}\n")
        raise typer.Exit


@app.callback()
def _diagonal(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Fast autoregressive video generation."""


def load_world(source: WorldSource, computing: Computing, ranks: Ranks | None = None) -> World:
    """The library's `load`, or a shard for each of several processes, with a remark where the weights are random."""
    from diagonal.catalog.names import HF, find
    from diagonal.catalog.variants import token_variant
    from diagonal.generation import checks
    from diagonal.generation.components import Weights
    from diagonal.generation.devices import find_dtype
    from diagonal.generation.load import load

    name, device = source.model, computing.device
    variant = None if name.startswith(HF) else token_variant(find("models", name), name)
    if source.strict is not None and variant is not None:
        checks.check_strict(checks.Unloaded.of(name, variant), source.strict)
    shipped = variant is not None and bool(variant.embedded)
    dtype = find_dtype(computing.dtype, device, int8_rows=source.weights is None and shipped and not source.lora)
    if ranks is None:
        weights = Weights(source.weights, lora=source.lora) if source.lora else source.weights
        world = load(name, weights, tokenizer=source.tokenizer, device=device, dtype=dtype)
    else:
        from diagonal.scale.parallel import load_sharded

        if source.lora:
            raise ValueError(
                f"--lora given; adapters are merged on one GPU: save {name} with them, and give that folder"
            )
        world = load_sharded(name, source.weights, ranks, tokenizer=source.tokenizer, dtype=dtype)
    remark_random(name, world.weights)
    world = world if computing.kind is None else world.quantize(computing.kind)
    return world if source.strict is None else world.strict(source.strict)


def remark_random(model: str, weights: str) -> None:
    """Say so where nothing was trained."""
    if weights == "random":
        err.print(f"[yellow]{model} has random weights: speed is real, the pictures are noise.[/]")


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
    if out.quiet:  # another process of the same command says it
        return
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


def redirected(arguments: list[str]) -> list[str]:
    """The arguments, of `video` where `generate` was asked for a diffusion model, as it once did both."""
    if arguments[:1] not in (["generate"], ["video"]) or "--help" in arguments:
        return arguments
    from diagonal.cli.halves import command_for

    return [command_for(arguments[0], arguments[1:]), *arguments[1:]]


def main() -> None:
    """Run the command; errors of use are one line and exit code 2."""
    # A polite end unwinds, so that temporary files are removed; Ctrl-C does so by itself.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.unraisablehook = _ask_again
    for name in COMMANDS:
        importlib.import_module(f"{__name__}.{name}")  # each adds its commands to the app
    try:
        app(args=redirected(sys.argv[1:]))
    except (ValueError, OSError) as error:
        if os.environ.get("DIAGONAL_TRACEBACK"):
            raise
        err.print(f"[red]error:[/] {type(error).__name__ + ': ' if not str(error) else ''}", end="")
        err.print(str(error), markup=False, soft_wrap=True)
        raise SystemExit(2) from error
