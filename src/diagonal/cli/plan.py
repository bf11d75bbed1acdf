"""`diagonal plan`: what a schedule does, before any model runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from diagonal.cli import Json, Refeed, Schedule, StandInOption, app, make_order, out, print_json
from diagonal.plan import StandIn


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
    order = make_order(schedule, stand_in, refeed)
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
        print_json(numbers | ({} if picture is None else {"picture": str(picture)}))
        return
    out.print(wave(made, out.width))
    table = Table("", "", box=None, show_header=False)
    table.add_row("steps", f"{len(made.steps)}")
    table.add_row("tokens decoded", f"{made.tokens}")
    table.add_row("widest step", f"{numbers['max_width']} tokens decoded, {numbers['max_inputs']} fed")
    table.add_row("mean width", f"{numbers['mean_width']:.2f} tokens per step")
    table.add_row("speed-up over raster", f"{made.speedup:.2f}x fewer steps")
    out.print(table)
