"""Tokens from rows of logits that a thread block holds in registers, up to 64 Ki ids in bfloat16
(register_sampling.cu): the usual sampling.

The kernel for any logits (`triton.sampling`) reads a row again for every question.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from diagonal.engine.kernels import tuning
from diagonal.engine.kernels.cuda import nvrtc
from diagonal.engine.kernels.device import launches_early
from diagonal.engine.kernels.targets import Targets
from diagonal.planning.sampling import Sampling

BEFORE = 7  # ids at most between the 16 bytes in which a row begins and the row: they have registers too


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """What the kernel is compiled for; register_sampling.cu says what the constants are."""

    THREADS: int
    IDS: int
    TOP_P: bool
    KEEP: bool
    BINS: int

    @property
    def constants(self) -> dict[str, int]:
        return {name: int(value) for name, value in asdict(self).items()}


def configure(logits_RV: Tensor, sampling: Sampling) -> KernelConfig | None:
    """The kernel for such rows; None where there is none."""
    tuned, ids = tuning.of(logits_RV.device).sampling, logits_RV.shape[1]
    places = ids + BEFORE
    held = next((one for one, threads in tuned.held.items() if places <= threads * one), None)
    counted = sampling.top_k is not None and sampling.top_k < ids
    if held is None or logits_RV.dtype != torch.bfloat16 or sampling.temperature == 0 or counted:
        return None
    top_p = sampling.top_p is not None and sampling.top_p < 1
    threads = max(tuned.threads, -(-places // (32 * held)) * 32)
    return KernelConfig(threads, held, top_p, not top_p or sampling.keep_crossing, tuned.bins)


def reads(tokens_NL: Tensor, targets: Targets) -> bool:
    """Whether tensors are of the type, and lie, as the kernel reads and writes them."""
    given = (tokens_NL, targets.slots_S, targets.positions_S, targets.seeds_B, targets.ids_2L, targets.rows_B)
    return all(one is None or (one.dtype == torch.int64 and one.stride(-1) == 1) for one in given)


def run(tokens_NL: Tensor, logits_RV: Tensor, targets: Targets, sampling: Sampling, config: KernelConfig) -> None:
    """One id from each row, written to its place."""
    rows, ids = logits_RV.shape
    strides = (logits_RV.stride(0), *targets.strides, tokens_NL.stride(0))
    limits = (math.log2(math.e) / sampling.temperature, 1.0 if sampling.top_p is None else float(sampling.top_p))
    arguments = (logits_RV, *targets.tensors, tokens_NL, targets.inputs, ids, *strides, *limits)
    _kernel(config, logits_RV.device).launch((rows, 1, 1), config.THREADS, 0, arguments)


@cache
def able(device: torch.device) -> bool:
    """Whether the kernel runs on a device."""
    return launches_early(device) and nvrtc.works(device)


@cache
def _kernel(config: KernelConfig, device: torch.device) -> nvrtc.Kernel:
    return nvrtc.compile_kernel(Path(__file__).with_suffix(".cu"), "sample", config.constants, 0, device)
