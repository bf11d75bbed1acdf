"""`diagonal bench`: how fast does a model decode, and how fast could it?"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.table import Table

from diagonal.cli import app, load_world, out, print_json, progress_bar
from diagonal.cli.bench_live import SessionsMeasured, bench_live, print_sessions
from diagonal.cli.bench_video import VideosMeasured, bench_video, columns, print_cases, print_kernels
from diagonal.cli.options import Computing, Json, WorldSource, chosen, flat, given, refuse
from diagonal.cli.parallel import Parallel, shared
from diagonal.planning.decoding import DEFAULT

if TYPE_CHECKING:
    from diagonal.engine.ranks import Ranks
    from diagonal.evaluation.speed.world import Case, WorldSettings
    from diagonal.generation.world import World

COLUMNS = {  # of the printed table, after the schedule: a field and its format
    "steps": ("steps", "{}"),
    "ms\na step": ("ms_per_step", "{:.3f}"),
    "floor": ("floor_ms", "{:.3f}"),
    "times\nfloor": ("floor_ratio", "{:.2f}"),
    "tokens\na second": ("tokens_per_second", "{:,.0f}"),
    "FPS": ("fps", "{:.2f}"),
    "with\npixels": ("fps_with_tokenizer", "{:.2f}"),
    "first\nframe ms": ("first_frame_ms", "{:.0f}"),
}


@dataclass(frozen=True, kw_only=True)
class BenchSource:
    """Which model, and what of it is measured."""

    panel: ClassVar[str] = "Model"

    model: Annotated[str, typer.Option(help="A name from `diagonal models`.")]
    weights: Annotated[
        str | None,
        typer.Option(help="Checkpoint file, folder or hub id. Default: the shipped ones, or random."),
    ] = None
    tokenizer: Annotated[str | None, typer.Option(help="Checkpoint of the tokenizer or VAE, if it is apart.")] = None


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """What is measured how often."""

    panel: ClassVar[str] = "Measuring"

    schedule: Annotated[
        list[str] | None, typer.Option(help=f"As for generate; give it again for more. Default: {DEFAULT}.")
    ] = None
    frames: Annotated[
        int | None, typer.Option("--frames", "--num-frames", min=1, help="New frames. Default: a window.")
    ] = None
    repeat: Annotated[int | None, typer.Option(min=1, help="Runs that are measured. Default: 3.")] = None
    warmup: Annotated[int | None, typer.Option(min=1, help="Runs before them that are not. Default: 1.")] = None


@dataclass(frozen=True, kw_only=True)
class WorldsMeasured:
    """What is asked of token worlds alone."""

    panel: ClassVar[str] = "Token worlds"

    known: Annotated[int | None, typer.Option(min=1, help="Token frames of the prompt. Default: the model's.")] = None
    batch: Annotated[int | None, typer.Option(min=1, help="Clips at once. Default: 1.")] = None
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Measure at most so many steps after the first; FPS of longer plans is derived."),
    ] = None
    compile_tokenizer: Annotated[
        bool, typer.Option("--compile-tokenizer", help="Compile the decoding to pixels (torch.compile).")
    ] = False
    no_tokenizer: Annotated[bool, typer.Option("--no-tokenizer", help="Leave out the decoding to pixels.")] = False
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            help="Two settings, run alternately: 'schedule=raster' 'schedule=window:s=8', 'dtype=...', 'quantize=...'."
        ),
    ] = None
    picture: Annotated[Path | None, typer.Option(help="Also draw speed-up against steps into this PNG.")] = None


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where the result goes."""

    panel: ClassVar[str] = "Output"

    out_path: Annotated[Path | None, typer.Option("--out", help="Also write the JSON object into this file.")] = None
    as_json: Json = False


@app.command()
@flat
def bench(
    what: BenchSource,
    computing: Computing,
    measuring: Measuring,
    worlds: WorldsMeasured,
    sessions: SessionsMeasured,
    videos: VideosMeasured,
    parallel: Parallel,
    output: Output,
) -> None:
    """Measure a model, step by step, against the least time that its steps could take."""
    from diagonal.catalog.names import find
    from diagonal.catalog.variants import DiffusionVariant
    from diagonal.evaluation.report import as_json as written
    from diagonal.media.draw import save_speed
    from diagonal.media.files import atomic, check_target

    for path, suffix in ((output.out_path, ".json"), (worlds.picture, ".png")):
        if path is not None:
            check_target(path, suffix)
    result: dict[str, Any] = {"kind": "bench", "command": " ".join(["diagonal", *sys.argv[1:]])}
    source = WorldSource(model=what.model, weights=what.weights, tokenizer=what.tokenizer)
    video = isinstance(find("models", source.model), DiffusionVariant)
    live = sessions.sessions is not None
    refuse(given(worlds if video else videos), source.model)
    if video or not live:
        refuse(given(sessions), source.model if video else "a bench without --sessions")
    if live:
        refuse(given(worlds), "--sessions")
    if video or live:
        refuse(given(parallel), "a diffusion model" if video else "--sessions")
    if video:
        requests = videos.requests(source, measuring.schedule, measuring.frames)
        result |= bench_video(source, computing, requests, chosen(measuring, "repeat", "warmup"))
    elif live:
        result |= bench_live(source, computing, measuring.schedule or [DEFAULT], sessions, measuring.frames)
    else:
        with shared(parallel, source.model, computing.device) as ranks:
            result |= _bench_worlds((source, computing, ranks), measuring, worlds)
        if ranks is not None:
            result["tensor_parallel"] = ranks.world
            if not ranks.first:  # the first one writes and prints
                return
    if output.out_path is not None:
        with atomic(output.out_path) as temporary:
            temporary.write_text(written(result))
    if worlds.picture is not None:
        save_speed(result["cases"], worlds.picture, f"{source.model} on {result['cases'][0]['device']}")
    if output.as_json:
        print_json(result)
    elif video:
        print_cases(result)
    elif live:
        print_sessions(result)
    else:
        _print(result)


def _bench_worlds(
    model: tuple[WorldSource, Computing, Ranks | None], measuring: Measuring, worlds: WorldsMeasured
) -> dict[str, Any]:
    """The cases of a token world."""
    source, computing, ranks = model
    from diagonal.catalog.names import find
    from diagonal.catalog.variants import token_variant
    from diagonal.evaluation.speed.agreement import DEFINITION as AGREEMENT
    from diagonal.evaluation.speed.world import DEFINITION, WorldSettings
    from diagonal.generation import checks

    # All that can be refused is refused before a large model is loaded.
    groups = _groups(measuring.schedule or [DEFAULT], computing, worlds.compare)
    name = source.model
    if measuring.frames is not None:
        checks.token_frames(checks.Unloaded.of(name, token_variant(find("models", name), name)), measuring.frames)
    sizes = chosen(measuring, "frames", "repeat", "warmup") | chosen(worlds, "known", "steps", "batch")
    settings = WorldSettings(**sizes, tokenizer=not worlds.no_tokenizer)
    loaded = _Worlds(source, computing.device, ranks)
    made = _cases(groups, loaded)
    if worlds.compile_tokenizer:
        for world in loaded.worlds.values():
            world.compile_tokenizer()
    cases = _measure(made, settings)
    for one, case in zip(chain.from_iterable(groups), cases, strict=True):
        case |= loaded.agreement(one)
    quantised = any("greedy_agreement" in case for case in cases)
    compared = {} if worlds.compare is None else {"compare": _compared(*cases)}
    return {"cases": cases} | compared | {"definition": DEFINITION + (f"\n{AGREEMENT}" if quantised else "")}


@dataclass(frozen=True)
class _Setting:
    """What one case has of its own."""

    schedule: str
    dtype: str
    quantize: str

    @property
    def kind(self) -> str | None:
        """The kind of rows that weights are rounded to; None: they stay as they are."""
        return None if self.quantize == "none" else self.quantize


def _groups(schedules: list[str], computing: Computing, compare: tuple[str, str] | None) -> list[list[_Setting]]:
    """WorldSettings of the cases: those of a group are run alternately, the groups follow each other."""
    settings = [_Setting(schedule, computing.dtype, computing.quantize or "none") for schedule in schedules]
    if compare is None:
        return [[setting] for setting in settings]
    if len(schedules) > 1:
        raise ValueError("--compare takes one --schedule at most; write the two to compare as 'schedule=...'")
    return [[replace(settings[0], **_pairs(text)) for text in compare]]


def _pairs(text: str) -> dict[str, str]:
    """'schedule=raster dtype=float32' as a dict."""
    pairs, known = {}, [one.name for one in fields(_Setting)]
    for item in text.split():
        key, equals, value = item.partition("=")
        if key not in known or not equals:
            raise ValueError(f"{item!r} in --compare {text!r} is not understood; write {'=... or '.join(known)}=...")
        pairs[key] = value
    return pairs


@dataclass
class _Worlds:
    """One model in several dtypes and quantizations, each loaded when it is first asked for."""

    source: WorldSource
    device: str
    ranks: Ranks | None = None
    worlds: dict[tuple[str, str], World] = field(default_factory=dict)

    def get(self, dtype: str, quantize: str) -> World:
        """The world in this dtype and quantization."""
        from diagonal.catalog.names import find
        from diagonal.catalog.variants import token_variant

        if (dtype, quantize) not in self.worlds:
            name = self.source.model
            shipped = token_variant(find("models", name), name).embedded
            weights = self.source.weights if self.source.weights is not None or shipped else "random"
            computing = Computing(device=self.device, dtype=dtype, quantize=quantize)
            self.worlds[dtype, quantize] = load_world(replace(self.source, weights=weights), computing, self.ranks)
        return self.worlds[dtype, quantize]

    def agreement(self, case: _Setting) -> dict[str, float]:
        """What quantising changed: nothing to say where it did not take place."""
        from diagonal.evaluation.speed.agreement import agreement
        from diagonal.evaluation.speed.world import with_text

        if case.kind is None:
            return {}
        reference, other = (with_text(self.get(case.dtype, kind)) for kind in ("none", case.quantize))
        return agreement(reference, other).numbers()


def _cases(groups: list[list[_Setting]], worlds: _Worlds) -> list[list[Case]]:
    """The cases, with one world for each dtype and quantization."""
    from diagonal.checkpoints.quantize import check
    from diagonal.evaluation.speed.machine import check_timed
    from diagonal.evaluation.speed.world import Case
    from diagonal.generation.devices import check_device, find_dtype
    from diagonal.planning.plan import Order

    orders = [[Order.of(one.schedule) for one in group] for group in groups]
    check_timed(check_device(worlds.device))
    for one in chain.from_iterable(groups):
        find_dtype(one.dtype, worlds.device)
        check(one.kind)
    return [
        [Case(worlds.get(one.dtype, one.quantize), order) for one, order in zip(group, ordered, strict=True)]
        for group, ordered in zip(groups, orders, strict=True)
    ]


def _measure(groups: list[list[Case]], settings: WorldSettings) -> list[dict[str, Any]]:
    from diagonal.evaluation.speed.world import measure

    cases = []
    with progress_bar("runs") as progress:
        total = sum(map(len, groups)) * (settings.warmup + settings.repeat)
        task = progress.add_task(groups[0][0].world.name, total=total, note="")
        for group in groups:
            progress.update(task, note=" against ".join(str(case.order) for case in group))
            cases += measure(group, settings, lambda: progress.advance(task))
    return cases


def _compared(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """How many times as fast the second is: over all, and in each repeat."""
    repeats = zip(first["mean_ms_by_repeat"], second["mean_ms_by_repeat"], strict=True)
    steps = first["steps"] / second["steps"]
    return {"speedup": second["fps"] / first["fps"], "speedup_by_repeat": [steps * one / two for one, two in repeats]}


def _print(result: dict[str, Any]) -> None:
    from diagonal.media.draw import numbers as kind

    cases = result["cases"]
    dtypes = set(map(kind, cases))
    known = columns(COLUMNS, cases)
    table = Table("schedule", *known, box=None, padding=(0, 1, 0, 0))
    table.columns[0].no_wrap = True
    for case in cases:
        name = case["schedule"] if len(dtypes) == 1 else f"{case['schedule']} {kind(case)}"
        cells = [(case[field], form) for field, form in known.values()]
        table.add_row(name, *("" if value is None else form.format(value) for value, form in cells))
    out.print(table)
    if "compare" in result:
        speedups = result["compare"]["speedup_by_repeat"]
        span = f"{min(speedups):.2f} to {max(speedups):.2f} over {len(speedups)} repeats"
        out.print(f"the second is {result['compare']['speedup']:.2f} times as fast as the first ({span})")
    for case in cases:
        if "greedy_agreement" in case:
            said = f"{case['greedy_agreement']:.1%} of {case['agreement_positions']} most likely tokens are those of"
            out.print(f"{kind(case)}: {said} {case['dtype']} weights (KL {case['agreement_kl']:.1e} nats)")
    one = cases[0]
    clips = f" of {one['batch']} clips" if one.get("batch", 1) > 1 else ""
    out.print(
        f"{one['model']}, {one['parameters']:,} parameters, {one['weights']} weights, {' and '.join(sorted(dtypes))}; "
        f"{one['frames']} new frames{clips}, {one['known']} token frames known; {one['device']}, "
        f"{one['bandwidth_gbs']:.0f} GB/s, PyTorch {one['torch']}, diagonal {one['commit']}"
        + ("" if one["peak_gb"] is None else f"; peak {max(case['peak_gb'] for case in cases):.2f} GB"),
        markup=False,
    )
    print_kernels(result["cases"])
    for case in cases:
        if case["derived"]:
            measured = f"{case['measured_steps']} of {case['steps']} steps measured"
            out.print(f"{case['schedule']}: {measured}; FPS are derived from their mean", markup=False)
    out.print(f"\n{result['definition']}", markup=False, style="dim")
