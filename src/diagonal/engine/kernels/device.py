"""What a device can run, and the switch that turns the kernels off."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch
from torch import Tensor

SWITCH = "DIAGONAL_KERNELS"
HOPPER = 9  # the first compute capability with programmatic dependent launch


def available(device: torch.device) -> bool:
    """Whether a device can run the kernels, and DIAGONAL_KERNELS=0 does not forbid it."""
    return device.type == "cuda" and find_spec("triton") is not None and os.environ.get(SWITCH) != "0"


def serves(x: Tensor) -> bool:
    """Whether kernels, which have no gradient, serve a tensor. torch.compile gets plain torch and makes its own."""
    return x.is_cuda and not torch.is_grad_enabled() and not torch.compiler.is_compiling() and available(x.device)


def launches_early(device: torch.device) -> bool:
    """Whether a device has programmatic dependent launch: NVIDIA's, since Hopper."""
    nvidia = device.type == "cuda" and torch.version.cuda is not None
    return nvidia and torch.cuda.get_device_capability(device)[0] >= HOPPER
