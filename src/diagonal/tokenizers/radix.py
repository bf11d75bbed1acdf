"""Ids of finite scalar quantisation: the mixed-radix number of a place's levels, the first channel the lowest digit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def number(digits_BC: Tensor, counts: Sequence[int]) -> Tensor:
    """Ids of whole digits along dimension 1; digit c counts from 0 to counts[c] - 1."""
    ids = torch.zeros_like(digits_BC[:, 0])
    for digit, count in reversed(list(zip(digits_BC.unbind(1), counts, strict=True))):
        ids = ids * count + digit
    return ids


def digits(ids: Tensor, counts: Sequence[int]) -> Tensor:
    """The digits of ids, along a new dimension 1."""
    found = []
    for count in counts:
        found.append(ids % count)
        ids = ids // count
    return torch.stack(found, dim=1)
