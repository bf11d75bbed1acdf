"""Kernels that are started while the one before them in their stream still ends: programmatic dependent launch.

The programs of such a kernel may be there before the numbers are, so its first line waits for them. What is gained is
the time that starting takes, less than a microsecond each; a step has hundreds of kernels.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

try:
    from triton.language.extra.cuda import gdc_wait as wait
except ImportError:  # an old Triton: nothing is early
    wait = None

__all__ = ["early", "possible", "wait"]

HOPPER = 9


def possible(device: torch.device) -> bool:
    """Whether a device can start kernels early: NVIDIA's, since Hopper."""
    nvidia = device.type == "cuda" and torch.version.cuda is not None
    return nvidia and torch.cuda.get_device_capability(device)[0] >= HOPPER


@functools.cache
def early(device: torch.device) -> dict[str, Any]:
    """How kernels whose first line is `if EARLY: wait()` are launched on a device."""
    return {"EARLY": True, "launch_pdl": True} if wait is not None and possible(device) else {"EARLY": False}
