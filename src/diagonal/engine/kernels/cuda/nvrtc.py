"""CUDA C++ kernels: compiled when they are first used, by the compiler that comes with PyTorch (NVRTC), and launched
through the driver with programmatic dependent launch.

A kernel launched so may begin while the one before it in its stream still runs. Until it has executed
`griddepcontrol.wait` it must read nothing but weights.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from diagonal.engine.kernels.device import launches_early

HEADERS = tuple(Path(__file__).with_name(name) for name in ("ptx.cuh", "hopper.cuh", "bf16.cuh", "noise.cuh"))
HOPPER = (9, 0)  # the architecture of kernels that need wgmma and TMA
SHARED = 227 * 1024  # bytes of shared memory that a thread block may have there
ACTIVATIONS = {None: 0, "silu": 1, "gelu": 2}  # as the kernels number them
DYNAMIC_SHARED_MEMORY = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
BFLOAT16 = 9  # CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
SWIZZLED = 3  # CU_TENSOR_MAP_SWIZZLE_128B
PROMOTED = 3  # CU_TENSOR_MAP_L2_PROMOTION_L2_256B
STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class _Value(ctypes.Union):
    _fields_ = (("size", ctypes.c_char * 64), ("flag", ctypes.c_int))


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", _Value))


class _Launch(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


@cache
def libraries() -> tuple[ctypes.CDLL, ctypes.CDLL] | None:
    """The compiler and the driver, or None where there are none."""
    if torch.version.cuda is None:
        return None
    try:
        return ctypes.CDLL(f"libnvrtc.so.{torch.version.cuda.split('.')[0]}"), ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _loaded() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    found = libraries()
    if found is None:
        raise RuntimeError("CUDA's compiler (libnvrtc) and driver (libcuda) are not there")
    return found


def _checked(code: int, what: str) -> None:
    if code:
        raise RuntimeError(f"{what} failed with CUDA error {code}")


class TensorMap(ctypes.Structure):
    """How TMA addresses a matrix (CUtensorMap)."""

    _fields_ = (("bytes", ctypes.c_byte * 128),)


Argument = Tensor | TensorMap | int | float | None


def tensor_map(tensor: Tensor, *tile: int) -> TensorMap:
    """A contiguous matrix of bfloat16, or several, loaded in tiles of this shape: rows of 128 bytes, swizzled."""
    room, rank = (ctypes.c_byte * (128 + 64))(), len(tile)
    found = TensorMap.from_buffer(room, -ctypes.addressof(room) % 64)  # the driver wants it aligned
    bytes_to_next = [2 * stride for stride in tensor.stride()[-2::-1]]
    code = _loaded()[1].cuTensorMapEncodeTiled(
        ctypes.byref(found), BFLOAT16, rank, ctypes.c_void_p(tensor.data_ptr()),
        (ctypes.c_uint64 * rank)(*tensor.shape[::-1]), (ctypes.c_uint64 * (rank - 1))(*bytes_to_next),
        (ctypes.c_uint32 * rank)(*tile[::-1]), (ctypes.c_uint32 * rank)(*(1,) * rank), 0, SWIZZLED, PROMOTED, 0,
    )  # fmt: skip
    _checked(code, "describing a matrix")
    return found


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of a compiled file, ready on one GPU."""

    function: ctypes.c_void_p
    device: torch.device

    def launch(self, grid: tuple[int, int, int], threads: int, shared: int, arguments: Sequence[Argument]) -> None:
        """Launch it on the GPU's current stream. Tensors go by address, whole numbers as int, others as float."""
        values = [_argument(one) for one in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(one) for one in values))
        dependent = _Attribute(id=STREAM_SERIALIZATION, value=_Value(flag=1))
        stream = torch.cuda.current_stream(self.device).cuda_stream
        launch = _Launch(*grid, threads, 1, 1, shared, stream, ctypes.pointer(dependent), 1)
        with torch.cuda.device(self.device):
            code = _loaded()[1].cuLaunchKernelEx(ctypes.byref(launch), self.function, pointers, None)
        _checked(code, "a launch")


def aligned(tensors: Sequence[Tensor]) -> bool:
    """Whether kernels that load 16 bytes of bfloat16 at a time can take all these tensors."""
    return all(one.dtype == torch.bfloat16 and one.is_contiguous() and one.data_ptr() % 16 == 0 for one in tensors)


def _argument(value: Argument) -> ctypes.c_void_p | ctypes.c_int | ctypes.c_float | TensorMap:
    if isinstance(value, TensorMap):
        return value
    if value is None or isinstance(value, Tensor):
        return ctypes.c_void_p(None if value is None else value.data_ptr())
    return ctypes.c_int(value) if isinstance(value, int) else ctypes.c_float(value)


@cache
def works(device: torch.device) -> bool:
    """Whether kernels can be compiled for a GPU; if not, a warning says once why."""
    if libraries() is None:
        problem = "there is no libnvrtc of PyTorch's version of CUDA"
    else:
        try:
            compile_image(b'extern "C" __global__ void nothing() {}', "nothing.cu", {}, device)
            return True
        except RuntimeError as error:
            problem = str(error)
    warnings.warn(f"kernels in CUDA C++ are left out, others are slower: {problem}", stacklevel=2)
    return False


@cache
def hopper(device: torch.device) -> bool:
    """Whether kernels for Hopper, and no other GPU, run on a device."""
    return launches_early(device) and torch.cuda.get_device_capability(device) == HOPPER and works(device)


def compile_kernel(
    path: Path, name: str, constants: Mapping[str, int | str], shared: int, device: torch.device, carveout: int = -1
) -> Kernel:
    """The function `name` of a file for the GPU, with constants set and so many bytes of shared memory allowed.
    `carveout` is the percentage of shared memory that is preferred, -1 for any: the rest is L1 cache."""
    image = compile_image(path.read_bytes(), path.name, constants, device)
    driver, function = _loaded()[1], ctypes.c_void_p()
    module = ctypes.c_void_p()  # never unloaded: kernels last as long as the process
    with torch.cuda.device(device):
        _checked(driver.cuModuleLoadData(ctypes.byref(module), image), "loading a kernel")
        _checked(driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), f"finding {name}")
        _checked(driver.cuFuncSetAttribute(function, DYNAMIC_SHARED_MEMORY, shared), "asking for shared memory")
        _checked(driver.cuFuncSetAttribute(function, CARVEOUT, carveout), "asking for shared memory")
    return Kernel(function, device)


def compile_image(source: bytes, name: str, constants: Mapping[str, int | str], device: torch.device) -> bytes:
    """Machine code for the GPU, and for no other kind: with all that this one can do."""
    compiler, program = _loaded()[0], ctypes.c_void_p()
    major, minor = torch.cuda.get_device_capability(device)
    options = [
        f"--gpu-architecture=sm_{major}{minor}{'a' if major >= 9 else ''}",
        "--std=c++17",
        "-default-device",
        *(f"-D{key}={value}" for key, value in constants.items()),
    ]
    kind = ctypes.c_char_p * len(HEADERS)
    headers, names = kind(*(one.read_bytes() for one in HEADERS)), kind(*(one.name.encode() for one in HEADERS))
    made = compiler.nvrtcCreateProgram(ctypes.byref(program), source, name.encode(), len(HEADERS), headers, names)
    _checked(made, "reading a kernel")
    try:
        given = (ctypes.c_char_p * len(options))(*(one.encode() for one in options))
        if compiler.nvrtcCompileProgram(program, len(options), given):
            said = _read(compiler.nvrtcGetProgramLogSize, compiler.nvrtcGetProgramLog, program)
            told = " ".join(one for one in options if len(one) < 40)  # not the operands of instructions
            raise RuntimeError(f"{name} does not compile with {told}:\n{said.rstrip(bytes(1)).decode()}")
        return _read(compiler.nvrtcGetCUBINSize, compiler.nvrtcGetCUBIN, program)
    finally:
        compiler.nvrtcDestroyProgram(ctypes.byref(program))


def operands(name: str, count: int, after: int) -> dict[str, str]:
    """Constants that name the operands of wgmma: `count` accumulators s[0], s[1], ... and as many `after` them."""
    return {
        f"{name}_NAMES": '"' + ", ".join(f"%{number}" for number in range(count)) + '"',
        f"{name}_SUMS": ", ".join(f'"+f"(s[{number}])' for number in range(count)),
        **{f"{name}_{number}": f'"%{count + number}"' for number in range(after)},
    }


def _read(ask_size: ctypes._NamedFuncPointer, ask: ctypes._NamedFuncPointer, program: ctypes.c_void_p) -> bytes:
    """What the compiler has to give, of a size that it says first."""
    size = ctypes.c_size_t()
    _checked(ask_size(program, ctypes.byref(size)), "asking the compiler")
    text = ctypes.create_string_buffer(size.value)
    _checked(ask(program, text), "asking the compiler")
    return text.raw
