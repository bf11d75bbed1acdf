"""Seats of sessions that share model calls.

    arena = world.arena(seats=32)
    first, second = arena.play("hall"), arena.play("gate", seed=7)
    made = arena.step({first: "forward", second: "left"})  # who is not named sits it out

Seats are taken and left between frames. What a session makes does not depend on who else is there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from diagonal.engine.tokens.live import LiveDecoder, LiveKind
from diagonal.engine.tokens.ring import Turn
from diagonal.engine.transfers import on_host
from diagonal.generation.checks import check_chooses, check_window
from diagonal.generation.clock import Clock, Elapsed
from diagonal.generation.live import LiveSession
from diagonal.generation.memory import check_seats, free_bytes, seat_bytes
from diagonal.generation.opening import (
    REFILL,
    action_ids,
    check_live,
    check_seed,
    check_snapshot,
    find_context,
    opening,
)
from diagonal.generation.session import Piece
from diagonal.generation.snapshot import How, Past, Snapshot, reach
from diagonal.media.video import VideoArray
from diagonal.planning.decoding import Schedule
from diagonal.planning.frames import FramePlan, frame_plan
from diagonal.planning.plan import Order
from diagonal.planning.sampling import Sampling
from diagonal.worlds.protocols import Free

if TYPE_CHECKING:
    from diagonal.generation.world import World

MANY = 4096  # texts of actions whose ids are kept
DECODED = 64  # frames that are decoded to pixels together: more take memory and win nothing


class _Move(NamedTuple):
    """A frame that a session asks for."""

    session: LiveSession
    how: How
    ids: list[int]  # of the action; none where the model chooses


class Modelled(NamedTuple):
    """What decoding the tokens of some frames took."""

    calls: dict[LiveSession, int]  # of the model, each session's with those that it shared
    took: Elapsed


class Tick:
    """Frames of some sessions on their way to the host."""

    def __init__(self, moves: Sequence[_Move], parts: Sequence[Tensor], model: Modelled, decoding: Elapsed) -> None:
        self._moves, self._parts, self._calls, self._times = moves, parts, model.calls, (model.took, decoding)
        self._turns = [move.session.turn for move in moves]
        self._pieces: dict[LiveSession, Piece] = {}
        for move in moves:
            move.session.waiting.append(self)

    def result(self) -> dict[LiveSession, Piece]:
        """The frame of each session; waits for it."""
        if self._pieces:
            return self._pieces
        if self._times[1].ready is not None:
            self._times[1].ready.synchronize()
        model, decoding = (one.seconds() for one in self._times)
        pixels_BTHWC = self._parts[0].numpy()
        tokens, actions, flat = (part.unbind() for part in (*self._parts[1:], self._parts[1].flatten(1)))
        for number, (move, turn) in enumerate(zip(self._moves, self._turns, strict=True)):
            session, code, ids = move.session, tokens[number][None], actions[number]
            if session.waiting and session.waiting[0] is self:
                session.waiting.popleft()
                session.past.add(flat[number], ids, move.how)
            calls = self._calls[session]
            piece = Piece(turn.frame, pixels_BTHWC[number], code, calls, model, decoding, actions=ids[None])
            self._pieces[session] = piece
        return self._pieces


class Arena:
    """Seats of sessions that share model calls. Made by `World.arena`."""

    def __init__(self, world: World, seats: int, context: str | None = None) -> None:
        check_live(world)
        self.world, self.seats = world, seats
        self.context = find_context(world.name, world.model, context)
        config, device = world.variant.config, world.device
        self._layout = world.layout(config.frames)
        self._kind = LiveKind(world.runner, self._layout, seats, device, world.cache_dtype, world.call_inputs)
        self._decoder = world.live.take(self._kind, self._new)
        self._rows = list(range(seats))
        self._clock = Clock(device)
        self._side = torch.cuda.Stream(device) if self._clock.cuda else None
        self._open, self._texts = True, dict[str, list[int]]()

    def another(self) -> Arena:
        """One of its own for a session that leaves a branch behind."""
        return Arena(self.world, 1, self.context)

    @property
    def free(self) -> int:
        """Seats that nobody has."""
        return len(self._rows)

    def play(
        self,
        prompt: str | VideoArray | Tensor,
        actions: Sequence[Any] | None = None,
        *,
        schedule: str | Schedule | Order = "diagonal:k=1",
        sampling: Sampling | None = None,
        seed: int = 0,
    ) -> LiveSession:
        """Take a seat; the arguments are those of `World.play`."""
        return self._play(prompt, actions, Order.of(schedule), sampling, (seed, False))

    def step(
        self, actions: Mapping[LiveSession, Any], on_call: Callable[[], object] = lambda: None
    ) -> dict[LiveSession, Piece]:
        """The frame of each session that has an action; the others sit it out. `on_call` is called after every model
        call; if it raises, no frame was made, and another action may be given."""
        return self.submit(actions, on_call).result()

    def submit(self, actions: Mapping[LiveSession, Any], on_call: Callable[[], object] = lambda: None) -> Tick:
        """The same without waiting: on a GPU the next frames can be asked for while these are decoded to pixels."""
        moves = [self._move(session, action) for session, action in actions.items()]  # refuses before anything is done
        if not moves:
            raise ValueError("no actions given; name at least one session")
        began = self._clock.mark()
        for move in moves:
            self._make_room(move.session)
        before = [move.session.turn for move in moves]
        calls: dict[LiveSession, int] = {}
        try:
            for move in moves:
                move.session.turn = move.session.turn.next(self._layout.grid.frames)
            for alike in _groups(moves):
                calls |= dict.fromkeys((move.session for move in alike), self._decode(alike, on_call))
        except BaseException:
            for move, turn in zip(moves, before, strict=True):  # the frame's part of the ring is written anew
                move.session.turn = turn
            raise
        return self._send(moves, Modelled(calls, Elapsed(began, self._clock.mark())))

    def resume(self, saved: Snapshot | str | Path, alone: bool = False) -> LiveSession:
        """Take a seat and go on where a snapshot was made."""
        steps = self.resuming(saved if isinstance(saved, Snapshot) else Snapshot.load(saved), alone)
        while True:
            try:
                next(steps)
            except StopIteration as ended:
                session: LiveSession = ended.value
                return session

    def resuming(self, saved: Snapshot, alone: bool = False) -> Generator[None, None, LiveSession]:
        """The same a frame at a time, so that others may be served in between: each decoded frame is repeated in one
        step of the generator, which ends with the session. Closed before that, it gives the seat back."""
        self._check_open()
        check_snapshot(self.world, saved, self.context)
        row, layout, units = self._take(), self._layout, saved.units_TU
        given, cells = saved.given, layout.grid.frame_tokens
        turn = Turn(row, saved.seed, saved.frame - len(saved.made), given - 1, given - 1, given)
        try:
            self._decoder.begin(row, units[:given].to(self.world.device))
            for index, how in enumerate(saved.made, given):
                yield
                turn = turn.next(layout.grid.frames)
                self._decoder.act([turn], units[index - 1 : index, cells:])
                self._decoder.decode(self.plan(how), saved.sampling, [turn], units[index : index + 1])
        except BaseException:  # of the model, or nobody waits for the session any more
            self._rows.insert(0, row)
            raise
        past = Past(units, saved.made, self._most(), cells)
        return LiveSession(self, turn, past, saved.order, saved.sampling, alone)

    def adopt(self, other: LiveSession, alone: bool, seed: int) -> LiveSession:
        """Take a seat and go on as another session would, which goes on too."""
        row = self._take()
        self._decoder.ring.copy(row, other.arena._decoder.ring, other.turn.row)
        turn = replace(other.turn, row=row, seed=seed)
        return LiveSession(self, turn, other.past.copy(), other.order, other.sampling, alone)

    def leave(self, session: LiveSession, close: bool) -> None:
        """A session gives its seat back."""
        self._rows.insert(0, session.turn.row)
        if close:
            self.close()

    def close(self) -> None:
        """Hand back the ring and its graphs, for the next arena of this size."""
        if self._open:
            self._open = False
            self.world.live.give(self._kind, self._decoder)

    def plan(self, how: How) -> FramePlan:
        """The plan of a frame."""
        grid, suffix = self._layout.grid, self._layout.suffix
        check_window(how.order, self._kind.call_inputs)
        return frame_plan(grid.rows, grid.cols, suffix, how.order, how.chooses)

    def view(self, turn: Turn) -> VideoArray:
        """The pixels (H, W, 3) of a frame that is in the ring."""
        tokens_BHW, _ = self._decoder.made([turn])
        return self._pixels(tokens_BHW)[0, -1].cpu().numpy()

    def _new(self) -> LiveDecoder:
        kind, config = self._kind, self.world.variant.config
        each = seat_bytes(self.world.model.cache_spec, self._layout.length, kind.dtype)
        check_seats(kind.seats, each, free_bytes(kind.device))
        return kind.make(config.prefix_ids, torch.tensor(config.valid_ids(), device=kind.device))

    def _play(
        self,
        prompt: str | VideoArray | Tensor,
        actions: Sequence[Any] | None,
        order: Order,
        sampling: Sampling | None,
        who: tuple[int, bool],
    ) -> LiveSession:
        self._check_open()
        self.plan(How(order))
        (seed, alone), layout = who, self._layout
        units, first = opening(self.world, prompt, actions, layout.grid.frames, self._newest())
        turn = Turn(self._take(), check_seed(seed), first + len(units) - 1, *(len(units) - 1,) * 2, len(units))
        self._decoder.begin(turn.row, units.to(self.world.device))
        past = Past(units.cpu(), (), self._most(), layout.grid.frame_tokens)
        return LiveSession(self, turn, past, order, sampling or self.world.variant.sampling, alone)

    def _newest(self) -> int:
        """Frames that are kept where the window is full."""
        config = self.world.variant.config
        return int(config.reference_frames) if self.context == REFILL else int(config.frames) - 1

    def _most(self) -> int:
        """Frames of the past that a snapshot needs."""
        places, layers = self._layout.grid.frames, self._decoder.ring.cache.spec.layers
        return places if self.context == REFILL else reach(layers, places)

    def _take(self) -> int:
        if not self._rows:
            raise ValueError(f"all {self.seats} seats are taken; close a session, or make a larger arena")
        return self._rows.pop(0)

    def _check_open(self) -> None:
        if not self._open:
            raise ValueError("this arena is closed; make another one")

    def _move(self, session: LiveSession, action: Any) -> _Move:
        """What a session asks for, or why it cannot."""
        session.check_open()
        if session.arena is not self:
            raise ValueError("a session of another arena is named; ask that one")
        self._check_open()
        chooses = isinstance(action, Free)
        how = How(session.order, chooses)
        if chooses:
            check_chooses(self.world)
        self.plan(how)  # refuses it, or has it ready
        return _Move(session, how, [] if chooses else self._ids(action))

    def _ids(self, action: Any) -> list[int]:
        """The ids of an action. Texts come again and again; so many different ones do not."""
        if not isinstance(action, str):
            return action_ids(self.world, action)
        if action not in self._texts:
            if len(self._texts) >= MANY:
                self._texts.clear()
            self._texts[action] = action_ids(self.world, action)
        return self._texts[action]

    def _make_room(self, session: LiveSession) -> None:
        """Where the window is full and does not roll, feed the newest frames again."""
        if self.context == REFILL and session.turn.place == self._layout.grid.frames - 1:
            session.settle()
            session.turn = self._decoder.refill(session.turn, self._newest())
            session.past.refilled(self._newest())

    def _decode(self, moves: Sequence[_Move], on_call: Callable[[], object]) -> int:
        """The frames of sessions under one plan; gives the model calls."""
        turns, first = [move.session.turn for move in moves], moves[0]
        if not first.how.chooses and self._layout.suffix:
            self._decoder.act(turns, torch.tensor([move.ids for move in moves], dtype=torch.long))
        return self._decoder.decode(self.plan(first.how), first.session.sampling, turns, None, on_call)

    def _send(self, moves: Sequence[_Move], model: Modelled) -> Tick:
        """Decode all new frames to pixels in one batch, on a GPU in a stream of its own."""
        tokens, actions = self._decoder.made([move.session.turn for move in moves])
        if self._side is None:
            began = self._clock.mark()
            parts = [part.cpu() for part in (self._pixels(tokens), tokens, actions)]
            return Tick(moves, parts, model, Elapsed(began, self._clock.mark()))
        self._side.wait_stream(torch.cuda.current_stream(self.world.device))
        with torch.cuda.stream(self._side):
            began = self._clock.mark()
            parts = [on_host(part) for part in (self._pixels(tokens), tokens, actions)]
            tokens.record_stream(self._side)
            actions.record_stream(self._side)
            return Tick(moves, parts, model, Elapsed(began, self._clock.mark()))

    def _pixels(self, tokens_BHW: Tensor) -> Tensor:
        """Frames (B, 1, H, W, 3)."""
        made = [self.world.tokenizer.decode(some[:, None], {}) for some in tokens_BHW.split(DECODED)]
        return torch.cat(made).permute(0, 1, 3, 4, 2)


def _groups(moves: Sequence[_Move]) -> list[list[_Move]]:
    """Moves that one plan serves."""
    groups: dict[tuple[How, Sampling], list[_Move]] = {}
    for move in moves:
        groups.setdefault((move.how, move.session.sampling), []).append(move)
    return [*groups.values()]


def play_alone(
    world: World,
    prompt: str | VideoArray | Tensor,
    actions: Sequence[Any] | None,
    how: tuple[str | Schedule | Order, Sampling | None, int],
    context: str | None,
) -> LiveSession:
    """A session with an arena of its own, which closes with it."""
    schedule, sampling, seed = how
    return Arena(world, 1, context)._play(prompt, actions, Order.of(schedule), sampling, (seed, True))
