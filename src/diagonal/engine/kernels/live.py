"""One step of frames that many samples decode together, each in a ring of its own: what a step takes and what it gives.

A cache row, and a row of tokens, hold a prefix and then a ring of places for one frame each, `unit` slots wide. All
samples are at the same step of their frames, so that one table of a frame's steps serves them all. Its numbers count
cells from the frame's first one; number n from -unit to -1 is cell n + unit of the frame before. Where these cells lie,
and which positions they have, differs from sample to sample: `LiveFrame` says it, `select.live_step` applies it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diagonal.engine.kernels.visibility import BLOCK, Visibility


@dataclass(frozen=True, slots=True)
class LiveFrame:
    """The frame that each of B samples decodes. Tensors are int64 on the device and may be updated in place."""

    rows_B: Tensor  # of the cache and of the tokens
    own_B: Tensor  # the slot of the frame's first cell
    before_B: Tensor  # that of the frame before, which may be behind it: it is a ring
    position_B: Tensor  # of the frame's first cell, as the model counts
    video_B: Tensor  # number of that cell in the video, on which the noise of sampling depends
    filled_B: Tensor  # places of the ring that are written, from the first one on, the frame's own with them
    fed_U2: Tensor  # (2 * unit,): the step that first feeds the cells -unit to unit - 1, negative: before this frame
    prefix: int  # slots in front of the ring
    unit: int  # slots of a place
    places: int  # of the ring
    unused: int  # the slot for tokens that nobody asked for, behind the slots of a cache row

    def __post_init__(self) -> None:
        batch = len(self.rows_B)
        of_samples = (self.rows_B, self.own_B, self.before_B, self.position_B, self.video_B, self.filled_B)
        given = [(tuple(one.shape), one.dtype) for one in (*of_samples, self.fed_U2)]
        if given != [((size,), torch.int64) for size in (*(batch,) * 6, 2 * self.unit)]:
            raise ValueError(
                f"a frame of {given} given; six tensors ({batch},) and one ({2 * self.unit},) of int64 are needed"
            )
        slots = self.prefix + self.places * self.unit
        if self.unused % BLOCK or self.unused < slots:
            raise ValueError(
                f"rows of {self.unused} slots given for a prefix of {self.prefix} and {self.places} places of "
                f"{self.unit}; give whole blocks of {BLOCK}, at least {slots} slots"
            )

    def place(self, numbers_S: Tensor) -> Tensor:
        """The slots (B, S) of cells of this frame and of the one before."""
        own_BS, before_BS = self.own_B[:, None] + numbers_S, (self.before_B + self.unit)[:, None] + numbers_S
        return torch.where(numbers_S < 0, before_BS, own_BS)

    def end(self) -> Tensor:
        """The slot (B,) behind the last place that is written."""
        return self.prefix + self.filled_B.clamp(max=self.places) * self.unit


@dataclass(frozen=True, slots=True)
class LiveWindow:
    """Where each sample is in a frame that is decoded in the order of its cells, and how far it goes.

    Cell n is sampled when cell n - 1 is fed, so a window of S inputs from `next_B` on samples the cells next + 1 to
    next + S. Each query sees what is in front of it, whatever was fed there.
    """

    next_B: Tensor  # int64: the number of the first cell whose key is not that of its right token; changed in place
    first: int  # the first number that is sampled: 0, or below it where the action before the frame is
    last: int  # of the frame: a sample is done when this one is its next


@dataclass(frozen=True, slots=True)
class LiveStep:
    """A step of a frame, for S inputs of each sample."""

    tokens_BS: Tensor  # to read
    slots_BS: Tensor  # of the cache row, to write (and, in a window, where its tokens were read)
    positions_BS: Tensor  # for the model
    write_BS: Tensor  # slots of the token row for what is sampled; `LiveFrame.unused` where nothing is
    noise_BS: Tensor  # numbers of these cells in the video; any where nothing is sampled
    seen: Visibility  # counted from the frame's first cell, with the cache rows of the samples
