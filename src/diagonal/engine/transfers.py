"""Between the host and a device, without making either wait for the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def sent(numbers: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers of the host on a device. A GPU gets them in its turn: torch would wait for all that it has to do first,
    and then it has nothing to do."""
    here = torch.as_tensor(numbers, dtype=dtype)
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here.to(device)


def on_host(made: Tensor) -> Tensor:
    """A copy in the host's memory that nobody waits for."""
    return torch.empty(made.shape, dtype=made.dtype, pin_memory=True).copy_(made, non_blocking=True)
