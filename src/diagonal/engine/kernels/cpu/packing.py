"""Weights as the library reads them: panels of rows, with the rows of a panel side by side.

They are packed when a layer first runs, and again once the weight has changed. float32 weights whose rows are exact
multiples of a scale (int8 rows, as the embedded worlds ship them) are stored as int8 without loss: a quarter of the
bytes of a float32 copy. All others are a copy as large as the weight, so there is a bound for all packed weights of a
process; layers beyond it are left to PyTorch.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from diagonal.engine.kernels.cpu import library
from diagonal.engine.kernels.cpu.library import PLAIN, address, numbers

MOST = 4 << 30  # bytes of all packed weights of a process
INT8, BFLOAT16, FLOAT32 = range(3)  # as the library numbers them
KINDS = {torch.int8: INT8, torch.bfloat16: BFLOAT16, torch.float32: FLOAT32}
NAMES = {torch.int8: "C++, int8", torch.bfloat16: "C++, bfloat16", torch.float32: "C++, float32"}
STORED = {INT8: torch.int8, BFLOAT16: torch.bfloat16, FLOAT32: torch.float32}


@dataclass(frozen=True, slots=True)
class Packed:
    """One weight, packed. `struct` is what the library reads; the tensors keep its memory."""

    struct: ctypes.Array[ctypes.c_int64]
    data: Tensor
    scale: Tensor | None
    state: tuple[int, ...]  # of the weight and its scale when it was packed: where they lay, and their versions
    known: weakref.ref[Tensor]

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        scale = 0 if self.scale is None else self.scale.nbytes
        return self.data.nbytes + scale

    @property
    def kind(self) -> str:
        """What its weights are stored as."""
        return NAMES[self.data.dtype]


_packed: dict[tuple[int, bool], Packed] = {}


def packed_bytes() -> int:
    """Memory of all packed weights."""
    return sum(one.bytes for one in _packed.values())


def pack(weight_NK: Tensor, gated: bool, scale_N: Tensor | None = None) -> Packed | None:
    """A weight, packed now or before; None where it cannot be. `gated`: of a SwiGLU, the first half of the rows are
    gates. `scale_N`: float32 factors of int8 rows."""
    key = (id(weight_NK), gated)
    found = _packed.get(key)
    # A tensor that was made in inference mode has no version: nobody could tell when it changes.
    if found is not None and found.known() is weight_NK and found.state == _state(weight_NK, scale_N):
        return found
    if (
        weight_NK.is_inference()
        or (scale_N is not None and scale_N.is_inference())
        or not _fits(weight_NK, gated, scale_N)
    ):
        return None
    _packed.pop(key, None)
    made = _make(weight_NK, gated, scale_N, key)
    if made is not None:
        _packed[key] = made
    return made


def _state(weight_NK: Tensor, scale_N: Tensor | None) -> tuple[int, ...]:
    own = (weight_NK.data_ptr(), weight_NK._version)
    return own if scale_N is None else (*own, scale_N.data_ptr(), scale_N._version)


def _fits(weight_NK: Tensor, gated: bool, scale_N: Tensor | None) -> bool:
    """Whether a matrix can be packed at all."""
    plain = type(weight_NK) in PLAIN and weight_NK.device.type == "cpu" and weight_NK.dtype in KINDS
    scaled = (scale_N is not None) == (weight_NK.dtype == torch.int8)
    halves = not gated or weight_NK.shape[0] % 2 == 0
    return plain and scaled and halves and weight_NK.ndim == 2 and weight_NK.is_contiguous() and weight_NK.numel() > 0


def _make(weight_NK: Tensor, gated: bool, scale_N: Tensor | None, key: tuple[int, bool]) -> Packed | None:
    called, threads = library.loaded(), torch.get_num_threads()
    (rows, depth), kind = weight_NK.shape, KINDS[weight_NK.dtype]
    if kind == FLOAT32:
        found_N = torch.empty(rows)
        if called.diagonal_find_scales(weight_NK.data_ptr(), rows, depth, found_N.data_ptr(), threads):
            kind, scale_N = INT8, found_N
    panel = called.diagonal_panel()
    results = panel // 2 if gated else panel
    padded = -(-(rows // 2 if gated else rows) // results) * panel
    if packed_bytes() + padded * depth * STORED[kind].itemsize > MOST:
        return None
    data = torch.empty(padded * depth, dtype=STORED[kind])
    scale = None if scale_N is None else torch.empty(padded)
    given_N = None if scale_N is None else scale_N.float().contiguous()
    struct = numbers(data.data_ptr(), address(scale), rows, depth, kind, int(gated))
    called.diagonal_pack(struct, weight_NK.data_ptr(), address(given_N), weight_NK.dtype == torch.float32, threads)
    state = _state(weight_NK, scale_N if weight_NK.dtype == torch.int8 else None)
    return Packed(struct, data, scale, state, weakref.ref(weight_NK, lambda _: _packed.pop(key, None)))
