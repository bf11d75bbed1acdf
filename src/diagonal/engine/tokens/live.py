"""Live decoding: a frame at a time, of several videos at once, so that the next action may come after a frame was seen.

A video has a seat: a row of the cache and of the tokens, which are rings of frames. Frames under one schedule have one
plan (`planning.frames`), so a step serves all seats that decode a frame at the same time. What differs between them is
where their frame lies in the ring, its number and their seed: a few numbers a seat, on the device (`LiveFrame`). So a
captured step serves all frames of all seats, whoever has them.

When the ring is full there are two ways to go on:

- `Turn.next` rolls: the frame takes the place of the oldest one, and positions are counted on. Nothing is fed again.
  Keys of the frames that stay were made when they saw frames that have left. It is for models that look at differences
  of positions alone.
- `LiveDecoder.refill` feeds the newest frames again from position 0, as `decode.rollout` does.

What is summed in which order depends on the number of inputs of a call. A strict decoder gives every call as many, for
as many samples, so that a token depends on nothing but what came before it: see docs/lossless.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from diagonal.engine.kernels import select
from diagonal.engine.kernels.live import LiveStep
from diagonal.engine.kernels.targets import Targets
from diagonal.engine.sampler import Sampler, draw_into
from diagonal.engine.tokens.cache import CacheStep
from diagonal.engine.tokens.captures import Captures
from diagonal.engine.tokens.decode import KERNELS, Frame, Span, Video
from diagonal.engine.tokens.graphs import DeviceStep, padded
from diagonal.engine.tokens.lossless import FixedPoint
from diagonal.engine.tokens.protocols import TokenModel
from diagonal.engine.tokens.ring import Ring, RingFrames, Turn
from diagonal.engine.transfers import sent
from diagonal.planning.decoding.lossless import Lossless
from diagonal.planning.frames import UNUSED, FramePlan, frame_plan
from diagonal.planning.grid import IntArray, Layout
from diagonal.planning.plan import Plan
from diagonal.planning.sampling import Sampling

# Seats that captured steps are made for: fewer are filled up with a row that nobody has.
SEATS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True, slots=True)
class _Table:
    """The steps of a frame that have one width, and which of them comes next."""

    rows: Tensor
    cursor: Tensor
    width: int


@dataclass(frozen=True, slots=True)
class _Tables:
    """All steps of a frame, by width."""

    by_width: dict[int, _Table]
    cursors: Tensor  # of all of them


@dataclass(frozen=True, slots=True)
class LiveKind:
    """What a decoder with its ring is made for."""

    model: TokenModel
    layout: Layout  # its frames are the places of the ring
    seats: int
    device: torch.device
    dtype: torch.dtype  # of the cache
    call_inputs: int | None = None  # the same for every call; None: as many as a step has

    def make(self, prefix_ids: Sequence[int], ids_U2: Tensor) -> LiveDecoder:
        """A decoder with an empty ring."""
        ring = Ring(self.model, self.layout, self.seats, self.device, self.dtype, spare=self.call_inputs is not None)
        return LiveDecoder(self.model, ring, prefix_ids, ids_U2, self.call_inputs)


class LiveDecoder:
    """Decodes frames of the videos in a ring. Every step is captured when it is first met."""

    def __init__(
        self, model: TokenModel, ring: Ring, prefix_ids: Sequence[int], ids_U2: Tensor, call_inputs: int | None = None
    ) -> None:
        self.model, self.ring, self._call_inputs = model, ring, call_inputs
        self.captures = Captures(model, ring.device)
        self._padded = select.available(ring.device)  # to be captured; a CPU needs no alike steps, and every row costs
        slots = torch.arange(ring.tokens_NL.shape[1], device=ring.device)
        self._ids_2L = ids_U2[(slots - ring.layout.prefix) % len(ids_U2)].t().contiguous()
        ring.tokens_NL[:, : len(prefix_ids)] = torch.tensor(prefix_ids, dtype=torch.long, device=ring.device)
        self._tables: dict[FramePlan, _Tables] = {}
        self._frames: dict[tuple[FramePlan, int], RingFrames] = {}
        self._fixed: dict[tuple[FramePlan, int], FixedPoint] = {}

    def begin(self, row: int, units_TU: Tensor) -> None:
        """Feed the first frames of a row, with what follows each but the last, all but what the next frame feeds
        itself: the last cell, and the action after it."""
        layout, count = self.ring.layout, len(units_TU)
        self.ring.units(row, 0, count).copy_(units_TU)
        fed = layout.frame(count - 1).stop - 1
        slots = torch.arange(fed, device=self.ring.device)
        memory = CacheStep(self.ring.cache.row(row), slots, fed, raster=True)
        with torch.inference_mode(), sdpa_kernel(KERNELS):
            self.model(self.ring.tokens_NL[row : row + 1, :fed], slots, memory, slots[-1:])

    def refill(self, turn: Turn, count: int) -> Turn:
        """Feed the newest frames of a full ring again, from its first place and position 0 on."""
        places = self.ring.layout.grid.frames
        assert turn.place == places - 1, "places of a ring that is filled again are in the order of its frames"
        self.begin(turn.row, self.ring.units(turn.row, places - count, count).clone())
        return replace(turn, place=count - 1, position=count - 1, filled=count)

    def act(self, turns: Sequence[Turn], ids_BA: Tensor) -> None:
        """Write the actions that lead to these frames."""
        rows_B1, _, after_BA = self._places(turns)
        self.ring.tokens_NL[rows_B1, after_BA] = sent(ids_BA, self.ring.device)

    def decode(
        self,
        plan: FramePlan,
        sampling: Sampling,
        turns: Sequence[Turn],
        units_BU: Tensor | None = None,
        on_call: Callable[[], object] = lambda: None,
    ) -> int:
        """Decode a frame of each of these seats, into the ring, and give the number of model calls. With `units_BU` its
        tokens are known, and the calls only make its keys and values: as they were when these tokens were decoded."""
        ring, cells = self.ring, self.ring.layout.grid.frame_tokens
        if units_BU is not None:
            for turn, unit_U in zip(turns, units_BU, strict=True):
                ring.units(turn.row, turn.place, 1)[0, :cells] = unit_U[:cells]
        self.captures.begin()
        with torch.inference_mode(), sdpa_kernel(KERNELS):
            if isinstance(plan.order.schedule, Lossless):
                return self._iterate(plan, sampling, turns, units_BU is not None, on_call)
            frames, tables = self._set_up(plan, self._size(len(turns)))
            self._take_up(frames, turns, units_BU is not None)
            tables.cursors.zero_()
            for step in plan.steps:
                self._step(tables.by_width[self._width(len(step.read))], frames, sampling)
                on_call()
        return len(plan.steps)

    def forget(self) -> None:
        """Choose windows of lossless schedules as if none had been seen yet."""
        for fixed in self._fixed.values():
            fixed.rule.forget()

    def made(self, turns: Sequence[Turn]) -> tuple[Tensor, Tensor]:
        """Copies of the frames (B, rows, cols) that were decoded, and of the actions (B, suffix) that led to them."""
        rows_B1, own_BC, after_BA = self._places(turns)
        grid, tokens_NL = self.ring.layout.grid, self.ring.tokens_NL
        return tokens_NL[rows_B1, own_BC].view(-1, grid.rows, grid.cols), tokens_NL[rows_B1, after_BA]

    def _places(self, turns: Sequence[Turn]) -> tuple[Tensor, Tensor, Tensor]:
        """Rows (B, 1) of these frames, the slots of their cells, and those of the actions that led to them."""
        layout, grid, device = self.ring.layout, self.ring.layout.grid, self.ring.device
        turned = [
            (turn.row, layout.frame(turn.place).start, layout.after((turn.place - 1) % grid.frames).start)
            for turn in turns
        ]
        rows_B1, own_B1, after_B1 = sent(turned, device, torch.long).t()[:, :, None]
        cells, suffix = (torch.arange(size, device=device) for size in (grid.frame_tokens, layout.suffix))
        return rows_B1, own_B1 + cells, after_B1 + suffix

    def _iterate(
        self, plan: FramePlan, sampling: Sampling, turns: Sequence[Turn], known: bool, on_call: Callable[[], object]
    ) -> int:
        """`decode` under a lossless plan."""
        kind = plan, self._size(len(turns))
        if kind not in self._fixed:
            self._fixed[kind] = FixedPoint(plan, self.ring, kind[1], self._call_inputs)
        fixed = self._fixed[kind]

        def call(inputs: int) -> None:
            if fixed.rejection is not None and not known:
                self._reject(fixed, inputs, sampling)
            else:
                self.captures.run((id(fixed), inputs, sampling), lambda: self._window(fixed, inputs, sampling))
            on_call()

        calls = 0
        if fixed.drafting is not None and not known:
            calls = self.decode(fixed.drafting, sampling, turns, None, on_call)
        self._take_up(fixed.frames, turns, known)
        if known:
            return fixed.known(call)
        fixed.begin(self._ids_2L)
        return calls + fixed.decode(call, len(turns))

    def _set_up(self, plan: FramePlan, batch: int) -> tuple[RingFrames, _Tables]:
        if plan not in self._tables:
            self._tables[plan] = self._upload(plan)
        if (plan, batch) not in self._frames:
            self._frames[plan, batch] = RingFrames(plan, self.ring, batch)
        return self._frames[plan, batch], self._tables[plan]

    def _take_up(self, frames: RingFrames, turns: Sequence[Turn], known: bool) -> None:
        """Turn to the frames of these seats, filled up with nobody's; tokens that are known are not written."""
        nobody = self.ring.nobody
        spare = [replace(turns[0], row=nobody)] * (self._size(len(turns)) - len(turns))
        written = [nobody if known else turn.row for turn in turns] + [nobody] * len(spare)
        frames.set([*turns, *spare], self.ring.layout, written)

    def _upload(self, plan: FramePlan) -> _Tables:
        """The steps of a plan by width: what is read, slots, where outputs go, and the number of the step. Padding
        repeats the first input, whose output nobody asks for."""
        groups: dict[int, list[IntArray]] = {}
        for index, step in enumerate(plan.steps):
            width = self._width(len(step.read))
            fill = width - len(step.read)
            parts = [np.pad(part, (0, fill), constant_values=part[0]) for part in (step.read, step.slot)]
            parts.append(np.pad(step.write, (0, fill), constant_values=UNUSED))
            groups.setdefault(width, []).append(np.concatenate([*parts, [index]]))
        device = self.ring.device
        cursors = torch.zeros(len(groups), 2, dtype=torch.long, device=device)
        tables = {
            width: _Table(torch.from_numpy(np.stack(rows)).to(device), cursor, width)
            for cursor, (width, rows) in zip(cursors, groups.items(), strict=True)
        }
        return _Tables(tables, cursors)

    def _width(self, inputs: int) -> int:
        if self._call_inputs is not None:
            return -(-inputs // self._call_inputs) * self._call_inputs
        return padded(inputs) if self._padded else inputs

    def _size(self, seats: int) -> int:
        """Samples of a step for so many seats."""
        if self._call_inputs is not None:
            return self.ring.seats
        return min(next((size for size in SEATS if size >= seats), seats), self.ring.seats) if self._padded else seats

    def _step(self, table: _Table, frames: RingFrames, sampling: Sampling) -> None:
        kind = (id(table), id(frames), sampling)
        self.captures.run(kind, lambda: self._run(table, frames, sampling))

    def _run(self, table: _Table, frames: RingFrames, sampling: Sampling) -> None:
        """What is captured: everything that happens in a step."""
        step = select.live_step(table.rows, table.cursor, frames.frame, self.ring.tokens_NL, table.width)
        draw_into(self.ring.tokens_NL, self._logits(step), self._targets(step, frames), sampling)

    def _window(self, fixed: FixedPoint, inputs: int, sampling: Sampling) -> None:
        """The same for a window."""
        frames, tokens_NL = fixed.frames, self.ring.tokens_NL
        step = select.live_window(frames.frame, fixed.window, tokens_NL, inputs)
        draw_into(tokens_NL, self._logits(step), self._targets(step, frames), sampling)
        select.settle(frames.frame, fixed.window, step, tokens_NL)

    def _reject(self, fixed: FixedPoint, inputs: int, sampling: Sampling) -> None:
        """The same where coins decide which drafts are right; never captured."""
        assert fixed.rejection is not None
        frames, tokens_NL = fixed.frames, self.ring.tokens_NL
        step = select.live_window(frames.frame, fixed.window, tokens_NL, inputs)
        fixed.rejection.settle(tokens_NL, self._logits(step), step, self._targets(step, frames), sampling)

    def _logits(self, step: LiveStep) -> Tensor:
        memory = DeviceStep(self.ring.cache, step.slots_BS, step.seen, select.decode_attention)
        return self.model(step.tokens_BS, step.positions_BS, memory)

    def _targets(self, step: LiveStep, frames: RingFrames) -> Targets:
        return Targets(step.write_BS, step.noise_BS, frames.seeds_B, self._ids_2L, frames.written_B)


def live_rollout(
    decoder: LiveDecoder,
    video: Video,
    windows: Sequence[tuple[Span, Plan]],
    sampler: Sampler,
    on_call: Callable[[], object] = lambda: None,
) -> Iterator[Frame]:
    """`decode.rollout` in a ring, a frame at a time: for schedules whose calls are not known ahead."""
    grid, suffix, seeds = video.layout.grid, video.layout.suffix, sampler.seeds_B.tolist()
    decoder.forget()
    for span, plan in windows:
        for row, units_TU in enumerate(video.units_BTU[:, span.start : span.start + span.known]):
            decoder.begin(row, units_TU)
        newest = span.known - 1
        turns = [Turn(row, seed, span.start + newest, newest, newest, span.known) for row, seed in enumerate(seeds)]
        for index in range(span.start + span.known, span.stop):
            turns = [turn.next(decoder.ring.layout.grid.frames) for turn in turns]
            chooses = suffix > 0 and index - span.start > plan.acts
            if suffix and not chooses:
                decoder.act(turns, video.units_BTU[:, index - 1, grid.frame_tokens :])
            frame = frame_plan(grid.rows, grid.cols, suffix, plan.order, chooses)
            decoder.decode(frame, sampler.sampling, turns, None, on_call)
            made = Frame(index, *decoder.made(turns))
            video.units_BTU[:, index, : grid.frame_tokens] = made.tokens.flatten(1)
            video.units_BTU[:, index - 1, grid.frame_tokens :] = made.action
            yield made
