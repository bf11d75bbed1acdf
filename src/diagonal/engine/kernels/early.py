"""Kernels that are started while the one before them in their stream still ends: programmatic dependent launch.

The programs of such a kernel may be there before the numbers are, so its first line waits for them. What is gained is
the time that starting takes, less than a microsecond each; a step has hundreds of kernels.

A kernel after which a product comes calls it before it waits itself: the product then reads weights meanwhile. Others
do not call: the many programs of attention, say, would crowd on the multiprocessors that are free first.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

try:
    from triton.language.extra.cuda import gdc_launch_dependents as call_next
    from triton.language.extra.cuda import gdc_wait as wait
except ImportError:  # an old Triton: nothing is early
    call_next = wait = None

__all__ = ["call_next", "early", "possible", "wait"]

HOPPER = 9


def possible(device: torch.device) -> bool:
    """Whether a device can start kernels early: NVIDIA's, since Hopper."""
    nvidia = device.type == "cuda" and torch.version.cuda is not None
    return nvidia and torch.cuda.get_device_capability(device)[0] >= HOPPER


@functools.cache
def early(device: torch.device) -> dict[str, Any]:
    """How kernels whose first line is `if EARLY: wait()` are launched on a device."""
    return {"EARLY": True, "launch_pdl": True} if wait is not None and possible(device) else {"EARLY": False}
