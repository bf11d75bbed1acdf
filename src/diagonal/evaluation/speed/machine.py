"""The machine that a benchmark runs on: its bandwidth, and what it and the library are called."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

import diagonal
from diagonal.generation.clock import Clock

# Buffers far larger than any cache that a copy could stay in.
COPY_BYTES = {"cpu": 2**27, "cuda": 2**30}
COPIES, WARM_COPIES = 10, 2
PACKAGE = Path(diagonal.__file__).parent


def check_timed(device: torch.device) -> torch.device:
    """A device on which times are taken."""
    if device.type not in COPY_BYTES:
        raise ValueError(f"device {str(device)!r} has no clock here; times are taken on {' and '.join(COPY_BYTES)}")
    return device


def bandwidth(device: torch.device) -> float:
    """Bytes per second, read and written, of the best of several large copies on the device."""
    clock = Clock(check_timed(device))
    source = torch.ones(COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    marks = []
    for index in range(WARM_COPIES + COPIES + 1):
        if index >= WARM_COPIES:
            marks.append(clock.mark())
        target.copy_(source)
    return 2 * source.nbytes / (min(clock.milliseconds(marks)) / 1e3)


def describe(device: torch.device) -> dict[str, Any]:
    """What a result must say about where and with what it was measured."""
    name = f"cpu {platform.machine()}, threads: {torch.get_num_threads()}"
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else name,
        "driver": _answer("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        if device.type == "cuda"
        else None,
        "torch": torch.__version__,
        "commit": commit(PACKAGE) or diagonal.__version__,
    }


def commit(folder: Path) -> str | None:
    """The commit of the checkout that `folder` is part of, with `-dirty` where its files differ; None outside one."""
    git = ("git", "-C", str(folder))
    # A folder may lie inside a checkout that does not know it, such as an environment within some other project.
    if _answer(*git, "ls-files", "__init__.py") is None:
        return None
    head = _answer(*git, "rev-parse", "--short", "HEAD")
    changed = _answer(*git, "status", "--porcelain", "--", ".")
    return None if head is None else head + ("-dirty" if changed else "")


def _answer(*command: str) -> str | None:
    """The first line that a program prints; None if there is no such program, it fails, or says nothing."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None
