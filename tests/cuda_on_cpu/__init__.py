"""Kernels in CUDA C++ on a CPU: compiled by g++ as they stand, with the instructions of a GPU as functions (*.cuh).

`Machine` takes the place of the compiler and the driver in `diagonal.engine.kernels.cuda.nvrtc`, so that what calls
kernels there calls them here: with its grids, its shared memory, and its arguments.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from diagonal.engine.kernels.cuda import hopper_attention, nvrtc, register_sampling, small_m_gemm, wgmma_gemm
from tests.cuda_on_cpu.compiler import compiled

MAP = 0x5CA1AB1E
PIECE = 16  # bytes that a GPU reads at a time: where one of them is a tensor's, there is memory for the others


class _Matrix(ctypes.Structure):
    """What hopper.cuh of this folder has instead of a CUtensorMap."""

    _fields_ = (
        ("matrix", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("count", "rows", "columns", "box_count", "box_rows", "box_columns")),
        ("mark", ctypes.c_uint),
    )


class _Range(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_void_p), ("end", ctypes.c_void_p))


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        *((name, ctypes.c_uint) for name in ("threads", "shared")),
        *((name, ctypes.c_int) for name in ("late", "arguments", "tensors", "fresh")),
        ("given", ctypes.POINTER(ctypes.c_void_p)),
        ("kinds", ctypes.POINTER(ctypes.c_int)),
        ("tensor", ctypes.POINTER(_Range)),
        ("fresh_one", ctypes.POINTER(_Range)),
    )


@dataclass
class Machine:
    """Kernels that were compiled into a folder, and how they run. What goes on beside the threads (TMA loads, wgmmas
    of the tensor cores) happens at once, or if it is to be `late` when no thread can go on without, in an order of
    chance, of which this is the seed. What is `fresh` the kernel before writes: it may not be read before that has
    ended."""

    folder: Path
    processors: int = 4
    late: int = 0
    fresh: Sequence[Tensor] = ()
    changes: Mapping[str, str] = field(default_factory=dict)  # of a kernel's text, to see that mistakes show
    waits: int = 0  # for each other of the threads of all blocks, in the last launch
    matrices: dict[int, Tensor] = field(default_factory=dict)  # that maps were made of, by their addresses

    def compile_kernel(
        self,
        path: Path,
        name: str,
        constants: Mapping[str, int | str],
        shared: int,
        device: torch.device,
        carveout: int = -1,
    ) -> Emulated:
        source = path.read_text()
        for old, new in self.changes.items():
            if old not in source:  # no AssertionError: that would pass for a mistake that shows
                raise LookupError(f"{path.name} has no {old}")
            source = source.replace(old, new)
        return Emulated(self, compiled(self.folder, source, name, constants), shared)

    def tensor_map(self, tensor: Tensor, *tile: int) -> nvrtc.TensorMap:
        assert tensor.is_contiguous() and tensor.dtype == torch.bfloat16 and tensor.data_ptr() % PIECE == 0
        assert all(1 <= side <= 256 for side in tile) and tile[-1] * 2 == 128 and tensor.shape[-1] * 2 % PIECE == 0
        assert tensor.ndim == len(tile) in (2, 3)
        found, one = nvrtc.TensorMap(), (1,) * (3 - len(tile))  # a single matrix
        matrix = _Matrix(tensor.data_ptr(), *one, *tensor.shape, *one, *tile, MAP)
        ctypes.memmove(ctypes.byref(found), ctypes.byref(matrix), ctypes.sizeof(matrix))
        self.matrices[tensor.data_ptr()] = tensor
        return found

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """From now on all kernels run on it."""
        patch.setattr(nvrtc, "compile_kernel", self.compile_kernel)
        patch.setattr(nvrtc, "tensor_map", self.tensor_map)
        patch.setattr(nvrtc, "works", lambda device: True)
        patch.setattr(nvrtc, "hopper", lambda device: True)
        patch.setattr(register_sampling, "able", lambda device: True)
        patch.setattr(small_m_gemm, "multiprocessors", lambda device: self.processors)
        properties = lambda device: SimpleNamespace(multi_processor_count=self.processors)  # noqa: E731
        patch.setattr(torch.cuda, "get_device_properties", properties)
        for module in (register_sampling, hopper_attention, small_m_gemm, wgmma_gemm):
            patch.setattr(module, "_kernel", module._kernel.__wrapped__)  # which would keep this machine's


@dataclass(frozen=True)
class Emulated:
    """What `nvrtc.Kernel` is on a GPU."""

    machine: Machine
    library: ctypes.CDLL
    shared: int

    def launch(
        self, grid: tuple[int, int, int], threads: int, shared: int, arguments: Sequence[nvrtc.Argument]
    ) -> None:
        assert shared <= self.shared, "more shared memory than was asked for"
        machine = self.machine
        values = [nvrtc._argument(one) for one in arguments]
        given = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        kinds = (ctypes.c_int * len(values))(*map(_kind, values))
        tensors = [one for one in arguments if isinstance(one, Tensor)]
        maps = [_Matrix.from_buffer_copy(one) for one in arguments if isinstance(one, nvrtc.TensorMap)]
        known = _ranges([*tensors, *(machine.matrices[one.matrix] for one in maps)], PIECE)
        fresh = _ranges(machine.fresh, 1)
        counts = (len(values), len(known), len(fresh))
        asked = _Launch(grid, threads, shared, machine.late, *counts, given, kinds, known, fresh)
        problem = self.library.launch(ctypes.byref(asked))
        if problem is not None:
            raise RuntimeError(problem.decode())
        machine.waits = self.library.waited()


def _kind(value: object) -> int:
    """As kernel.cpp numbers them."""
    numbers = {ctypes.c_void_p: -1, ctypes.c_int: -2, ctypes.c_float: -3}
    return numbers.get(type(value)) or ctypes.sizeof(value)  # type: ignore[arg-type]


def _ranges(tensors: Sequence[Tensor], piece: int) -> ctypes.Array[_Range]:
    """Where they lie, in whole pieces."""
    found = []
    for one in tensors:
        last = sum((size - 1) * stride for size, stride in zip(one.shape, one.stride(), strict=True))
        begin, end = one.data_ptr(), one.data_ptr() + (last + 1) * one.itemsize
        found.append(_Range(begin // piece * piece, -(-end // piece) * piece))
    return (_Range * len(found))(*found)
