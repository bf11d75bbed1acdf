"""What `diagonal play` begins with: a start view, a clip, a snapshot or a replay; checked before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from diagonal.cli.game import ACT, SCHEDULE, Move, Replay
from diagonal.cli.generate import SamplingOptions
from diagonal.cli.options import Computing, Fitting, RowStarts, WorldSource, chosen, given, refuse
from diagonal.cli.prompts import Beginning, check_computing, space
from diagonal.planning.decoding import DEFAULT, parse
from diagonal.planning.frames import frame_plan
from diagonal.worlds.script import parse as parse_script

if TYPE_CHECKING:
    from diagonal.generation.checks import Described
    from diagonal.generation.live import LiveSession
    from diagonal.generation.snapshot import Snapshot
    from diagonal.generation.world import World
    from diagonal.media.video import VideoArray
    from diagonal.planning.plan import Order
    from diagonal.worlds.protocols import ActionSpace


@dataclass(frozen=True, kw_only=True)
class Resuming:
    """A session that is gone on with."""

    panel: ClassVar[str] = "Prompt"

    resume: Annotated[Path | None, typer.Option(help="A snapshot to go on from, which --save wrote.")] = None


@dataclass(frozen=True, kw_only=True)
class Going:
    """In which order tokens are decoded, and what happens when the window is full."""

    panel: ClassVar[str] = "Schedule"

    schedule: Annotated[
        str | None, typer.Option(help=f"raster, diagonal:k=2 or window:s=8, all without d. Default: {DEFAULT}.")
    ] = None
    context: Annotated[
        str | None,
        typer.Option(help="When the window is full: roll (the oldest frame leaves) or refill (some are fed again)."),
    ] = None


@dataclass(frozen=True)
class Asked:
    """All options that say what is played."""

    source: WorldSource
    beginning: Beginning
    resuming: Resuming
    fitting: Fitting
    going: Going
    row_starts: RowStarts
    drawn: SamplingOptions

    def refuse(self, options: dict[str, str], why: str) -> None:
        """Refuse what a snapshot says already, with these options besides."""
        context = {"context": "--context"} if self.going.context is not None else {}
        seed = {"seed": "--seed"} if self.drawn.seed else {}
        refuse(given(self.beginning, self.fitting) | context | seed | options, why)

    def model(self, saved: Snapshot | None) -> WorldSource:
        """The model: that of the snapshot, where none is named."""
        if saved is None or saved.model == self.source.model:
            return self.source
        if given(self.source).keys() & {"model"}:
            raise ValueError(f"--model {self.source.model} given, but the snapshot is of {saved.model}; leave it out")
        return replace(self.source, model=saved.model)

    def order(self, saved: Snapshot | None) -> Order:
        """The one to begin with."""
        if saved is None:
            return self.row_starts.order(self.going.schedule)
        changed: dict[str, Any] = chosen(self.row_starts, "stand_in", "refeed")
        changed |= {} if self.going.schedule is None else {"schedule": parse(self.going.schedule)}
        return replace(saved.order, **changed)


@dataclass(frozen=True)
class Opened:
    """What is played. Made by `opened`."""

    source: WorldSource
    saved: Snapshot | None  # what it goes on from
    clip: tuple[VideoArray, list[Any]] | None  # else frames and the actions between them; None: the checkpoint decides
    order: Order
    moves: list[Move] | None  # of a script

    def session(self, world: World, asked: Asked) -> LiveSession:
        """Begin, in the loaded world."""
        if self.saved is not None:
            session = world.resume(self.saved)
            session.update(schedule=self.order, sampling=asked.drawn.change(self.saved.sampling))
            return session
        random = world.weights == "random"
        clip, between = self.clip or asked.beginning.frames_of(world, asked.fitting, random)
        sampling, seed = asked.drawn.change(world.variant.sampling), asked.drawn.seed
        context = asked.going.context
        return world.play(clip, between, schedule=self.order, sampling=sampling, seed=seed, context=context)


def opened(asked: Asked, computing: Computing, script: str | None) -> Opened:
    """What these options ask for, or why it cannot be: refused before a large model is loaded."""
    from diagonal.catalog.names import find
    from diagonal.catalog.variants import token_variant
    from diagonal.checkpoints.quantize import KINDS
    from diagonal.generation import checks, opening

    saved, moves = _given(asked, script)
    source = asked.model(saved)
    name = source.model
    variant = token_variant(find("models", name), name)
    checks.check_weights(name, variant, source.weights)
    check_computing(computing, KINDS)
    opening.check_seed(asked.drawn.seed)
    asked.drawn.change(variant.sampling if saved is None else saved.sampling)
    world, order = checks.Unloaded.of(name, variant), asked.order(saved)
    opening.check_live(world)
    opening.find_context(name, checks.built(variant.config), asked.going.context)
    moves = _script(space(world), script) if moves is None and script is not None else moves
    untrained = checks.untrained(variant, source.weights)
    fixed = variant.fit is None or untrained  # or else its checkpoint decides on sizes
    if fixed:
        _check_moves(world, order, moves or ())
    clip = asked.beginning.frames_of(world, asked.fitting, untrained) if fixed and saved is None else None
    return Opened(source, saved, clip, order, moves)


def _given(asked: Asked, script: str | None) -> tuple[Snapshot | None, list[Move] | None]:
    """The snapshot to begin with, and the moves of a replay."""
    from diagonal.generation.snapshot import Snapshot

    resume = asked.resuming.resume
    if script is not None and script.endswith(".json"):
        replay = Replay.load(script)
        asked.refuse(given(asked.resuming, asked.going, asked.row_starts, asked.drawn), "a replay, which has its own")
        return replay.begin, list(replay.moves)
    if resume is None:
        return None, None
    asked.refuse({}, "--resume, which has its own")
    return Snapshot.load(resume), None


def _script(actions: ActionSpace, text: str) -> list[Move]:
    """The moves of 'forward*8,left*4'."""
    actions.parse(text)
    return [Move(ACT, action) for action in parse_script(text, str)]


def _check_moves(world: Described, order: Order, moves: Sequence[Move]) -> None:
    """Refuse orders that complete no frame by itself, and actions that there are not."""
    config = world.variant.config
    schedules = dict.fromkeys(move.value for move in moves if move.kind == SCHEDULE)
    for one in [order, *(replace(order, schedule=parse(text)) for text in schedules)]:
        frame_plan(config.rows, config.cols, config.suffix, one)
    for action in dict.fromkeys(move.value for move in moves if move.kind == ACT):
        if len(space(world).parse(action)) != 1:
            raise ValueError(f"{action!r} is not one action; a move has one")
