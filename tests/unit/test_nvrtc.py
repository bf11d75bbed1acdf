"""How kernels in CUDA C++ are compiled and started, with a compiler and a driver that only note what they are told."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diagonal.engine.kernels.cuda import nvrtc

DEVICE = torch.device("cuda", 0)
LOG = b"line 1: no\0"


class Libraries:
    """Both libraries in one: NVRTC's calls and the driver's."""

    def __init__(self) -> None:
        self.options: list[str] = []
        self.refuses = False
        self.code = 0
        self.launched: dict[str, Any] = {}

    def nvrtcCreateProgram(  # noqa: N802
        self, program: Any, source: bytes, name: bytes, count: int, headers: Any, names: Any
    ) -> int:
        self.source = source
        self.headers = {names[index]: headers[index] for index in range(count)}
        return 0

    def nvrtcCompileProgram(self, program: Any, count: int, options: Any) -> int:  # noqa: N802
        self.options = [options[index].decode() for index in range(count)]
        return int(self.refuses)

    def nvrtcGetProgramLogSize(self, program: Any, size: Any) -> int:  # noqa: N802
        size._obj.value = len(LOG)
        return 0

    def nvrtcGetProgramLog(self, program: Any, text: Any) -> int:  # noqa: N802
        text.raw = LOG
        return 0

    def nvrtcGetCUBINSize(self, program: Any, size: Any) -> int:  # noqa: N802
        size._obj.value = 3
        return 0

    def nvrtcGetCUBIN(self, program: Any, text: Any) -> int:  # noqa: N802
        text.raw = b"\0ab"  # machine code has zeros
        return 0

    def nvrtcDestroyProgram(self, program: Any) -> int:  # noqa: N802
        return 0

    def cuTensorMapEncodeTiled(self, *given: Any) -> int:  # noqa: N802
        found, _, rank, start, sizes, strides, box, _, _, swizzle, _, _ = given
        self.map = {
            "at": ctypes.addressof(found._obj) % 64,
            "start": start.value,
            "sizes": tuple(sizes[:rank]),
            "strides": tuple(strides[: rank - 1]),
            "box": tuple(box[:rank]),
            "swizzle": swizzle,
        }
        ctypes.memset(found, 7, ctypes.sizeof(nvrtc.TensorMap))
        return self.code

    def cuLaunchKernelEx(self, launch: Any, function: Any, pointers: Any, extra: Any) -> int:  # noqa: N802
        given = launch._obj
        early = given.attributes[0]
        self.launched = {
            "grid": (given.grid_x, given.grid_y, given.grid_z),
            "block": (given.block_x, given.block_y, given.block_z),
            "shared": given.shared,
            "stream": given.stream,
            "early": (given.count, early.id, early.value.flag),
            "pointer": ctypes.c_void_p.from_address(pointers[0]).value,
            "nothing": ctypes.c_void_p.from_address(pointers[1]).value,
            "whole": ctypes.c_int.from_address(pointers[2]).value,
            "real": ctypes.c_float.from_address(pointers[3]).value,
        }
        return self.code


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Libraries]:
    libraries = Libraries()
    monkeypatch.setattr(nvrtc, "libraries", lambda: (libraries, libraries))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=77))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    nvrtc.works.cache_clear()
    yield libraries
    nvrtc.works.cache_clear()


def test_what_the_driver_reads_has_its_layout() -> None:
    """As nvrtc.h says, on a machine of 64 bits."""
    assert ctypes.sizeof(nvrtc._Attribute) == 72 and nvrtc._Attribute.value.offset == 8
    assert ctypes.sizeof(nvrtc._Launch) == 56 and nvrtc._Launch.stream.offset == 32


def test_a_kernel_is_started_early_with_its_arguments(fake: Libraries) -> None:
    given = torch.zeros(3)
    nvrtc.Kernel(ctypes.c_void_p(5), DEVICE).launch((132, 1, 2), 512, 1000, (given, None, 14, 0.5))
    assert fake.launched == {
        "grid": (132, 1, 2),
        "block": (512, 1, 1),
        "shared": 1000,
        "stream": 77,
        "early": (1, nvrtc.STREAM_SERIALIZATION, 1),
        "pointer": given.data_ptr(),
        "nothing": None,
        "whole": 14,
        "real": 0.5,
    }


def test_a_matrix_is_described_for_the_kernel(fake: Libraries) -> None:
    matrix = torch.zeros(10, 256, dtype=torch.bfloat16)
    found = nvrtc.tensor_map(matrix, 8, 64)
    assert fake.map == {
        "at": 0,
        "start": matrix.data_ptr(),
        "sizes": (256, 10),
        "strides": (512,),
        "box": (64, 8),
        "swizzle": nvrtc.SWIZZLED,
    }
    assert bytes(found.bytes) == bytes([7]) * 128  # it is what is handed over, by value
    nvrtc.Kernel(ctypes.c_void_p(5), DEVICE).launch((1, 1, 1), 32, 0, (found, None, 1, 1.0))
    assert fake.launched["pointer"] == int.from_bytes(bytes([7]) * 8, "little")
    fake.code = 1
    with pytest.raises(RuntimeError, match="describing a matrix failed with CUDA error 1"):
        nvrtc.tensor_map(matrix, 8, 64)


def test_operands_of_an_instruction_are_named_in_their_order() -> None:
    assert nvrtc.operands("SUM", 2, after=1) == {
        "SUM_NAMES": '"%0, %1"',
        "SUM_SUMS": '"+f"(s[0]), "+f"(s[1])',
        "SUM_0": '"%2"',
    }


def test_only_tensors_that_lie_as_kernels_read_them_suit() -> None:
    whole = torch.zeros(16, 64, dtype=torch.bfloat16)
    assert nvrtc.aligned([whole, whole[3]])
    for other in (whole.float(), whole.t(), whole.view(-1)[1:]):
        assert not nvrtc.aligned([whole, other])


def test_a_launch_that_fails_says_so(fake: Libraries) -> None:
    fake.code = 701
    with pytest.raises(RuntimeError, match="a launch failed with CUDA error 701"):
        nvrtc.Kernel(ctypes.c_void_p(5), DEVICE).launch((1, 1, 1), 32, 0, (None, None, 1, 1.0))


def test_a_file_is_compiled_for_the_gpu_with_its_constants(fake: Libraries) -> None:
    assert nvrtc.compile_image(b"source", "one.cu", {"K": 64, "ADD": 1}, DEVICE) == b"\0ab"
    assert fake.source == b"source"
    assert fake.headers.keys() == {b"ptx.cuh", b"hopper.cuh", b"bf16.cuh", b"noise.cuh"}
    assert b"bf16_t" in fake.headers[b"ptx.cuh"]
    assert fake.options[0] == "--gpu-architecture=sm_90a" and fake.options[-2:] == ["-DK=64", "-DADD=1"]


def test_what_does_not_compile_says_why(fake: Libraries) -> None:
    fake.refuses = True
    with pytest.raises(RuntimeError, match=r"one.cu does not compile with .*-DK=64:\nline 1: no$"):
        nvrtc.compile_image(b"source", "one.cu", {"K": 64}, DEVICE)


def test_without_a_compiler_that_works_kernels_are_left_out_and_it_is_said(fake: Libraries) -> None:
    assert nvrtc.works(DEVICE)
    nvrtc.works.cache_clear()
    fake.refuses = True
    with pytest.warns(UserWarning, match="left out, others are slower: nothing.cu does not compile"):
        assert not nvrtc.works(DEVICE)
    assert not nvrtc.works(DEVICE)  # once


def test_without_a_compiler_at_all_too(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc.works.cache_clear()
    monkeypatch.setattr(nvrtc, "libraries", lambda: None)
    with pytest.warns(UserWarning, match="no libnvrtc"):
        assert not nvrtc.works(DEVICE)
    nvrtc.works.cache_clear()
    with pytest.raises(RuntimeError, match="not there"):
        nvrtc.compile_image(b"source", "one.cu", {}, DEVICE)
