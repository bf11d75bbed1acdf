"""Recorded gameplay, whatever world it is of: frames, actions, episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a recording."""

    frames_NHWC: Tensor  # uint8
    actions_NA: Tensor  # ids, counted from 0
    episodes_N: Tensor
