"""Rings of frames: where the newest frames of several videos lie, as keys and values and as tokens.

A video has a row of the ring. What differs from row to row while a frame is decoded are a few numbers on the device
(`RingFrames`), so that a captured step serves all frames of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from diagonal.engine.kernels.live import LiveFrame
from diagonal.engine.tokens.cache import KVCache
from diagonal.engine.tokens.protocols import TokenModel
from diagonal.engine.transfers import sent
from diagonal.planning.frames import FramePlan
from diagonal.planning.grid import Layout


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


class Ring:
    """The newest frames of several videos: keys and values, and tokens. The last row of tokens belongs to nobody."""

    def __init__(
        self,
        model: TokenModel,
        layout: Layout,
        seats: int,
        device: torch.device,
        dtype: torch.dtype,
        spare: bool = False,  # a row to fill up with, as captured steps need one
    ) -> None:
        self.layout, self.seats = layout, seats  # layout.grid.frames is the number of places
        rows = seats + 1 if (spare or device.type == "cuda") and seats > 1 else seats
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


class RingFrames:
    """What the steps of a frame read on the device, for frames of so many samples."""

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
