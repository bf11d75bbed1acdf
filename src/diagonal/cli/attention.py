"""`diagonal attention`: what a token world attends to, and how much of it a schedule leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.table import Table

from diagonal.cli import app, load_world, out, print_json, progress_bar
from diagonal.cli.options import Computing, Fitting, Json, WorldSource, flat, given, refuse
from diagonal.cli.prompts import Beginning
from diagonal.planning.plan import Order

if TYPE_CHECKING:
    from torch import Tensor

    from diagonal.evaluation.attention import Attended
    from diagonal.evaluation.selections import Entry
    from diagonal.generation.checks import Unloaded
    from diagonal.generation.world import World

CLIPS = 8
DEFAULT = ("diagonal:k=1", "diagonal:k=2")


@dataclass(frozen=True, kw_only=True)
class Looked:
    """Which attention is looked at, and under which schedules."""

    panel: ClassVar[str] = "Attention"

    data: Annotated[
        Path | None, typer.Option(help="Clips, as for evaluate. Default: what generate begins with, continued.")
    ] = None
    clips: Annotated[int | None, typer.Option(min=1, help=f"Of the data. Default: {CLIPS}.")] = None
    choice: Annotated[int | None, typer.Option(help="Seed of the choice of clips. Default: 0.")] = None
    frame: Annotated[int, typer.Option(min=1, help="Token frame whose cells attend; 1 is the second (Figure 6).")] = 1
    schedule: Annotated[
        list[str] | None,
        typer.Option(help=f"How much attention it leaves; may be repeated. Default: {' and '.join(DEFAULT)}."),
    ] = None
    out_path: Annotated[Path | None, typer.Option("--out", help="Folder for attention.json, attention.png.")] = None
    as_json: Json = False


@app.command()
@flat
def attention(source: WorldSource, computing: Computing, looked: Looked) -> None:
    """Show where the attention of a token world falls: on which neighbours, and on what a schedule has decoded."""
    if looked.data is None:
        options = given(looked)
        refuse({name: options[name] for name in ("clips", "choice") if name in options}, "no --data")
    orders = [Order.of(spec) for spec in dict.fromkeys(looked.schedule or DEFAULT)]
    described, known = _checked(source, looked.frame, orders)
    entries = _entries(looked, described)
    world = load_world(source, computing)
    from diagonal.evaluation.attention import measure

    with progress_bar("clips") as progress:
        task = progress.add_task(source.model, total=max(1, len(entries)), note="")
        clips = _units(world, looked, entries, lambda: progress.advance(task))
        found = measure(world, clips, looked.frame, known, orders)
    content = {"model": source.model, "weights": world.weights, "data": _data(looked, entries)} | found.content()
    if looked.out_path is not None:
        _write(found, content, looked.out_path)
    if looked.as_json:
        print_json(content)
    else:
        _print(content, looked.out_path)


def _checked(source: WorldSource, frame: int, orders: Sequence[Order]) -> tuple[Unloaded, int]:
    """The world before it is loaded, and how many frames are given to the schedules; or why that cannot be."""
    from diagonal.catalog.names import find
    from diagonal.catalog.variants import token_variant
    from diagonal.generation import checks

    variant = token_variant(find("models", source.model), source.model)
    checks.check_weights(source.model, variant, source.weights)
    if frame >= variant.config.frames:
        raise ValueError(
            f"--frame {frame} given; {source.model} sees {variant.config.frames} frames at once: 1 to "
            f"{variant.config.frames - 1}"
        )
    described = checks.Unloaded.of(source.model, variant)
    known = min(variant.config.reference_frames, max(1, frame - 1))  # so that a frame before may still be decoded, too
    for order in orders:
        checks.check_order(described, known, frame + 1 - known, order, frame)
    return described, known


def _entries(looked: Looked, described: Unloaded) -> list[Entry]:
    """The clips of the data that are looked at; none without data."""
    from diagonal.evaluation.selections import choose

    if looked.data is None:
        return []
    if not described.variant.prompt_frames:
        raise ValueError(f"--data {looked.data} given; {described.name} makes whole clips, from nothing: leave it out")
    pixels = 1 + looked.frame * int(described.tokenizer.stride)
    return choose(looked.data, looked.clips or CLIPS, pixels, looked.choice or 0)


def _units(world: World, looked: Looked, entries: Sequence[Entry], done: Callable[[], None]) -> Iterator[Tensor]:
    """Ids of each clip; without data of what the world itself makes, in raster order."""
    from diagonal.evaluation.attention import units
    from diagonal.evaluation.generated import fitted
    from diagonal.evaluation.selections import load

    if looked.data is None:
        yield _own(world, looked.frame)
        done()
    for entry in entries:
        footage = load(looked.data or Path(), entry)
        taken = footage.actions if world.variant.config.suffix else None
        yield units(world, fitted(footage.frames, world.size), None if taken is None else taken[:-1])
        done()


def _own(world: World, frame: int) -> Tensor:
    """Ids of what `generate` begins with, continued in raster order as far as this frame, standing still; or a whole
    clip, of a world that continues none."""
    import torch

    from diagonal.evaluation.attention import units

    if not world.variant.prompt_frames:
        return units(world, world.generate(None, schedule="raster").tokens, None)
    clip, between = Beginning().frames_of(world, Fitting(), world.weights == "random")
    tokens = world.encode(clip)[0][0].cpu()
    new = max(0, frame + 1 - len(tokens))
    actions = [*between, *[world.actions.NOOP] * new] if world.variant.config.suffix else None
    if new:
        made = world.generate(clip, actions, frames=new * int(world.tokenizer.stride), schedule="raster")
        tokens = torch.cat([tokens, made.tokens])
    return units(world, tokens, actions)


def _data(looked: Looked, entries: Sequence[Entry]) -> Any:
    """Which clips were looked at."""
    return "made by the model" if looked.data is None else [f"{one.source} from {one.first}" for one in entries]


def _write(found: Attended, content: Mapping[str, Any], folder: Path) -> None:
    from diagonal.evaluation.attention import offsets, targets
    from diagonal.media.attention import Diagonals, save_map
    from diagonal.media.files import atomic

    folder.mkdir(parents=True, exist_ok=True)
    layout, frame = found.layout, found.frame
    starts = {f"frame {one}": layout.frame(one).start for one in (frame - 1, frame)}
    diagonals = Diagonals(targets(layout, frame), layout.frame(frame - 1).start, starts, offsets(layout))
    untrained = " (random weights)" if content["weights"] == "random" else ""
    title = (
        f"{content['model']}{untrained}: attention of frame {frame}, mean over layers, heads and {found.clips} clips"
    )
    save_map(list(found.weights), diagonals, folder / "attention.png", title)
    with atomic(folder / "attention.json") as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


def _print(content: Mapping[str, Any], folder: Path | None) -> None:
    table = Table("attention to", "share", "if even", "ratio", box=None, padding=(0, 2, 0, 0))
    for name, one in content["places"].items():
        ratio = f"{one['mean'] / one['even']:.1f}" if one["even"] else ""
        table.add_row(name, _share(one, content["clips"]), f"{one['even']:.1%}", ratio)
    out.print(table)
    strongest = ", ".join(f"{offset} ({share:.1%})" for offset, share in content["strongest_offsets"][:6])
    named = ", ".join(f"{name} {offset}" for name, offset in content["diagonals"].items())
    out.print(f"\nstrongest offsets before a cell: {strongest}; {named}\n", markup=False)
    table = Table("schedule", "decoded", "masked", "missed", "stand-in", box=None, padding=(0, 2, 0, 0))
    for name, parts in content["schedules"].items():
        decoded, masked, stood_in = (f"{parts[part]['mean']:.1%}" for part in ("decoded", "masked", "stand-in"))
        table.add_row(name, decoded, masked, _share(parts["missed"], content["clips"]), stood_in)
    out.print(table)
    out.print(
        f"frame {content['frame']} of {content['clips']} clips, {content['known']} frames known to the schedules; "
        f"means over layers and heads{'; intervals are 95 %, over clips' if content['clips'] > 1 else ''}",
        markup=False,
    )
    if folder is not None:
        out.print(f"attention.json and attention.png in {folder}", markup=False)


def _share(one: Mapping[str, float], clips: int) -> str:
    """A share, with its interval where there are several clips."""
    return f"{one['mean']:.1%}" + (f" [{one['low']:.1%}, {one['high']:.1%}]" if clips > 1 else "")
