"""Frames by fixed-point iteration: the tokens of raster, in windows of many cells (`planning.decoding.lossless`).

A call feeds a window of each sample's frame: the first cell that is not settled, whose token is right but whose key is
not there, and drafts behind it. Every cell of the window is sampled again. Those that were fed as they were sampled are
right up to the first difference, and so is the one that differs: it was sampled behind right ones. So the window moves
on by one at least. Slots are positions: what was fed for a draft is written over when its cell is fed again.

How far the windows came is the only thing the host asks for. On a GPU it hears of it a call later, so that the device
never waits; a frame may take a call more for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from diagonal.engine.kernels.live import LiveWindow
from diagonal.engine.tokens.rejection import Rejection
from diagonal.engine.tokens.ring import Ring, RingFrames
from diagonal.engine.transfers import on_host
from diagonal.planning.decoding import DEFAULT
from diagonal.planning.decoding.lossless import Lossless
from diagonal.planning.frames import FramePlan, frame_plan
from diagonal.planning.plan import Order
from diagonal.planning.windows import WindowRule

# What one more input of a call takes, in calls of one input (docs/lossless.md has the measurements).
INPUT_COST = {"cpu": 0.17, "cuda": 0.005}


class FixedPoint:
    """The windows of the frames that so many samples decode under one plan. Tensors stay where they are, so calls can
    be captured."""

    def __init__(self, plan: FramePlan, ring: Ring, batch: int, call_inputs: int | None = None) -> None:
        schedule = plan.order.schedule
        assert isinstance(schedule, Lossless), f"{plan.order} is not lossless"
        self._call_inputs = call_inputs  # the same for every call; None: as many as are chosen
        self.frames = RingFrames(plan, ring, batch)
        first = -plan.suffix if plan.chooses else 0
        next_B = torch.zeros(batch, dtype=torch.long, device=ring.device)
        self.window = LiveWindow(next_B, first, plan.grid.frame_tokens - 1)
        cost = INPUT_COST.get(ring.device.type, 0.0)
        self.rule = WindowRule(schedule.window, cost * batch / (1 - cost + cost * batch))
        rule = schedule.rule or "equal"
        self.rejection = None if rule == "equal" else Rejection(rule, self.window)
        self._plan, self._ring, self._draft = plan, ring, schedule.draft or "previous_frame"
        grid = plan.grid
        self.drafting = (
            None
            if self._draft != "diagonal"
            else frame_plan(grid.rows, grid.cols, plan.suffix, Order.of(DEFAULT), plan.chooses)
        )
        self._sampled_B = torch.zeros_like(next_B)  # the last cell that was sampled, or drafted by something better

    @property
    def most(self) -> int:
        """Inputs of a call that feeds a whole frame."""
        return self.window.last + 1 + self._plan.suffix

    def begin(self, ids_2L: Tensor) -> None:
        """Before the first call: the drafts of a frame."""
        self._start()
        frame, tokens_NL, plan = self.frames.frame, self._ring.tokens_NL, self._plan
        rows_B1 = frame.rows_B[:, None]
        if plan.chooses:
            slots_BS = frame.place(torch.arange(-plan.suffix, 0, device=tokens_NL.device))
            tokens_NL[rows_B1, slots_BS] = ids_2L[0][slots_BS]
        if self._draft == "previous_frame":
            cells_C = torch.arange(plan.grid.frame_tokens, device=tokens_NL.device)
            before_BC = frame.place(cells_C - frame.unit)
            tokens_NL[rows_B1, frame.place(cells_C)] = tokens_NL[rows_B1, before_BC]

    def known(self, call: Callable[[int], None]) -> int:
        """Feed the cells of a frame that is known; gives the calls."""
        self._start()
        inputs = self._call_inputs or self.most
        calls = -(-self.most // inputs)
        for _ in range(calls):
            call(inputs)
        return calls

    def decode(self, call: Callable[[int], None], seats: int) -> int:
        """Decode the frames of the first `seats` samples by calls of so many inputs; gives the number of calls."""
        window, calls = self.window, 0
        looks = _Looks(window.next_B, seats)
        fed_before = 0 if self._plan.chooses else self._plan.suffix  # inputs of the first call that sample nothing
        settled = [window.first - 1] * seats  # as far as the host has heard
        while min(settled) < window.last:
            before = fed_before if calls == 0 else 0
            chosen = (
                self.rule.choose(window.last - min(settled))
                if self._call_inputs is None
                else self._call_inputs - before
            )
            inputs = chosen + before
            self._extend(inputs)
            call(inputs)
            calls += 1
            looks.add(chosen)
            while (look := looks.take()) is not None:
                self._note(look, settled)
                settled = look.settled
        return calls

    def _start(self) -> None:
        self.window.next_B.fill_(-self._plan.suffix - 1)
        self._sampled_B.fill_(self.window.first - 1)
        if self.rejection is not None:
            self.rejection.begin()

    def _note(self, look: _Look, before: list[int]) -> None:
        """What a call has shown of how many drafts are right."""
        for old, new in zip(before, look.settled, strict=True):
            old = max(old, self.window.first - 1)
            if old < self.window.last:
                self.rule.note(min(look.window, self.window.last - old), new - old)

    def _extend(self, inputs: int) -> None:
        """Drafts that follow from the newest cells, for cells that were not sampled yet."""
        if self._draft not in ("above", "repeat"):
            return
        frame, tokens_NL, cols = self.frames.frame, self._ring.tokens_NL, self._plan.grid.cols
        cells_C = torch.arange(self._plan.grid.frame_tokens, device=tokens_NL.device)
        newest_B1 = self._sampled_B[:, None]
        source_BC = newest_B1.expand(-1, len(cells_C))
        if self._draft == "above":
            above_BC = cells_C - cols * ((cells_C - newest_B1 + cols - 1) // cols)
            source_BC = torch.where(above_BC >= 0, above_BC, source_BC)
        source_BC = torch.where(source_BC < 0, -self._plan.suffix - 1, source_BC)  # nothing sampled: the last cell
        rows_B1, slots_BC = frame.rows_B[:, None], frame.place(cells_C)
        drafts_BC = tokens_NL[rows_B1, frame.place(source_BC)]
        tokens_NL[rows_B1, slots_BC] = torch.where(cells_C > newest_B1, drafts_BC, tokens_NL[rows_B1, slots_BC])
        reached_B = (self.window.next_B + inputs).clamp(max=self.window.last)
        self._sampled_B.copy_(torch.maximum(self._sampled_B, reached_B))


class _Look(NamedTuple):
    """How far each sample was after a call."""

    settled: list[int]
    window: int  # of the call


class _Looks:
    """What the host hears of the device, in order; of a GPU a call later."""

    def __init__(self, next_B: Tensor, seats: int) -> None:
        self._next_B, self._seats, self._cuda = next_B, seats, next_B.is_cuda
        self._sent: deque[tuple[Tensor, int, torch.cuda.Event | None]] = deque()

    def add(self, window: int) -> None:
        """After a call."""
        if not self._cuda:
            self._sent.append((self._next_B.clone(), window, None))
            return
        copied, event = on_host(self._next_B), torch.cuda.Event()
        event.record()
        self._sent.append((copied, window, event))

    def take(self) -> _Look | None:
        """The oldest that need not be waited for."""
        if len(self._sent) <= self._cuda:
            return None
        next_B, window, event = self._sent.popleft()
        if event is not None:
            event.synchronize()
        return _Look(next_B.tolist()[: self._seats], window)
