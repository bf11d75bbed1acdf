"""Tokens from rows of ids that a program's registers hold, up to 64 Ki in bfloat16 (held_ids.cu): the usual sampling.

The kernel for any logits (`sampling`) reads a row again for every question.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from diagonal.engine.kernels import cuda
from diagonal.engine.kernels.early import possible
from diagonal.planning.sampling import Sampling

HELD = {8: 512, 16: 640, 32: 1024, 64: 1024}  # ids of a thread, and threads at most
LEAST = 128  # threads
BEFORE = 7  # ids at most between the 16 bytes in which a row begins and the row: they have places too
BINS = 8192  # 64 powers of 2 of one sign: a look beside a window that missed sees all there is

# The first valid id of each place, the end, a random number; the places (None: as rows are numbered); and the tokens.
Tables = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]


@dataclass(frozen=True, slots=True)
class Cut:
    """What the kernel is compiled for; held_ids.cu says what the constants are."""

    THREADS: int
    IDS: int
    TOP_P: bool
    KEEP: bool
    BINS: int = BINS

    @property
    def constants(self) -> dict[str, int]:
        return {name: int(value) for name, value in asdict(self).items()}


def cut(ids: int, dtype: torch.dtype, sampling: Sampling) -> Cut | None:
    """The kernel for rows of so many ids, None where it is not made for them."""
    places = ids + BEFORE
    held = next((one for one, threads in HELD.items() if places <= threads * one), None)
    counted = sampling.top_k is not None and sampling.top_k < ids
    if held is None or dtype != torch.bfloat16 or sampling.temperature == 0 or counted:
        return None
    top_p = sampling.top_p is not None and sampling.top_p < 1
    threads = max(LEAST, -(-places // (32 * held)) * 32)
    return Cut(threads, held, top_p, not top_p or sampling.keep_crossing)


def fitting(logits_RV: Tensor, tables: Tables, sampling: Sampling) -> Cut | None:
    """How the kernel would draw, None where it cannot."""
    kinds = (torch.int64, torch.int64, torch.float32, torch.int64, torch.int64)
    given = [(one, kind) for one, kind in zip(tables, kinds, strict=True) if one is not None]
    if not able(logits_RV.device) or any(one.dtype != kind or one.stride(-1) != 1 for one, kind in given):
        return None
    return cut(logits_RV.shape[1], logits_RV.dtype, sampling)


def run(logits_RV: Tensor, tables: Tables, sampling: Sampling, found: Cut) -> None:
    """One id from each row, as `sampling._draw` says."""
    rows, ids = logits_RV.shape
    low, high, uniform, positions, drawn = tables
    strides = (logits_RV.stride(0), uniform.stride(0), drawn.stride(0))
    numbers = (math.log2(math.e) / sampling.temperature, 1.0 if sampling.top_p is None else float(sampling.top_p))
    inputs = rows if positions is None else len(positions)
    given = (logits_RV, low, high, uniform, positions, drawn, inputs, ids, *strides, *numbers)
    _kernel(found, logits_RV.device).launch((rows, 1, 1), found.THREADS, 0, given)


@cache
def able(device: torch.device) -> bool:
    """Whether the kernel runs on a device."""
    return possible(device) and cuda.works(device)


@cache
def _kernel(found: Cut, device: torch.device) -> cuda.Kernel:
    return cuda.compile_kernel(Path(__file__).with_suffix(".cu"), "draw", found.constants, 0, device)
