"""Kernels in CUDA C++ on a CPU: compiled by g++ as they stand, with the instructions of a GPU as functions (*.cuh).

`Machine` takes the place of the compiler and the driver in `diagonal.engine.kernels.cuda`, so that what calls kernels
there calls them here: with its grids, its shared memory, and its arguments.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from diagonal.engine.kernels import cuda, held_ids, hopper_attention, narrow, wide

HERE, SOURCE = Path(__file__).parent, Path(cuda.__file__).parent
MACHINE = ("machine.cpp", "memory.cpp", "tensor_cores.cpp")
GCC = ("g++", "-w", "-Wno-psabi", "-fPIC", "-I.", "-U_FORTIFY_SOURCE")
# Every access to memory is a call, which looks whether it may be; a CPU reads 16 bytes from anywhere, a GPU does not.
CHECKED = [
    "-fsanitize=kernel-address,alignment",
    *(f"--param=asan-{one}=0" for one in ("instrumentation-with-call-threshold", "stack", "globals")),
]
MAP = 0x5CA1AB1E
PIECE = 16  # bytes that a GPU reads at a time: where one of them is a tensor's, there is memory for the others
AVAILABLE = shutil.which("g++") is not None


class _Matrix(ctypes.Structure):
    """What hopper.cuh of this folder has instead of a CUtensorMap."""

    _fields_ = (
        ("matrix", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("rows", "columns", "box_rows", "box_columns")),
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
    """Kernels that were compiled into a folder, and how they run: what goes on beside the threads (fetches, products
    of the tensor cores) happens at once, or as late as it may. What is `fresh` the kernel before writes: it may not be
    read before that has ended."""

    folder: Path
    processors: int = 4
    late: bool = False
    fresh: Sequence[Tensor] = ()
    waits: int = 0  # for each other of the threads of all blocks, in the last launch
    prefetched: list[int] = field(default_factory=list)  # addresses
    matrices: dict[int, Tensor] = field(default_factory=dict)  # that maps were made of, by their addresses

    def compile_kernel(
        self,
        path: Path,
        name: str,
        constants: Mapping[str, int | str],
        shared: int,
        device: torch.device,
        percent: int = -1,
    ) -> Emulated:
        return Emulated(self, compiled(self.folder, path, name, constants), shared)

    def tensor_map(self, matrix_RC: Tensor, rows: int, columns: int) -> cuda.Map:
        assert matrix_RC.is_contiguous() and matrix_RC.dtype == torch.bfloat16 and matrix_RC.data_ptr() % PIECE == 0
        assert 1 <= rows <= 256 and columns * 2 == 128 and matrix_RC.shape[1] * 2 % PIECE == 0
        found = cuda.Map()
        matrix = _Matrix(matrix_RC.data_ptr(), *matrix_RC.shape, rows, columns, MAP)
        ctypes.memmove(ctypes.byref(found), ctypes.byref(matrix), ctypes.sizeof(matrix))
        self.matrices[matrix_RC.data_ptr()] = matrix_RC
        return found

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """From now on all kernels run on it."""
        patch.setattr(cuda, "compile_kernel", self.compile_kernel)
        patch.setattr(cuda, "tensor_map", self.tensor_map)
        patch.setattr(cuda, "works", lambda device: True)
        patch.setattr(cuda, "hopper", lambda device: True)
        patch.setattr(held_ids, "able", lambda device: True)
        patch.setattr(narrow, "_processors", lambda device: self.processors)
        properties = lambda device: SimpleNamespace(multi_processor_count=self.processors)  # noqa: E731
        patch.setattr(torch.cuda, "get_device_properties", properties)
        for module in (held_ids, hopper_attention, narrow, wide):
            patch.setattr(module, "_kernel", module._kernel.__wrapped__)  # which would keep this machine's


@dataclass(frozen=True)
class Emulated:
    """What `cuda.Kernel` is on a GPU."""

    machine: Machine
    library: ctypes.CDLL
    shared: int

    def launch(self, grid: tuple[int, int, int], threads: int, shared: int, arguments: Sequence[cuda.Argument]) -> None:
        assert shared <= self.shared, "more shared memory than was asked for"
        machine = self.machine
        values = [cuda._argument(one) for one in arguments]
        given = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        kinds = (ctypes.c_int * len(values))(*map(_kind, values))
        tensors = [one for one in arguments if isinstance(one, Tensor)]
        maps = [_Matrix.from_buffer_copy(one) for one in arguments if isinstance(one, cuda.Map)]
        known = _ranges([*tensors, *(machine.matrices[one.matrix] for one in maps)], PIECE)
        fresh = _ranges(machine.fresh, 1)
        counts = (len(values), len(known), len(fresh))
        asked = _Launch(grid, threads, shared, machine.late, *counts, given, kinds, known, fresh)
        problem = self.library.launch(ctypes.byref(asked))
        if problem is not None:
            raise RuntimeError(problem.decode())
        machine.waits = self.library.waited()
        places = ctypes.POINTER(ctypes.c_size_t)()
        count = self.library.prefetched(ctypes.byref(places))
        machine.prefetched = places[:count]


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


def compiled(folder: Path, path: Path, name: str, constants: Mapping[str, int | str]) -> ctypes.CDLL:
    """A kernel as a library of the folder, made if it is not there."""
    source = path.read_text()
    dynamic = re.search(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\]", source)
    cluster = re.search(r"__cluster_dims__\((\w+), 1, 1\)", source)
    defined = {
        **constants,
        "KERNEL": f'"{path.name}"',
        "NAME": name,
        "CLUSTER": cluster[1] if cluster else "1",
        "TYPE": dynamic[1] if dynamic else "char",
        "PLACE": dynamic[2] if dynamic else "memory",
    }
    options = [f"-D{key}={value}" for key, value in defined.items()]
    sources = _sources()
    texts = "\0".join([*options, *(one.read_text() for one in (path, *sources.values()))])
    home = folder / hashlib.sha256(texts.encode()).hexdigest()[:16]
    target = home / "kernel.so"
    if not target.exists():
        home.mkdir(exist_ok=True)
        for file, there in {**sources, path.name: path}.items():
            shutil.copy(there, home / file)
        command = [*GCC, "-O1", "-std=c++17", "-fno-extern-tls-init", "-shared", *CHECKED, *options, "kernel.cpp"]
        _run([*command, *_machine(folder), "-Wl,--as-needed"], home, target)
    library = ctypes.CDLL(str(target))
    library.launch.restype = ctypes.c_char_p
    return library


def _sources() -> dict[str, Path]:
    """Files that are included: the kernels' own, and what takes the place of some of them."""
    return {
        one.name: one for one in (*SOURCE.glob("*.cuh"), *HERE.glob("*.cuh"), *HERE.glob("*.h"), *HERE.glob("*.cpp"))
    }


def _machine(folder: Path) -> list[str]:
    """What does not depend on the kernel, compiled once."""
    made = [(name, folder / f"{name}.o") for name in MACHINE]
    for name, target in made:
        if not target.exists():
            _run([*GCC, "-O3", "-std=c++20", "-c", name], HERE, target)
    return [str(target) for _, target in made]


def _run(command: list[str], where: Path, target: Path) -> None:
    """The compiler. Others may want the same at the same time: what is there is whole."""
    part = target.with_suffix(f".{os.getpid()}")
    done = subprocess.run([*command, "-o", str(part)], cwd=where, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"g++ refuses it:\n{done.stderr}")
    part.rename(target)
