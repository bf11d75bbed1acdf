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

__all__ = ["early", "wait"]

HOPPER = 9


@functools.cache
def early(device: torch.device) -> dict[str, Any]:
    """How kernels whose first line is `if EARLY: wait()` are launched on a device."""
    nvidia = device.type == "cuda" and torch.version.cuda is not None
    able = wait is not None and nvidia and torch.cuda.get_device_capability(device)[0] >= HOPPER
    return {"EARLY": True, "launch_pdl": True} if able else {"EARLY": False}
