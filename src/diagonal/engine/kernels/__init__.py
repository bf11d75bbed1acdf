"""GPU kernels in Triton. Each has a twin in plain torch with the same call, which runs everywhere else.

Triton is optional: the engine imports a module of this package only where `usable` says so.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

SWITCH = "DIAGONAL_KERNELS"


def usable(device: torch.device) -> bool:
    """Whether the kernels can run on a device and were asked for.

    They are exact in Triton's interpreter and compile for an H100, but no GPU has run them yet: until `tests/gpu` has,
    DIAGONAL_KERNELS=1 in the environment asks for them.
    """
    return device.type == "cuda" and find_spec("triton") is not None and os.environ.get(SWITCH) == "1"
