"""What kernels are to fetch for those after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from diagonal.engine.kernels import cuda


@dataclass(frozen=True)
class Layer:
    """What has weights."""

    weight: Tensor


def lines(weights: Sequence[Tensor | None], limit: int) -> list[int]:
    """Addresses of all of it, in their order."""
    found = []
    for one in cuda.ahead(weights, limit):
        starts = (one.start + segment * one.stride for segment in range(one.segments))
        found += [start + line * cuda.LINE for start in starts for line in range(one.lines)]
    return sorted(found)
