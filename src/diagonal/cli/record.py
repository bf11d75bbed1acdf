"""`diagonal record`: plays a game and keeps what is seen and done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.table import Table

from diagonal.cli import app, out, print_json, progress_bar
from diagonal.cli.options import Json, flat
from diagonal.cli.spread import Spread

if TYPE_CHECKING:
    from diagonal.worlds.vizdoom import Shard

WORLDS = ("vizdoom",)  # games that are played here; VPT's recordings come as they are


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What is recorded, and where it goes."""

    panel: ClassVar[str] = "Recording"

    frames: Annotated[int, typer.Option(min=2, help="Frames to record.")]
    out_path: Annotated[Path, typer.Option("--out", help="Folder for the shards; those it has are kept.")]
    world: Annotated[str, typer.Option(help="The game: vizdoom.")] = "vizdoom"
    scenario: Annotated[str, typer.Option(help="A scenario of the game.")] = "my_way_home"
    seed: Annotated[int, typer.Option(min=0, help="Of the game and the player.")] = 0
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; the recording does not depend on them. Default: 1.")
    ] = None
    episode_frames: Annotated[int, typer.Option(min=2, help="Longest episode.")] = 200
    captions: Annotated[
        bool, typer.Option("--captions", help="Also keep what is seen and how far each step led; show captions of it.")
    ] = False
    as_json: Json = False


@app.command()
@flat
def record(recorded: Recorded, spread: Spread) -> None:
    """Record gameplay with its actions, for training and evaluation."""
    from diagonal.worlds import vizdoom

    one = recorded
    if one.world not in WORLDS:
        raise ValueError(f"unknown world {one.world!r}; known: {', '.join(WORLDS)}")
    if spread.ray and one.workers is not None:
        raise ValueError(f"--workers {one.workers} cannot go with --ray, which has --actors; leave it out")
    planned = vizdoom.shards(one.scenario, one.frames, one.seed, one.out_path, one.episode_frames, one.captions)
    start = time.perf_counter()
    with progress_bar("frames") as progress:
        task = progress.add_task(one.scenario, total=one.frames, note="")
        for done in _over(spread, planned) if spread.ray else vizdoom.record(planned, one.workers or 1):
            progress.advance(task, done)
    seconds = time.perf_counter() - start
    episodes, shares = vizdoom.summary(planned)
    numbers: dict[str, Any] = {"world": one.world, "scenario": one.scenario, "frames": one.frames}
    numbers |= {"episodes": episodes, "seed": one.seed, "shards": len(planned), "out": str(one.out_path)}
    numbers |= {"seconds": seconds, "actions": shares}
    if one.captions:
        numbers["captions"] = vizdoom.examples(planned)
    if one.as_json:
        print_json(numbers)
    else:
        _print(numbers)


def _over(spread: Spread, planned: Sequence[Shard]) -> Iterator[int]:
    """Over the actors of a cluster; yields the frames of each shard as it is done."""
    from diagonal.worlds import vizdoom

    new = vizdoom.prepare(planned)
    yield sum(shard.frames for shard in planned) - sum(shard.frames for shard in new)
    if new:
        yield from (frames for _, frames in spread.each(_recorder, new, lambda shard: shard.path.name))


def _recorder() -> Callable[[Shard], int]:
    return lambda shard: shard.record()


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
