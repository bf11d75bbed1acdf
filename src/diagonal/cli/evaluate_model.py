"""`diagonal evaluate --model X --data CLIPS --metrics ...`: clips are continued under each schedule, then scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from diagonal.cli import load_world, out, print_json, progress_bar
from diagonal.cli.evaluate_folders import Run, Videos, as_job, show, show_vbench, work
from diagonal.cli.options import Computing, WorldSource
from diagonal.cli.spread import Spread

if TYPE_CHECKING:
    from diagonal.evaluation.generated import Video
    from diagonal.evaluation.selections import Entry
    from diagonal.planning.plan import Order

CLIPS = 16


@dataclass(frozen=True, slots=True)
class Clips:
    """Which clips of a data set are continued; what is None is as the model has it."""

    data: Path | None
    count: int | None
    context: int | None
    frames: int | None
    seed: int


@dataclass(frozen=True, kw_only=True)
class Continuing:
    """All that a process needs to continue clips: called, it loads the world."""

    source: WorldSource
    device: str
    data: Path
    entries: Sequence[Entry]
    context: int
    seed: int
    out: Path

    def __call__(self) -> Callable[[Video], str]:
        """What makes a video, in a folder that has no videos of other models."""
        from diagonal.evaluation.generated import Continuation, make
        from diagonal.evaluation.manifest import check_run

        world = load_world(self.source, Computing(device=self.device, dtype="auto"))
        asked = Continuation(world, self.data, self.entries, self.context, self.seed)
        check_run(self.out, asked.facts())
        return lambda video: make(asked, video, self.out)


def evaluate_model(
    source: WorldSource, orders: Sequence[Order], clips: Clips, videos: Videos, run: Run, spread: Spread
) -> None:
    """Make the videos that are not there yet, score them, and show what came out."""
    content = evaluated(source, orders, clips, videos, run, spread)
    if run.as_json:
        print_json(content)
        return
    _print_speed(content["speed"])
    show_vbench(content.get("vbench", {}))


def evaluated(
    source: WorldSource, orders: Sequence[Order], clips: Clips, videos: Videos, run: Run, spread: Spread
) -> dict[str, Any]:
    """The same as JSON takes it; scores are shown unless that is what is printed."""
    from diagonal.evaluation.generated import REAL, folder_of, missing
    from diagonal.evaluation.manifest import run_of

    if clips.data is None or run.out is None:
        raise ValueError("--data, a folder of clips, and --out, a folder for videos and scores, are needed")
    planned(source, orders, clips)
    run.out.mkdir(parents=True, exist_ok=True)
    asked = _asked(source, clips, run)
    new, count = missing(asked.entries, orders, asked.out), (1 + len(orders)) * len(asked.entries)
    with progress_bar("videos") as progress:
        task = progress.add_task(source.model, total=count, completed=count - len(new), note="")
        for _, note in spread.each(asked, new, lambda video: asked.entries[video.number].name, run.device):
            progress.update(task, advance=1, note=note)
    folders = {str(order): folder_of(run.out, order) for order in orders}
    job = as_job(list(folders.values()), replace(videos, reference=run.out / "videos" / REAL), run)
    speed = {folder.name: _speed(schedule, folder) for schedule, folder in folders.items()}
    facts = (run_of(run.out) or {}) | {"trained": _label(source), "data": clips.data.resolve().name}
    content = work(job, run, {"run": facts, "speed": speed})
    if not run.as_json:
        show(job, run.out)
    return content


def planned(source: WorldSource, orders: Sequence[Order], clips: Clips) -> tuple[int, int]:
    """Frames that are given and made, or why that cannot be: known before a model is loaded."""
    from diagonal.catalog.names import find
    from diagonal.catalog.variants import DiffusionVariant, token_variant
    from diagonal.generation import checks

    found = find("models", source.model)
    if isinstance(found, DiffusionVariant):
        raise ValueError(
            f"{source.model} makes videos of prompts and continues no clips: `diagonal video --model {source.model} "
            "--prompts FILE --out DIR` makes them, `diagonal evaluate DIR` scores them"
        )
    variant = token_variant(found, source.model)
    checks.check_weights(source.model, variant, source.weights)
    described = checks.Unloaded.of(source.model, variant)
    context, stride = clips.context or variant.prompt_frames, int(described.tokenizer.stride)
    known = 1 + (context - 1) // stride
    new = clips.frames or max(1, variant.config.frames - known) * stride
    for order in orders:
        token_frames = checks.token_frames(described, new)
        checks.check_order(described, known, token_frames, order, known + token_frames - 1)
    return context, new


def _label(source: WorldSource) -> str:
    from diagonal.catalog.names import find
    from diagonal.generation.load import label_of

    return label_of(source.model, find("models", source.model), source.weights)


def _asked(source: WorldSource, clips: Clips, run: Run) -> Continuing:
    """The clips, chosen or read, and what continues them."""
    from diagonal.evaluation.selections import choose, read_list, write

    assert clips.data is not None and run.out is not None
    context, new = planned(source, [], clips)
    place = run.out / "selection.json"
    if place.exists():
        entries = read_list(place, clips.data)
        if entries[0].frames != context + new or len(entries) != (clips.count or len(entries)):
            raise ValueError(
                f"{place} has {len(entries)} clips of {entries[0].frames} frames; {clips.count or len(entries)} of "
                f"{context + new} are asked for: name another --out"
            )
    else:
        entries = choose(clips.data, clips.count or CLIPS, context + new, clips.seed)
        write(entries, place)
    return Continuing(
        source=source,
        device=run.device,
        data=clips.data.resolve(),
        entries=entries,
        context=context,
        seed=clips.seed,
        out=run.out.resolve(),
    )


def _speed(schedule: str, folder: Path) -> dict[str, Any]:
    """What the videos of a schedule took."""
    from diagonal.evaluation.frontier import calls, frame_rate
    from diagonal.evaluation.generated import times

    taken = times(folder)
    return {"schedule": schedule, "calls": asdict(calls(taken)), "fps": asdict(frame_rate(taken))}


def _print_speed(speed: Mapping[str, Any]) -> None:
    table = Table("schedule", "model calls", "FPS", box=None, padding=(0, 2, 0, 0))
    for name, one in speed.items():
        table.add_row(name, f"{one['calls']['mean']:.1f}", f"{one['fps']['mean']:.2f}")
    out.print(table)
    out.print("[dim]FPS of one video at a time, decoding to pixels and writing counted[/]")
