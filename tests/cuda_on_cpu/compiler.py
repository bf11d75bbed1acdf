"""Kernels in CUDA C++ as libraries for a CPU, by g++."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from diagonal.engine.kernels.cuda import nvrtc

AVAILABLE = shutil.which("g++") is not None
HERE, SOURCE = Path(__file__).parent, Path(nvrtc.__file__).parent
# The kernels' own headers, and after them what takes the place of some.
INCLUDED = [*SOURCE.glob("*.cuh"), *HERE.glob("*.cuh"), *HERE.glob("*.h"), HERE / "kernel.cpp"]
MACHINE = ("machine.cpp", "memory.cpp", "tensor_cores.cpp")
GCC = ("g++", "-w", "-Wno-psabi", "-fPIC", "-I.", "-U_FORTIFY_SOURCE")
# Every access to memory is a call, which looks whether it may be; a CPU reads 16 bytes from anywhere, a GPU does not.
CHECKED = [
    "-fsanitize=kernel-address,alignment",
    *(f"--param=asan-{one}=0" for one in ("instrumentation-with-call-threshold", "stack", "globals")),
]


def compiled(folder: Path, source: str, name: str, constants: Mapping[str, int | str]) -> ctypes.CDLL:
    """A kernel as a library of the folder, made if it is not there."""
    dynamic = re.search(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\]", source)
    cluster = re.search(r"__cluster_dims__\((\w+), 1, 1\)", source)
    defined = {
        **constants,
        "KERNEL_NAME": name,
        "KERNEL_CLUSTER": cluster[1] if cluster else "1",
        "MEMORY_TYPE": dynamic[1] if dynamic else "char",
        "MEMORY": dynamic[2] if dynamic else "memory",
    }
    options = [f"-D{key}={value}" for key, value in defined.items()]
    texts = {**{one.name: one.read_text() for one in INCLUDED}, "kernel.cu": source}
    key = hashlib.sha256("\0".join([*options, *texts.values()]).encode()).hexdigest()[:16]
    target = folder / f"{key}.so"
    if not target.exists():
        home = folder / f"{key}.{os.getpid()}"
        home.mkdir(exist_ok=True)
        for file, text in texts.items():
            (home / file).write_text(text)
        command = [*GCC, "-O1", "-std=c++17", "-fno-extern-tls-init", "-shared", *CHECKED, *options, "kernel.cpp"]
        _run([*command, *_machine(folder), "-Wl,--as-needed"], home, target)
    library = ctypes.CDLL(str(target))
    library.launch.restype = ctypes.c_char_p
    return library


def _machine(folder: Path) -> list[str]:
    """What does not depend on the kernel, compiled once."""
    made = [(name, folder / f"{name}.o") for name in MACHINE]
    for name, target in made:
        if not target.exists():
            _run([*GCC, "-O3", "-std=c++20", "-c", name], HERE, target)
    return [str(target) for _, target in made]


def _run(command: list[str], where: Path, target: Path) -> None:
    """The compiler. Others may want the same at the same time: what is there is whole."""
    part = target.with_name(f"{target.name}.{os.getpid()}")
    done = subprocess.run([*command, "-o", str(part)], cwd=where, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"g++ refuses it:\n{done.stderr}")
    part.rename(target)
