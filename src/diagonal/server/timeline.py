"""The frames of a session as tokens, so that it can go on from any of them.

Going back feeds the newest frames before that point at once, as a start view is fed: it takes one call, whereas the
keys of a long session could be made again only frame by frame (`Snapshot`), which would keep everybody else waiting.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor

from diagonal.generation.snapshot import UNKNOWN, Snapshot


class Timeline:
    """Of one session. `most`: frames that are kept; `fed`: frames that it begins with when it goes back."""

    def __init__(self, begin: Snapshot, cells: int, most: int, fed: int) -> None:
        self._begin, self._cells, self._fed = begin, cells, fed
        self._units = deque((unit.int() for unit in begin.units_TU), maxlen=most)
        self.last = begin.frame  # number of the newest frame

    @property
    def first(self) -> int:
        """Number of the oldest frame that is kept."""
        return self.last - len(self._units) + 1

    def add(self, cells: Tensor, action: Tensor) -> None:
        """The ids of a new frame, and of the action that led to it."""
        self._units[-1][self._cells :] = action.int()
        after = torch.full((len(action),), UNKNOWN, dtype=torch.int32)
        self._units.append(torch.cat([cells.int(), after]))
        self.last += 1

    def at(self, frame: int) -> Snapshot:
        """What a session begins with that goes on from this frame."""
        self._check(frame)
        stop = frame - self.first + 1
        units = torch.stack([*islice(self._units, max(0, stop - self._fed), stop)]).long()
        units[-1, self._cells :] = UNKNOWN
        return replace(self._begin, frame=frame, units_TU=units, given=len(units), made=())

    def cut(self, frame: int) -> None:
        """Forget all frames after this one."""
        while self.last > frame:
            self._units.pop()
            self.last -= 1
        self._units[-1][self._cells :] = UNKNOWN

    def tokens(self, start: int, count: int) -> Tensor:
        """Ids (T, cells) of so many frames from the number `start` on."""
        self._check(start)
        self._check(start + count - 1)
        first = start - self.first
        return torch.stack([*islice(self._units, first, first + count)])[:, : self._cells].long()

    def actions(self) -> list[tuple[int, ...]]:
        """Ids of the actions between the frames that are kept."""
        return [tuple(unit[self._cells :].tolist()) for unit in islice(self._units, len(self._units) - 1)]

    def _check(self, frame: int) -> None:
        if not self.first <= frame <= self.last:
            raise ValueError(f"frame {frame} is not kept; those from {self.first} to {self.last} are")


def recent(saved: Snapshot, fed: int) -> Snapshot:
    """A snapshot with its newest frames alone, which are fed at once."""
    units = saved.units_TU[-fed:]
    return replace(saved, units_TU=units, given=len(units), made=())
