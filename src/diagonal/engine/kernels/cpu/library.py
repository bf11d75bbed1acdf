"""The compiled library in this process, and calls of its functions.

Arguments are structs of 64-bit numbers: addresses, sizes and flags. An array of them is made in a microsecond.
"""

from __future__ import annotations

import ctypes
import os
import struct
import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor

from diagonal.engine.kernels.cpu import build
from diagonal.engine.kernels.device import SWITCH

CALLS = (  # functions of one struct
    "diagonal_linear", "diagonal_heads", "diagonal_attention", "diagonal_sample",
    "diagonal_next_step", "diagonal_live_step", "diagonal_live_window", "diagonal_settle",
    "diagonal_gather_rows", "diagonal_rope",
)  # fmt: skip
DTYPES = (torch.float32, torch.bfloat16)  # of activations
PLAIN = (Tensor, torch.nn.Parameter)  # subclasses may have no memory


@cache
def library() -> ctypes.CDLL | None:
    """The library, compiled if need be, or None where that fails; a warning then says once why."""
    if os.name != "posix":
        return None
    compiler = build.find_compiler()
    try:
        if compiler is None:
            raise RuntimeError("there is no C++ compiler; install g++ or clang++")
        return _typed(ctypes.CDLL(str(build.library_file(compiler, build.cache_folder()))))
    except (RuntimeError, OSError, AttributeError) as error:
        warnings.warn(f"kernels for the CPU are left out, PyTorch is slower: {error}", stacklevel=2)
        return None


def _typed(loaded: ctypes.CDLL) -> ctypes.CDLL:
    """With the types of its functions."""
    address, number = ctypes.c_void_p, ctypes.c_int64
    signatures = {
        "diagonal_panel": ([], number),
        "diagonal_find_scales": ([address, number, number, address, number], number),
        "diagonal_pack": ([address, address, address, number, number], None),
        "diagonal_replay": ([address, number], None),
        **dict.fromkeys(CALLS, ([address], None)),
    }
    for name, (arguments, result) in signatures.items():
        function = getattr(loaded, name)  # and not by index, which makes a new one each time
        function.argtypes, function.restype = arguments, result
    return loaded


def loaded() -> ctypes.CDLL:
    """The library where it is known to be there."""
    found = library()
    assert found is not None
    return found


@cache
def function(name: str) -> Any:
    """A function of the library."""
    return getattr(loaded(), name)


@cache
def place_of(name: str) -> int:
    """Where a function of the library begins."""
    place = ctypes.cast(function(name), ctypes.c_void_p).value
    assert place is not None
    return place


def available() -> bool:
    """Whether the library is there, and DIAGONAL_KERNELS=0 does not forbid it."""
    return os.environ.get(SWITCH) != "0" and library() is not None


def on_cpu(device: torch.device) -> bool:
    """Whether a device is a CPU, and the library is there."""
    return device.type == "cpu" and available()


def ready(x: Tensor) -> bool:
    """Whether the library, which has no gradient, may be asked where a tensor is. torch.compile gets plain torch and
    makes its own."""
    if x.device.type != "cpu" or type(x) not in PLAIN or torch.is_grad_enabled():
        return False
    return not torch.compiler.is_compiling() and not torch.is_autocast_enabled("cpu") and available()


def serves(x: Tensor) -> bool:
    """The same of activations."""
    return x.dtype in DTYPES and ready(x)


def numbers(*values: int) -> ctypes.Array[ctypes.c_int64]:
    """A struct of 64-bit numbers."""
    return _array(len(values))(*values)


@cache
def _array(size: int) -> type[ctypes.Array[ctypes.c_int64]]:
    return ctypes.c_int64 * size


@cache
def bits(value: float) -> int:
    """A float64 as a whole number with the same bits."""
    return int.from_bytes(struct.pack("=d", value), "little", signed=True)


def address(tensor: Tensor | None) -> int:
    """Where a tensor begins; 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()


def sample_stride(numbers_BS: Tensor) -> int:
    """From the numbers of a sample to those of the next one; 0 where all share them."""
    return 0 if numbers_BS.ndim == 1 else numbers_BS.stride(0)
