"""`diagonal play`: a token world in a terminal, or along a script."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

import typer
from rich.table import Table

from diagonal.cli import app, err, load_world, out, print_json, progress_bar
from diagonal.cli.console import Keyboard, Printed, Screen, check_terminal
from diagonal.cli.game import ACT, Game, Move, limited, middle_and_late
from diagonal.cli.generate import Look, SamplingOptions
from diagonal.cli.keys import HELP, Held, Meter, Player
from diagonal.cli.opened import Asked, Going, Resuming, opened
from diagonal.cli.options import Computing, Fitting, Json, RowStarts, WorldSource, flat
from diagonal.cli.parallel import Parallel, follows, shared
from diagonal.cli.prompts import Beginning
from diagonal.cli.signing import Signing
from diagonal.media.files import check_target
from diagonal.worlds.pace import Pace

if TYPE_CHECKING:
    from diagonal.engine.ranks import Ranks
    from diagonal.media.provenance.origin import Origin
    from diagonal.media.provenance.writing import MarkedWriter, Marking
    from diagonal.media.video import VideoArray


class Draw(StrEnum):
    """How frames are drawn."""

    AUTO = "auto"
    BLOCKS = "blocks"
    SIXEL = "sixel"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Playing:
    """Who plays, and how it looks."""

    panel: ClassVar[str] = "Playing"

    script: Annotated[
        str | None,
        typer.Option(help="'forward*8,left*4', or a file that --replay wrote: it plays, without keys and a terminal."),
    ] = None
    frames: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many. Default: at q, or with the script.")
    ] = None
    fps: Annotated[float | None, typer.Option(min=0.1, help="Frames a second, at most. Default: the world's.")] = None
    draw: Annotated[
        Draw, typer.Option(help="How frames are drawn. auto: as the terminal can best; of a script, not at all.")
    ] = Draw.AUTO

    def check(self, as_json: bool) -> None:
        """Refuse to draw where nobody sees it, or where it is in the way."""
        if self.script is None:
            if self.draw is Draw.NONE:
                raise ValueError("--draw none shows nothing to play by; it goes with --script")
            check_terminal()
        elif as_json and self.drawn and not sys.stdout.isatty():
            raise ValueError(f"--json and --draw {self.draw} both write to stdout; give one of them")

    @property
    def drawn(self) -> bool:
        """Whether frames of a script are drawn."""
        return self.draw in (Draw.BLOCKS, Draw.SIXEL)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What is taken up and what is kept."""

    panel: ClassVar[str] = "Output"

    save: Annotated[Path | None, typer.Option(help="Snapshot to write at the end (json), for --resume.")] = None
    replay: Annotated[Path | None, typer.Option(help="What was done, to write at the end (json), for --script.")] = None
    out_path: Annotated[str | None, typer.Option("--out", help="Video of the frames to write.")] = None
    scale: Annotated[int | None, typer.Option(min=1, help="Enlarge its pixels so many times. Default: to be seen.")] = (
        None
    )
    mark: Annotated[bool, typer.Option(help="Write into its frames that they are generated, for models that ask.")] = (
        True
    )
    as_json: Json = False

    def check(self) -> None:
        """Refuse names that cannot be written."""
        from diagonal.media import video

        if self.out_path == "-":
            raise ValueError("--out - streams to stdout, which diagonal generate does; name a file")
        if self.out_path is not None:
            video.check_target(self.out_path)
        for path in (self.save, self.replay):
            if path is not None:
                check_target(path, ".json")


@app.command()
@flat
def play(
    source: WorldSource,
    computing: Computing,
    beginning: Beginning,
    resuming: Resuming,
    fitting: Fitting,
    playing: Playing,
    going: Going,
    row_starts: RowStarts,
    drawn: SamplingOptions,
    kept: Kept,
    signing: Signing,
    parallel: Parallel,
) -> None:
    """Play a token world in this terminal: WASD or arrows, space, q to leave. --script plays without keys."""
    # All that can be refused is refused before a large model is loaded.
    kept.check()
    if not follows():  # only the first of several processes has a terminal
        playing.check(kept.as_json)
    asked = Asked(source, beginning, resuming, fitting, going, row_starts, drawn)
    begin = opened(asked, computing, playing.script)
    marking = None if kept.out_path is None else signing.marking(kept.out_path)
    with shared(parallel, begin.source.model, computing.device) as ranks:
        heard = ranks is None or ranks.first
        world = load_world(begin.source, computing, ranks)
        game = Game(world, begin.session(world, asked))
        with ExitStack() as stack:
            look = Look.of(world, kept.scale, kept.mark)
            told = _origin(game, asked, look) if marking is not None else None
            film = Film(stack, kept.out_path if heard else None, look, marking, told)
            meter = _run(game, begin.moves, playing, film)
            film.end(game)
        if heard:
            _keep(game, kept)
        game.close()
    if heard:
        _report(game, kept, meter, marking)


def _keep(game: Game, kept: Kept) -> None:
    """Write what was asked for."""
    if kept.save is not None:
        game.session.save(kept.save)
    if kept.replay is not None:
        game.replay().save(kept.replay)


def _report(game: Game, kept: Kept, meter: Meter, marking: Marking | None) -> None:
    """Say how it went."""
    world = game.world
    if kept.out_path is not None and not game.frames:
        err.print(f"[yellow]no frame was made, so there is no {kept.out_path}[/]")
    middle, late = middle_and_late(meter.answers)
    about: dict[str, Any] = {"model": world.name, "weights": world.weights, "quantize": world.quantized or "none"}
    paths = {name: str(path) for name, path in vars(kept).items() if name in ("save", "replay") and path is not None}
    numbers = about | game.report() | {"key_to_frame_ms": middle, "key_to_frame_ms_p95": late} | paths
    if marking is not None and game.frames:
        numbers |= {"out": kept.out_path, "credentials": marking.words}
    if kept.as_json:
        print_json(numbers)
    else:
        _print(numbers)


class Film:
    """A video that begins with its first frame."""

    def __init__(
        self, stack: ExitStack, path: str | None, look: Look, marking: Marking | None, origin: Origin | None
    ) -> None:
        self._stack, self._path, self._look = stack, path, look
        self._marking, self._origin = marking, origin
        self._writer: MarkedWriter | None = None

    def add(self, frames: VideoArray) -> None:
        """Append frames (T, H, W, 3), where a video was asked for."""
        from diagonal.media.provenance.writing import marked_writer

        if self._path is None or self._marking is None or self._origin is None:
            return
        if self._writer is None:
            begun = marked_writer(self._path, self._look.fps, self._origin, self._marking)
            self._writer = self._stack.enter_context(begun)
        self._writer.write(self._look(frames))

    def end(self, game: Game) -> None:
        """All frames are there: say what was played."""
        if self._writer is not None:
            self._writer.tell("moves", game.told())


def _origin(game: Game, asked: Asked, look: Look) -> Origin:
    """What the video's credentials say, but for what will be played."""
    from diagonal.generation.origin import frames_told, of_world

    session, start = game.session, asked.beginning.start
    told = {"first frame": frames_told(session.view())} | ({} if start is None else {"start": start})
    return replace(of_world(game.world, session.order, session.sampling, session.seed, told), mark=look.mark)


class View(Protocol):
    """What shows frames."""

    def show(self, pixels: VideoArray, lines: Sequence[str]) -> None:
        """A frame (H, W, 3) with lines of text below it."""
        ...


class Nowhere:
    """Frames are not shown."""

    def show(self, pixels: VideoArray, lines: Sequence[str]) -> None:
        """Nothing is drawn."""


def _run(game: Game, script: Sequence[Move] | None, playing: Playing, film: Film) -> Meter:
    """Make all moves, of the script or of the player; leaves the terminal as it was."""
    meter, pace = Meter(), Pace(playing.fps or float(game.world.variant.fps), time.monotonic)
    stdout, ranks = sys.stdout.buffer, game.world.ranks
    with ExitStack() as stack:
        view: View = Nowhere()
        if ranks is not None and not ranks.first:
            moves = _heard(iter(()), ranks)
        elif script is None:
            keyboard = stack.enter_context(Keyboard(stdout))
            sixel = playing.draw is Draw.SIXEL or (playing.draw is Draw.AUTO and keyboard.sixel)
            view = stack.enter_context(Screen(stdout, sixel, keyboard.exact))
            held = Held(exact=keyboard.exact)
            moves = Player(keyboard, held, game.world.actions, pace, meter, time.monotonic).moves()
        elif not playing.drawn:
            moves = _counted(script)
        else:
            form = Screen if sys.stdout.isatty() else Printed
            made = form(stdout, playing.draw is Draw.SIXEL)
            view = stack.enter_context(made) if isinstance(made, Screen) else made
            moves = _paced(script, pace, meter)
        if ranks is not None and ranks.first:
            moves = _heard(limited(moves, playing.frames), ranks)
        _make(game, moves if ranks is not None else limited(moves, playing.frames), view, film, meter)
    return meter


def _heard(moves: Iterator[Move | None], ranks: Ranks) -> Iterator[Move | None]:
    """The moves of the first process, in all that share the model."""
    while True:
        move = next(moves, END) if ranks.first else END
        written = "end" if move is END else json.dumps(None if move is None else [move.kind, move.value])
        told = ranks.told(written)
        if told == "end":
            return
        made = json.loads(told)
        yield None if made is None else Move(*made)


def _make(game: Game, moves: Iterator[Move | None], view: View, film: Film, meter: Meter) -> None:
    view.show(game.session.view(), [HELP])
    for move in moves:
        made = None if move is None else game.play(move)
        if made is None:
            view.show(game.session.view(), [_status(game, meter, paused=move is None), HELP])
        else:
            film.add(made.frames)
            view.show(made.frame, [_status(game, meter), HELP])


def _status(game: Game, meter: Meter, paused: bool = False) -> str:
    """One line; what matters least is last, for narrow terminals cut it off."""
    calls = f"{game.calls[-1]} calls" if game.calls else ""
    doing = "paused" if paused else game.acting
    return f"{doing:<13}  {meter}  {game.schedule}  {calls}  frame {game.session.index}  seed {game.session.seed}"


def _paced(script: Sequence[Move], pace: Pace, meter: Meter) -> Iterator[Move]:
    """A script that is watched."""
    for move in script:
        if move.kind == ACT:
            time.sleep(pace.left())
            pace.begin()
        yield move
        if move.kind == ACT:
            meter.shown(time.monotonic())


def _counted(script: Sequence[Move]) -> Iterator[Move]:
    """A script under a progress bar."""
    with progress_bar("moves") as progress:
        task = progress.add_task("play", total=len(script), note="")
        for move in script:
            yield move
            progress.advance(task)


def _print(numbers: dict[str, Any]) -> None:
    def cell(name: str, form: str) -> str:
        return "-" if numbers[name] is None else format(numbers[name], form)

    columns = [
        ("frames", "frames", "d"),
        ("FPS", "fps", ".2f"),
        ("ms per frame", "ms_per_frame", ".0f"),
        ("p95", "ms_per_frame_p95", ".0f"),
        ("model calls per frame", "calls_per_frame", ".1f"),
    ]
    if numbers["key_to_frame_ms"] is not None:
        columns += [("key to frame, ms", "key_to_frame_ms", ".0f"), ("p95", "key_to_frame_ms_p95", ".0f")]
    table = Table(*(heading for heading, _, _ in columns), box=None)
    table.add_row(*(cell(name, form) for _, name, form in columns))
    out.print(table)
    about = f"{numbers['model']} ({numbers['weights']} weights), {numbers['schedule']}, seed {numbers['seed']}"
    about += f"; credentials: {numbers['credentials']}" if "credentials" in numbers else ""
    written = [f"{name} in {numbers[key]}" for name, key in WRITTEN.items() if key in numbers]
    out.print(f"{about}; {', '.join(written)}" if written else about, markup=False)
    out.print("[dim]FPS and ms: model calls and decoding to pixels; waiting and drawing not counted[/]")


END = Move("end", "")  # of all moves
WRITTEN = {"video": "out", "snapshot": "save", "replay": "replay"}
