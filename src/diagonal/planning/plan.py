"""From an order to a plan: what is fed, where, and what is sampled, for every step.

A schedule says only *when* each cell is decoded. `make_plan` derives everything the engine and the training
mask need from that, for every schedule alike:

- a cell is predicted from its raster predecessor, fed at the predecessor's own position;
- where the predecessor is not decoded yet (the start of a row), a *stand-in* token is fed in its place;
- when the true token becomes known it is fed too and replaces the stand-in (*re-feeding*);
- where rows end with a constant token, that one is fed in time, and again when its row is complete: none stands in;
- given tokens (prompt, actions) are fed in the step that starts the frame after them; actions that the model chooses
  itself are decoded one by one between the frames.

Every fed input is an entry. Which entries an input sees follows from three numbers of each (`Entries.visible`).
No torch here: plans are plain numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from diagonal.planning.decoding import Schedule, parse, spec
from diagonal.planning.decoding.lossless import Lossless
from diagonal.planning.grid import BoolArray, Grid, IntArray, Layout

NONE = -1  # an input whose output is not sampled
NEVER = np.iinfo(np.int32).max  # a step that does not come


class StandIn(StrEnum):
    """What is fed where the predecessor is not decoded yet (target: cell (t, i, j))."""

    PREVIOUS_FRAME = "previous_frame"  # the target's own cell one frame back (section 3.2 of the paper)
    ABOVE = "above"  # the newest token of the row above (appendix D.1)
    PROMPT_FRAME = "prompt_frame"  # the predecessor's cell in frame 0 (MineWorld's released code)


@dataclass(frozen=True, slots=True)
class Order:
    """All that decides the order of decoding: the schedule and what happens at row starts."""

    schedule: Schedule
    stand_in: StandIn = StandIn.PREVIOUS_FRAME
    refeed: bool = True

    @classmethod
    def of(cls, value: str | Schedule | Order) -> Order:
        """An order from a schedule or from its text, with the default row starts."""
        if isinstance(value, Order):
            return value
        return cls(parse(value) if isinstance(value, str) else value)

    def __str__(self) -> str:
        extras = [] if self.stand_in is StandIn.PREVIOUS_FRAME else [str(self.stand_in)]
        return " ".join([spec(self.schedule), *extras, *([] if self.refeed else ["no re-feeding"])])


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the model: three vectors of equal length."""

    read: IntArray  # which token is the input, as a position in the sequence
    slot: IntArray  # the position it takes: its position embedding and its place in the cache
    write: IntArray  # where the sampled token goes, or NONE


@dataclass(frozen=True, slots=True)
class Entries:
    """Every input of a plan. True tokens come first, by position; stand-ins follow at the end.

    Fed all at once under `visible`, they give the same logits as the plan's steps one after the other:
    this is what makes training see exactly what decoding sees.
    """

    read: IntArray
    position: IntArray
    write: IntArray
    fed: IntArray  # the step in which it enters the cache
    until: IntArray  # the step in which another entry replaces it

    def __len__(self) -> int:
        return len(self.position)

    def padded(self, multiple: int) -> Entries:
        """The same entries, then idle ones up to a multiple of some number: fed after all others, so none sees them.

        Kernels that work in blocks want it: FlexAttention is 2.4 times as fast on whole blocks (docs/log).
        """
        idle = -len(self) % multiple

        def append(values: IntArray, value: int) -> IntArray:
            return np.concatenate([values, np.full(idle, value, dtype=values.dtype)])

        return Entries(
            read=append(self.read, 0),
            position=append(self.position, int(self.position.max())),
            write=append(self.write, NONE),
            fed=append(self.fed, int(self.fed.max()) + 1),
            until=append(self.until, NEVER),
        )

    def visible(self) -> BoolArray:
        """Dense mask, (queries, keys): position[k] <= position[q] and fed[k] <= fed[q] < until[k]."""
        before = self.position[None, :] <= self.position[:, None]
        inside = (self.fed[None, :] <= self.fed[:, None]) & (self.fed[:, None] < self.until[None, :])
        mask: BoolArray = before & inside
        return mask


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A layout decoded in a fixed order. Made by `make_plan`. Plans are equal if they are the same object."""

    layout: Layout
    order: Order
    known: int  # frames that are given, at the start
    acts: int  # frames whose suffix is given; later ones are decoded
    times: IntArray  # the step of every decoded cell, (frames - known, rows, cols)
    entries: Entries
    steps: tuple[Step, ...]

    @property
    def tokens(self) -> int:
        """Tokens that are decoded."""
        return int(self.times.size)

    @property
    def decoded(self) -> IntArray:
        """Tokens decoded in each step."""
        return np.bincount(self.times.ravel(), minlength=len(self.steps))

    @property
    def widths(self) -> IntArray:
        """Inputs fed in each step; the first includes the prompt."""
        return np.array([len(step.read) for step in self.steps])

    @property
    def speedup(self) -> float:
        """Steps of next-token prediction over steps of this plan."""
        return self.tokens / len(self.steps)

    @property
    def completed(self) -> IntArray:
        """The step that decodes the last cell of each decoded frame."""
        last: IntArray = self.times.reshape(len(self.times), -1).max(axis=1)
        return last

    @property
    def first_fed(self) -> IntArray:
        """The step that first writes each slot, NEVER for slots that stay empty."""
        first = np.full(self.layout.length, NEVER, dtype=np.int64)
        np.minimum.at(first, self.entries.position, self.entries.fed)
        return first


def make_plan(layout: Layout, order: str | Schedule | Order, known: int = 0, acts: int | None = None) -> Plan:
    """The plan that decodes all frames of `layout` after the first `known`, which are given.

    `acts` is the number of frames whose suffix (action) is given; None: all. The suffix of later frames is decoded
    token by token before the frame that follows it, so frames must not overlap in time.
    """
    grid, order = layout.grid, Order.of(order)
    if not 0 <= known < grid.frames:
        raise ValueError(f"{known} of {grid.frames} frames are known; 0 to {grid.frames - 1} can be")
    if layout.prefix == 0 and known == 0:
        raise ValueError("nothing comes before the first token; give a prefix of at least 1, or known frames")
    if order.stand_in is StandIn.PROMPT_FRAME and known == 0:
        raise ValueError("the stand-in prompt_frame needs a known frame; use previous_frame or above")
    if known == 0 and isinstance(order.schedule, Lossless) and order.schedule.draft == "previous_frame":
        raise ValueError("the draft previous_frame needs a known frame; use above, repeat or diagonal, or leave it out")
    acts = grid.frames - 1 if acts is None or not layout.suffix else min(acts, grid.frames - 1)
    if acts < max(0, known - 1):
        raise ValueError(f"the suffix of {acts} frames is given; {known} known frames need that of {known - 1}")
    times = _ranks(order.schedule, replace(layout.drawn, frames=grid.frames - known))
    times = _make_room(times, layout.suffix, known - acts)
    decoded = np.full(layout.length, NONE, dtype=np.int64)
    decoded[layout.positions()[known:, :, : layout.drawn.cols]] = times
    for frame in range(acts, grid.frames - 1):
        # The steps just before the next frame, one for each token.
        decoded[layout.after(frame)] = times[frame + 1 - known].min() - np.arange(layout.suffix, 0, -1)
    entries = _entries(layout, known, decoded, order)
    return Plan(layout, order, known, acts, times, entries, _steps(entries, int(times.max()) + 1))


def _make_room(times: IntArray, suffix: int, before_first: int) -> IntArray:
    """Times with `suffix` free steps before every frame whose action is decoded: the first has `before_first` (0 or 1)
    of them, or fewer than none where the first frames' actions are given."""
    frames = len(times)
    groups = np.maximum(0, np.arange(frames) + before_first)
    flat = times.reshape(frames, -1)
    overlaps = flat[1:].min(axis=1, initial=NEVER) <= flat[:-1].max(axis=1, initial=NONE)
    if (overlaps & (groups[1:] > 0)).any():
        raise ValueError(
            "frames overlap in this schedule, so every action must be known ahead; leave out d (diagonal:k=1), or give "
            "the actions"
        )
    shifted: IntArray = times + suffix * groups[:, None, None]
    return shifted


def _ranks(schedule: Schedule, grid: Grid) -> IntArray:
    """The schedule's times without gaps: a step that decodes nothing is never run."""
    times = schedule.times(grid)
    shape = (grid.frames, grid.rows, grid.cols)
    if times.shape != shape:
        raise ValueError(f"schedule {schedule} gave times of shape {times.shape} for a grid of {shape}")
    return np.unique(times, return_inverse=True)[1].reshape(shape).astype(np.int64)


def _entries(layout: Layout, known: int, decoded: IntArray, order: Order) -> Entries:
    """All inputs: each true token in the step that first needs it, and the stand-ins."""
    last_step = decoded.max()
    targets = np.flatnonzero(decoded != NONE)
    late = targets[decoded[targets - 1] >= decoded[targets]]  # the predecessor is not there in time
    ahead = _behind_open_rows(layout, decoded, targets) if order.refeed else targets[:0]
    direct = np.setdiff1d(targets, np.concatenate([late, ahead]), assume_unique=True)

    fed = _given_fed(layout, known, decoded)
    write = np.full(layout.length, NONE, dtype=np.int64)
    fed[direct - 1] = decoded[direct]
    write[direct - 1] = direct
    if order.refeed or layout.row_end:
        unfed = targets[fed[targets] == NEVER]
        fed[unfed] = decoded[unfed] + 1
    fed[ahead - 1] = decoded[ahead - 2] + 1

    true = np.flatnonzero(fed <= last_step)
    early = np.concatenate([late, ahead])
    # A stand-in stays until the true token of its position is fed.
    until = np.concatenate([np.full(len(true), NEVER), fed[early - 1]])
    return Entries(
        read=np.concatenate([true, _stand_ins(layout, decoded, late, order.stand_in), ahead - 1]),
        position=np.concatenate([true, early - 1]),
        write=np.concatenate([write[true], early]),
        fed=np.concatenate([fed[true], decoded[early]]),
        until=until,
    )


def _behind_open_rows(layout: Layout, decoded: IntArray, targets: IntArray) -> IntArray:
    """Targets whose predecessor ends a row that is not complete yet: its token is known, but not all that it sees."""
    if not layout.row_end:
        return targets[:0]
    ends = np.zeros(len(decoded), dtype=bool)
    ends[layout.positions()[:, :, -1]] = True
    behind = targets[ends[targets - 1]]
    result: IntArray = behind[decoded[behind - 2] >= decoded[behind]]
    return result


def _given_fed(layout: Layout, known: int, decoded: IntArray) -> IntArray:
    """When the prompt and the tokens given after each frame are fed: as the frame that follows them starts."""
    fed = np.full(layout.length, NEVER, dtype=np.int64)
    fed[: layout.frame(known).start][decoded[: layout.frame(known).start] == NONE] = 0
    cells = layout.positions()[:, :, : layout.drawn.cols]
    for frame in range(known, layout.grid.frames - 1):
        if layout.suffix and decoded[layout.after(frame).start] != NONE:
            continue
        start = decoded[cells[frame + 1]].min()
        fed[layout.after(frame)] = start
        last = layout.frame(frame).stop - 1
        if layout.suffix and decoded[last] < start:
            fed[last] = start
    return fed


def _stand_ins(layout: Layout, decoded: IntArray, late: IntArray, policy: StandIn) -> IntArray:
    """The token fed for each target in `late`, chosen by the policy."""
    cells, grid = layout.positions(), layout.grid
    reads = np.empty_like(late)
    for index, target in enumerate(late):
        t, offset = divmod(int(target) - layout.prefix, layout.unit)
        i, j = divmod(offset, grid.cols)
        if policy is StandIn.PROMPT_FRAME:
            reads[index] = cells[0].ravel()[offset - 1]  # offset 0 wraps to the frame's last cell
        elif t > 0 and (policy is StandIn.PREVIOUS_FRAME or i == 0):
            reads[index] = cells[t - 1, i, j]
        else:
            ready = np.flatnonzero(decoded[cells[t, i - 1]] < decoded[target])
            reads[index] = cells[t, i - 1, ready[-1]] if i and len(ready) else NONE
        if reads[index] == NONE or decoded[reads[index]] >= decoded[target]:
            raise ValueError(f"no stand-in {policy} for cell {(t, i, j)}: the schedule decodes nothing usable before")
    return reads


def _steps(entries: Entries, count: int) -> tuple[Step, ...]:
    """Entries grouped by the step that feeds them, in each step by position."""
    order = np.lexsort((entries.position, entries.fed))
    bounds = np.searchsorted(entries.fed[order], np.arange(1, count))
    groups = np.split(order, bounds)
    return tuple(Step(entries.read[g], entries.position[g], entries.write[g]) for g in groups)
