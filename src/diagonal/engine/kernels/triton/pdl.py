"""Programmatic dependent launch: a kernel starts while the one before it in its stream still ends.

Thread blocks of such a kernel may be there before its inputs are, so its first line waits for them. What is gained is
the launch latency, less than a microsecond each; a decode step has hundreds of kernels.

A kernel that is followed by a GEMM launches its dependents before it waits itself: the GEMM then loads weights
meanwhile. Others do not: the many thread blocks of attention, say, would crowd on the multiprocessors that are free
first.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from diagonal.engine.kernels.device import launches_early

try:
    from triton.language.extra.cuda import gdc_launch_dependents as launch_dependents
    from triton.language.extra.cuda import gdc_wait as wait
except ImportError:  # an old Triton: nothing is launched early
    launch_dependents = wait = None

__all__ = ["launch_dependents", "options", "wait"]


@functools.cache
def options(device: torch.device) -> dict[str, Any]:
    """Launch options of kernels whose first line is `if PDL: wait()`."""
    return {"PDL": True, "launch_pdl": True} if wait is not None and launches_early(device) else {"PDL": False}
