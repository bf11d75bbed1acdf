"""A checkpoint's tensors by name: in memory, or still in their files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

State = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class InFile:
    """A tensor in a safetensors file, of which parts can be read: `one[3:5, :2]`."""

    file: Any  # open
    key: str
    shape: torch.Size
    dtype: torch.dtype

    def __getitem__(self, index: tuple[slice, ...]) -> Tensor:
        part: Tensor = self.file.get_slice(self.key)[index]
        return part

    def whole(self) -> Tensor:
        """Read it all."""
        tensor: Tensor = self.file.get_tensor(self.key)
        return tensor


Stored = Tensor | InFile


def whole(stored: Stored) -> Tensor:
    """A tensor in memory."""
    return stored if isinstance(stored, Tensor) else stored.whole()


def some(items: list[str], most: int = 4) -> str:
    """The first few of a list, for messages."""
    return ", ".join(items[:most]) + (f", and {len(items) - most} more" if len(items) > most else "")
