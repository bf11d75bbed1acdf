"""`diagonal generate`: a token world continues a clip. Videos of diffusion models: video.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.table import Table

from diagonal.cli import app, load_world, out, print_json, progress_bar
from diagonal.cli.options import Computing, Fitting, Json, RowStarts, WorldSource, chosen, flat
from diagonal.cli.parallel import Parallel, Unwritten, shared
from diagonal.cli.prompts import Continuation, PromptOptions, check_asked, check_computing, prepare
from diagonal.cli.signing import Watermarking
from diagonal.planning.decoding import DEFAULT

if TYPE_CHECKING:
    from diagonal.engine.ranks import Ranks
    from diagonal.generation.session import Piece
    from diagonal.generation.token_session import TokenSession
    from diagonal.generation.world import World
    from diagonal.media.provenance.origin import Origin
    from diagonal.media.provenance.writing import MarkedWriter, Marking
    from diagonal.media.video import VideoArray
    from diagonal.planning.plan import Order
    from diagonal.planning.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class Schedules:
    """In which order tokens are decoded."""

    panel: ClassVar[str] = "Schedule"

    schedule: Annotated[
        str | None, typer.Option(help=f"raster, diagonal:k=1,d=10, window:s=8 or lossless. Default: {DEFAULT}.")
    ] = None
    compare: Annotated[
        str | None, typer.Option(help="A second schedule, drawn beside the first; how many tokens are equal is said.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How tokens are drawn."""

    panel: ClassVar[str] = "Sampling"

    temperature: Annotated[float | None, typer.Option(help="0 is greedy. Default: the model's.")] = None
    top_p: Annotated[float | None, typer.Option(help="Default: the model's.")] = None
    top_k: Annotated[int | None, typer.Option(help="Default: the model's.")] = None
    seed: Annotated[int, typer.Option(help="The same seed gives the same clip.")] = 0

    def change(self, sampling: Sampling) -> Sampling:
        """The sampling of a model with what was given in its place."""
        return replace(sampling, **chosen(self, "temperature", "top_p", "top_k"))


@dataclass(frozen=True, kw_only=True)
class Output:
    """What is written and printed."""

    panel: ClassVar[str] = "Output"

    out_path: Annotated[str, typer.Option("--out", help="Video to write; '-' streams mp4 to stdout.")] = "out.mp4"
    scale: Annotated[int | None, typer.Option(min=1, help="Enlarge pixels so many times. Default: to be seen.")] = None
    mark: Annotated[bool, typer.Option(help="Write into the frames that they are generated, for models that ask.")] = (
        True
    )
    as_json: Json = False


@dataclass(frozen=True)
class ClipTiming:
    """What one generation did and how long it took."""

    schedule: str
    calls: int  # of the model
    frames: int
    tokens: int  # of these frames
    seconds: float

    def report(self) -> dict[str, Any]:
        """The fields, and rates from them."""
        rates = {"fps": self.frames / self.seconds, "tokens_per_second": self.tokens / self.seconds}
        return asdict(self) | {"ms_per_frame": 1000 * self.seconds / self.frames} | rates


@app.command()
@flat
def generate(
    source: WorldSource,
    computing: Computing,
    asked: PromptOptions,
    fitting: Fitting,
    schedules: Schedules,
    row_starts: RowStarts,
    drawn: SamplingOptions,
    output: Output,
    signing: Watermarking,
    parallel: Parallel,
) -> None:
    """Continue a clip with a token world: frames are written as they complete. Diffusion models: `diagonal video`."""
    if output.out_path == "-" and (output.as_json or schedules.compare is not None):
        raise ValueError("--out - streams the video to stdout; it goes neither with --json nor with --compare")
    orders = [row_starts.order(schedules.schedule)]
    if schedules.compare is not None:
        orders.append(row_starts.order(schedules.compare))
    from diagonal.checkpoints.quantize import KINDS
    from diagonal.media.video import check_target

    # All that can be refused is refused before a large model is loaded.
    check_target(output.out_path)
    check_computing(computing, KINDS)
    marking = signing.marking(output.out_path, watermark=False)
    how = _How(computing, asked, fitting, drawn, output, marking)
    with shared(parallel, source.model, computing.device) as ranks:
        _generate(source, how, orders, ranks)


@dataclass(frozen=True)
class _How:
    """The options of a clip but for its model and its schedules."""

    computing: Computing
    asked: PromptOptions
    fitting: Fitting
    drawn: SamplingOptions
    output: Output
    marking: Marking


def _generate(source: WorldSource, how: _How, orders: list[Order], ranks: Ranks | None) -> None:
    """Make the clip, in this process or in each of several that have a shard of the model."""
    from diagonal.catalog.names import HF

    name, asked, drawn, output, marking = source.model, how.asked, how.drawn, how.output, how.marking
    if name.startswith(HF):  # what it is only its own files say
        world = load_world(source, how.computing)
        prompt = prepare(world, asked, how.fitting, untrained=False)
    else:
        world, prompt = _opened(source, how, orders, ranks)
    world, sampling = prompt.under(world), drawn.change(world.variant.sampling)

    def begin(order: Order) -> TokenSession:
        clip, actions, frames = prompt.clip, prompt.actions, prompt.frames
        return world.stream(clip, actions, frames=frames, schedule=order, sampling=sampling, seed=drawn.seed)

    look = Look.of(world, output.scale, output.mark)
    origin = _origin(world, prompt, asked, look, (orders, sampling, drawn.seed))
    film = Film(output.out_path, look, marking, origin, prompt.clip is None, written=ranks is None or ranks.first)
    if len(orders) == 1:
        runs, equal = [_write(world, begin(orders[0]), orders[0], film)], None
    else:
        next(iter(begin(orders[0])))  # warm-up: the first frame of a process pays for set-up
        runs, equal = _write_compared(world, [(order, begin(order)) for order in orders], film)
    shared: dict[str, Any] = {"model": name, "weights": world.weights, "quantize": world.quantized or "none"}
    shared |= {"seed": drawn.seed, "out": output.out_path, "credentials": marking.words}
    if output.as_json:
        print_json(shared | runs[0].report() | _compared(runs, equal))
    elif output.out_path != "-":
        _print_runs(runs, shared)
        if equal is not None:
            out.print(f"tokens equal {_percent(equal)}")


def _opened(source: WorldSource, how: _How, orders: list[Order], ranks: Ranks | None) -> tuple[World, Continuation]:
    """A world that is known by its name, and what it goes on with."""
    from diagonal.catalog.names import find
    from diagonal.catalog.variants import token_variant
    from diagonal.generation import checks

    name, asked, fitting, prompt = source.model, how.asked, how.fitting, None
    variant = token_variant(find("models", name), name)
    how.drawn.change(variant.sampling)
    checks.check_weights(name, variant, source.weights)
    untrained = checks.untrained(variant, source.weights)
    if variant.fit is None or untrained:
        prompt = prepare(checks.Unloaded.of(name, variant), asked, fitting, untrained)
        prompt.check(orders, how.drawn.seed)
    else:  # its checkpoint decides on sizes
        check_asked(checks.Unloaded.of(name, variant), asked, untrained)
    world = load_world(source, how.computing, ranks)
    return world, prompt or prepare(world, asked, fitting, untrained)


@dataclass(frozen=True)
class Look:
    """How frames are shown in a video."""

    scale: int
    mark: str
    fps: int | Fraction

    @classmethod
    def of(cls, world: World, scale: int | None, marked: bool) -> Look:
        """As asked for; small frames are enlarged where nothing is asked."""
        from diagonal.media.video import to_be_seen

        mark = world.variant.mark if marked else ""
        return cls(scale or to_be_seen(world.size[0]), mark, world.variant.fps)

    def __call__(self, frames: VideoArray) -> VideoArray:
        from diagonal.media.draw import stamp
        from diagonal.media.video import enlarge

        return stamp(enlarge(frames, self.scale), self.mark) if self.mark else enlarge(frames, self.scale)


@dataclass(frozen=True)
class Film:
    """A video to be written."""

    path: str
    look: Look
    marking: Marking
    origin: Origin
    from_text: bool  # nothing was seen before it
    written: bool = True  # by this process, of those that make it

    def open(self) -> AbstractContextManager[MarkedWriter | Unwritten]:
        """Begin to write it."""
        if not self.written:
            return nullcontext(Unwritten())
        from diagonal.media.provenance.writing import marked_writer

        return marked_writer(self.path, self.look.fps, self.origin, self.marking, self.from_text)


def _origin(
    world: World, prompt: Continuation, asked: PromptOptions, look: Look, how: tuple[list[Order], Sampling, int]
) -> Origin:
    """What the video's credentials say."""
    from diagonal.generation.origin import of_world

    orders, sampling, seed = how
    made = of_world(world, orders[0], sampling, seed, prompt.told(asked))
    return replace(made, schedule=" beside ".join(map(str, orders)), mark=look.mark)


def _run(world: World, stream: TokenSession, order: Order, each: Callable[[Piece], object]) -> ClipTiming:
    """Consume a stream with a progress bar. Seconds: model calls and frame decoding; loading and encoding apart."""
    with progress_bar("calls") as progress:
        task = progress.add_task(str(order), total=stream.calls, note="")
        stream.on_call = lambda: progress.advance(task)
        start, calls = time.perf_counter(), 0
        for piece in stream:
            if world.ranks is not None:
                world.ranks.agree(piece.tokens, "the tokens that were drawn")
            each(piece)
            calls += piece.calls
            progress.update(task, description=f"{order}  frame {piece.index + piece.new}")
        seconds = time.perf_counter() - start
    tokens = stream.frames // int(world.tokenizer.stride) * world.layout(1).grid.frame_tokens
    return ClipTiming(str(order), calls, stream.frames, tokens, seconds)


def _write(world: World, stream: TokenSession, order: Order, film: Film) -> ClipTiming:
    with film.open() as video:
        return _run(world, stream, order, lambda piece: video.write(film.look(piece.frames)))


def _write_compared(
    world: World, streams: list[tuple[Order, TokenSession]], film: Film
) -> tuple[list[ClipTiming], float]:
    """What the runs took, and the share of their tokens that are equal."""
    import numpy as np

    from diagonal.media.draw import side_by_side

    runs, clips, tokens = [], [], []
    with film.open() as video:
        for order, stream in streams:
            pieces: list[Piece] = []
            runs.append(_run(world, stream, order, pieces.append))
            clips.append(film.look(np.concatenate([piece.frames for piece in pieces])))
            tokens.append(np.concatenate([piece.tokens.numpy() for piece in pieces]))
        labels = [f"{run.schedule}   {run.calls} calls   {run.seconds:.1f} s" for run in runs]
        video.write(side_by_side(clips[::-1], labels[::-1]))
    return runs, float((tokens[0] == tokens[1]).mean())


def _percent(share: float) -> str:
    """Rounded, but one token that differs is not rounded away."""
    return f"{share if share == 1 else min(100 * share, 99.99) / 100:.2%}".replace("%", " %")


def _compared(runs: list[ClipTiming], equal: float | None) -> dict[str, Any]:
    if len(runs) == 1:
        return {}
    compare = runs[1].report() | {"tokens_equal": equal}
    return {"compare": compare, "speedup": runs[1].seconds / runs[0].seconds}


def _print_runs(runs: list[ClipTiming], shared: dict[str, Any]) -> None:
    columns = ["schedule", "model calls", "seconds", "ms per frame", "FPS", "tokens per s"]
    table = Table(*columns, *(["speed-up"] if len(runs) > 1 else []), box=None)
    slowest = max(run.seconds for run in runs)
    for run in reversed(runs):
        report = run.report()
        cells = [f"{run.seconds:.2f}", f"{report['ms_per_frame']:.0f}", f"{report['fps']:.2f}"]
        cells += [f"{report['tokens_per_second']:,.0f}"]
        table.add_row(
            run.schedule, f"{run.calls}", *cells, *([f"{slowest / run.seconds:.2f}x"] if len(runs) > 1 else [])
        )
    out.print(table)
    out.print(
        f"{runs[0].frames} frames of {shared['model']} ({shared['weights']} weights) in {shared['out']}; credentials: "
        f"{shared['credentials']}",
        markup=False,
    )
    out.print(
        "[dim]seconds: all model calls and the decoding of frames to pixels; loading and the prompt not counted[/]"
    )
