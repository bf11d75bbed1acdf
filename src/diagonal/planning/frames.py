"""The plan of one frame, for videos whose next action comes only when a frame has been seen.

Under a schedule that completes frames one by one every frame is decoded by the same steps. `frame_plan` takes those of
a frame from a plan of a whole video and counts from the frame's first cell: n >= 0 is the n-th place of the frame's
unit, n < 0 the place n + unit of the frame before. Where in a cache these lie is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from diagonal.planning.grid import Grid, IntArray, Layout
from diagonal.planning.plan import NONE, Order, Plan, Step, make_plan

UNUSED = np.iinfo(np.int32).max  # where the output of an input goes that nobody samples
BEFORE = -1  # the step of what was fed while earlier frames were decoded
_FRAMES = 3  # one that is given, one like all others, and the one whose steps are taken


@dataclass(frozen=True, slots=True, eq=False)
class FramePlan:
    """The steps of one frame. Made by `frame_plan`. Plans are equal if they are the same object."""

    grid: Grid  # of one frame
    order: Order
    suffix: int
    chooses: bool  # the action that leads to the frame is decoded first
    steps: tuple[Step, ...]  # counted from the frame's first cell; an output that is not sampled goes to UNUSED
    fed: IntArray  # (2 * unit,): the step that first feeds each place, from -unit on; BEFORE, or NEVER

    @property
    def unit(self) -> int:
        """Places from the start of one frame to the start of the next."""
        return self.grid.frame_tokens + self.suffix


@lru_cache(maxsize=64)
def frame_plan(rows: int, cols: int, suffix: int, order: Order, chooses: bool = False) -> FramePlan:
    """The plan of every frame of a live video; `chooses`: the model decodes the action that leads to it, too."""
    layout = Layout(Grid(_FRAMES, rows, cols), suffix=suffix)
    plan = make_plan(layout, order, known=1, acts=_FRAMES - 2 if chooses else None)
    earlier, own = plan.times
    if own.min() <= earlier.max():
        raise ValueError(
            f"frames overlap in the schedule {order}, so the next action must be known before a frame is seen; leave "
            "out d (diagonal:k=1)"
        )
    first = int(own.min()) - (suffix if chooses else 0)
    base = (_FRAMES - 1) * layout.unit
    steps = tuple(_counted_from(base, step) for step in plan.steps[first:])
    least = min(int(step.read.min()) for step in steps)
    if least < -layout.unit:
        raise ValueError(
            f"the order {order} reads frame 0 for every frame, which a live video forgets; take the stand-in "
            "previous_frame or above"
        )
    return FramePlan(Grid(1, rows, cols), order, suffix, chooses, steps, _fed(plan, first, base))


def _counted_from(base: int, step: Step) -> Step:
    return Step(step.read - base, step.slot - base, np.where(step.write == NONE, UNUSED, step.write - base))


def _fed(plan: Plan, first: int, base: int) -> IntArray:
    """`FramePlan.fed` of the plan's last frame, whose steps begin with `first`."""
    fed = plan.first_fed[base - plan.layout.unit :]
    fed[fed < first] = BEFORE + first
    later = fed < len(plan.steps)
    fed[later] -= first
    assert later[: plan.layout.unit].all(), "a schedule that never feeds a cell would leave holes in later frames"
    return fed
