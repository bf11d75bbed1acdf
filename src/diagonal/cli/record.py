"""`diagonal record`: plays a game and keeps what is seen and done."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from diagonal.cli import app, out, print_json, progress_bar
from diagonal.cli.options import Json

WORLDS = ("vizdoom",)  # games that are played here; VPT's recordings come as they are


@app.command()
def record(
    frames: Annotated[int, typer.Option(min=2, help="Frames to record.")],
    out_path: Annotated[Path, typer.Option("--out", help="Folder for the shards; those it has are kept.")],
    world: Annotated[str, typer.Option(help="The game: vizdoom.")] = "vizdoom",
    scenario: Annotated[str, typer.Option(help="A scenario of the game.")] = "my_way_home",
    seed: Annotated[int, typer.Option(min=0, help="Of the game and the player.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Processes; the recording does not depend on them.")] = 1,
    episode_frames: Annotated[int, typer.Option(min=2, help="Longest episode.")] = 200,
    captions: Annotated[
        bool, typer.Option("--captions", help="Also keep what is seen and how far each step led; show captions of it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Record gameplay with its actions, for training and evaluation."""
    from diagonal.worlds import vizdoom

    if world not in WORLDS:
        raise ValueError(f"unknown world {world!r}; known: {', '.join(WORLDS)}")
    planned = vizdoom.shards(scenario, frames, seed, out_path, episode_frames, captions)
    start = time.perf_counter()
    with progress_bar("frames") as progress:
        task = progress.add_task(scenario, total=frames, note="")
        for done in vizdoom.record(planned, workers):
            progress.advance(task, done)
    seconds = time.perf_counter() - start
    episodes, shares = vizdoom.summary(planned)
    numbers: dict[str, Any] = {"world": world, "scenario": scenario, "frames": frames, "episodes": episodes}
    numbers |= {"seed": seed, "shards": len(planned), "out": str(out_path), "seconds": seconds, "actions": shares}
    if captions:
        numbers["captions"] = vizdoom.examples(planned)
    if as_json:
        print_json(numbers)
    else:
        _print(numbers)


def _print(numbers: dict[str, Any]) -> None:
    table = Table("action", "share of frames", box=None)
    for name, share in numbers["actions"].items():
        table.add_row(name, f"{share:.1%}")
    out.print(table)
    for example in numbers.get("captions", ()):
        out.print(f'"{example}"', markup=False)
    files = f"{numbers['shards']} file{'s' * (numbers['shards'] > 1)}"
    out.print(
        f"{numbers['frames']} frames in {numbers['episodes']} episodes of {numbers['scenario']} "
        f"(seed {numbers['seed']}): {files} in {numbers['out']}, {numbers['seconds']:.1f} s",
        markup=False,
    )
