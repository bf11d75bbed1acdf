"""A checkpoint in memory: tensors by name."""

from __future__ import annotations

from torch import Tensor

State = dict[str, Tensor]


def some(items: list[str], most: int = 4) -> str:
    """The first few of a list, for messages."""
    return ", ".join(items[:most]) + (f", and {len(items) - most} more" if len(items) > most else "")
