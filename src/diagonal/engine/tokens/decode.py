"""The decode loop, the same for every model and every schedule.

`decode` runs one plan and yields each frame the moment its last cell is known. `rollout` runs as many plans as
a video longer than the model's window needs: each keeps the newest frames of the one before as its prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from diagonal.engine.tokens.runner import Runner
from diagonal.planning.grid import Layout
from diagonal.planning.plan import Order, Plan, make_plan

# cuDNN makes a plan for every new number of keys, which costs more than the step: 65 ms (docs/log).
KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@dataclass(frozen=True, slots=True)
class Frame:
    """A decoded frame: its index in the video, its token ids (B, rows, cols), and those of the action (B, suffix) that
    led to it."""

    index: int
    tokens: Tensor
    action: Tensor


def decode(
    runner: Runner, plan: Plan, tokens_BL: Tensor, on_step: Callable[[], object] = lambda: None, start: int = 0
) -> Iterator[Frame]:
    """Fill in the unknown cells of `tokens_BL` step by step; the known ones must be there already. The first has
    position `start` of the video."""
    grid, tokens = plan.layout.grid, runner.begin(plan, tokens_BL, start)
    for index, done in enumerate(_finished(plan)):
        with torch.inference_mode(), sdpa_kernel(KERNELS):
            runner.step(index)
        on_step()
        for frame in done:
            cells = tokens[:, plan.layout.frame(frame)]
            action = tokens[:, plan.layout.after(frame - 1) if frame else slice(0)]
            yield Frame(frame, cells.reshape(-1, grid.rows, grid.cols).clone(), action.clone())
    if tokens is not tokens_BL:
        tokens_BL.copy_(tokens)


def _finished(plan: Plan) -> Iterator[list[int]]:
    """For each step, the frames that it completes."""
    completed = plan.completed
    for index in range(len(plan.steps)):
        yield [plan.known + int(frame) for frame in np.flatnonzero(completed == index)]


@dataclass(frozen=True, slots=True)
class Span:
    """One window of a longer video: frames [start, stop), of which the first `known` are given."""

    start: int
    stop: int
    known: int


def spans(frames: int, known: int, window: int, reference: int) -> list[Span]:
    """The windows that generate `frames` frames after `known`; each next one keeps `reference` frames.

    MineWorld's rule: when the window is full, only the newest reference frames stay and are prefilled again.
    """
    if not 1 <= reference < window:
        raise ValueError(f"{reference} reference frames given; a window of {window} can keep 1 to {window - 1}")
    total = known + frames
    start = max(0, known - reference) if known >= window else 0
    result = [Span(start, min(start + window, total), known - start)]
    while result[-1].stop < total:
        start = result[-1].stop - reference
        result.append(Span(start, min(start + window, total), reference))
    return result


@dataclass(frozen=True, slots=True)
class Video:
    """A whole video's tokens, part of them given: `prefix_BP`, then `units_BTU` (frame and suffix, per frame)."""

    layout: Layout  # of the whole video, however long
    prefix_BP: Tensor
    units_BTU: Tensor


def plans(layout: Layout, windows: list[Span], order: Order, acts: int | None = None) -> list[Plan]:
    """One plan per window; windows of the same shape share theirs. `acts`: frames of the video with a given action."""
    result = []
    for span in windows:
        frames = span.stop - span.start
        # Actions that an earlier window decoded are known in this one.
        given = frames - 1 if acts is None else min(max(acts - span.start, span.known - 1), frames - 1)
        window = replace(layout, grid=replace(layout.grid, frames=frames))
        result.append(_plan(window, order, span.known, given))
    return result


@lru_cache(maxsize=16)
def _plan(layout: Layout, order: Order, known: int, acts: int) -> Plan:
    """The same plan for the same question: what was captured for it can be used again."""
    return make_plan(layout, order, known, acts)


def rollout(
    runner: Runner, video: Video, windows: list[tuple[Span, Plan]], on_step: Callable[[], object] = lambda: None
) -> Iterator[Frame]:
    """Decode window after window, writing the new frames into `video.units_BTU`."""
    cells = video.layout.grid.frame_tokens
    for span, plan in windows:
        units = video.units_BTU[:, span.start : span.stop]
        tokens = torch.cat([video.prefix_BP, units.flatten(1)], dim=1)
        for frame in decode(runner, plan, tokens, on_step, span.start * video.layout.unit):
            index = span.start + frame.index
            video.units_BTU[:, index, :cells] = frame.tokens.flatten(1)
            if index:
                video.units_BTU[:, index - 1, cells:] = frame.action
            yield Frame(index, frame.tokens, frame.action)
