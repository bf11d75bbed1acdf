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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from diagonal.engine.kernels import select
from diagonal.engine.kernels.live import LiveFrame
from diagonal.engine.kernels.targets import Targets
from diagonal.engine.sampler import draw_into
from diagonal.engine.tokens.cache import CacheStep, KVCache
from diagonal.engine.tokens.captures import Captures
from diagonal.engine.tokens.decode import KERNELS
from diagonal.engine.tokens.graphs import DeviceStep, padded
from diagonal.engine.tokens.protocols import TokenModel
from diagonal.engine.transfers import sent
from diagonal.planning.frames import UNUSED, FramePlan
from diagonal.planning.grid import IntArray, Layout
from diagonal.planning.sampling import Sampling

# Seats that captured steps are made for: fewer are filled up with a row that nobody has.
SEATS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True, slots=True)
class Turn:
    """A frame that a seat decodes, or has decoded last."""

    row: int  # of the cache and of the tokens
    seed: int
    frame: int  # its number in the video
    place: int  # of the ring
    position: int  # its number for the model
    filled: int  # places of the ring that are written, this one included

    def next(self, places: int) -> Turn:
        """The frame after it, on a ring of so many places."""
        place = (self.place + 1) % places
        filled = max(self.filled, place + 1)
        return replace(self, frame=self.frame + 1, place=place, position=self.position + 1, filled=filled)


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


class _Frames:
    """What the steps of a plan read on the device, for frames of so many samples."""

    NUMBERS = 8  # of each sample: the rows of `state`

    def __init__(self, plan: FramePlan, ring: Ring, batch: int) -> None:
        device, layout = ring.device, ring.layout
        self.state = torch.zeros(self.NUMBERS, batch, dtype=torch.long, device=device)
        rows_B, own_B, before_B, position_B, video_B, filled_B, self.written_B, self.seeds_B = self.state
        fed_U2 = torch.from_numpy(plan.fed).to(device)
        places, slots = layout.grid.frames, ring.cache.length
        self.frame = LiveFrame(
            rows_B, own_B, before_B, position_B, video_B, filled_B, fed_U2, layout.prefix, layout.unit, places, slots
        )

    def set(self, turns: Sequence[Turn], layout: Layout, written: Sequence[int]) -> None:
        """Take up these frames; sampled tokens go to the rows `written`."""
        columns = [
            (
                *(turn.row, layout.frame(turn.place).start, layout.frame((turn.place - 1) % layout.grid.frames).start),
                *(layout.frame(turn.position).start, layout.frame(turn.frame).start, turn.filled, row, turn.seed),
            )
            for turn, row in zip(turns, written, strict=True)
        ]
        self.state.copy_(sent(columns, self.state.device, torch.long).t())


class Ring:
    """The newest frames of several videos: keys and values, and tokens. The last row of tokens belongs to nobody."""

    def __init__(self, model: TokenModel, layout: Layout, seats: int, device: torch.device, dtype: torch.dtype) -> None:
        self.layout, self.seats = layout, seats  # layout.grid.frames is the number of places
        rows = seats + 1 if device.type == "cuda" and seats > 1 else seats  # the last is for filling up
        self.cache = KVCache(model.cache_spec, rows, layout.length, device, dtype)
        self.tokens_NL = torch.zeros(seats + 1, self.cache.length + 1, dtype=torch.long, device=device)

    @property
    def device(self) -> torch.device:
        return self.tokens_NL.device

    @property
    def nobody(self) -> int:
        """The row of tokens that belongs to nobody."""
        return self.seats

    def units(self, row: int, first: int, count: int) -> Tensor:
        """Frames with what follows each (count, unit), of neighbouring places of a row: a view."""
        start = self.layout.frame(first).start
        return self.tokens_NL[row, start : start + count * self.layout.unit].view(count, self.layout.unit)

    def copy(self, row: int, other: Ring, source: int) -> None:
        """Take over all that another ring of this shape, or this one, has in a row."""
        for own, theirs in ((self.cache.k, other.cache.k), (self.cache.v, other.cache.v)):
            own[:, row].copy_(theirs[:, source])
        self.tokens_NL[row].copy_(other.tokens_NL[source])


class LiveDecoder:
    """Decodes frames of the videos in a ring. Every step is captured when it is first met."""

    def __init__(self, model: TokenModel, ring: Ring, prefix_ids: Sequence[int], ids_U2: Tensor) -> None:
        self.model, self.ring = model, ring
        self.captures = Captures(model, ring.device)
        self._padded = select.available(ring.device)  # to be captured; a CPU needs no alike steps, and every row costs
        slots = torch.arange(ring.tokens_NL.shape[1], device=ring.device)
        self._ids_2L = ids_U2[(slots - ring.layout.prefix) % len(ids_U2)].t().contiguous()
        ring.tokens_NL[:, : len(prefix_ids)] = torch.tensor(prefix_ids, dtype=torch.long, device=ring.device)
        self._tables: dict[FramePlan, _Tables] = {}
        self._frames: dict[tuple[FramePlan, int], _Frames] = {}

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
        self, plan: FramePlan, sampling: Sampling, turns: Sequence[Turn], units_BU: Tensor | None = None
    ) -> None:
        """Decode a frame of each of these seats, into the ring. With `units_BU` its tokens are known, and the steps
        only make its keys and values: as they were when these tokens were decoded."""
        ring, layout = self.ring, self.ring.layout
        written = [turn.row if units_BU is None else ring.nobody for turn in turns]
        padding = self._size(len(turns)) - len(turns)
        if units_BU is not None:
            for turn, unit_U in zip(turns, units_BU, strict=True):
                ring.units(turn.row, turn.place, 1)[0, : layout.grid.frame_tokens] = unit_U[: layout.grid.frame_tokens]
        spare = replace(turns[0], row=ring.nobody)
        frames = self._set_up(plan, len(turns) + padding)
        frames.set([*turns, *[spare] * padding], layout, [*written, *[ring.nobody] * padding])
        tables = self._tables[plan]
        tables.cursors.zero_()
        self.captures.begin()
        with torch.inference_mode(), sdpa_kernel(KERNELS):
            for step in plan.steps:
                self._step(tables.by_width[self._width(len(step.read))], frames, sampling)

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

    def _set_up(self, plan: FramePlan, batch: int) -> _Frames:
        if plan not in self._tables:
            self._tables[plan] = self._upload(plan)
        if (plan, batch) not in self._frames:
            self._frames[plan, batch] = _Frames(plan, self.ring, batch)
        return self._frames[plan, batch]

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
        return padded(inputs) if self._padded else inputs

    def _size(self, seats: int) -> int:
        """Samples of a step for so many seats."""
        return min(next((size for size in SEATS if size >= seats), seats), self.ring.seats) if self._padded else seats

    def _step(self, table: _Table, frames: _Frames, sampling: Sampling) -> None:
        kind = (id(table), id(frames), sampling)
        self.captures.run(kind, lambda: self._run(table, frames, sampling))

    def _run(self, table: _Table, frames: _Frames, sampling: Sampling) -> None:
        """What is captured: everything that happens in a step."""
        step = select.live_step(table.rows, table.cursor, frames.frame, self.ring.tokens_NL, table.width)
        memory = DeviceStep(self.ring.cache, step.slots_BS, step.seen, select.decode_attention)
        logits_BSV = self.model(step.tokens_BS, step.positions_BS, memory)
        targets = Targets(step.write_BS, step.noise_BS, frames.seeds_B, self._ids_2L, frames.written_B)
        draw_into(self.ring.tokens_NL, logits_BSV, targets, sampling)
