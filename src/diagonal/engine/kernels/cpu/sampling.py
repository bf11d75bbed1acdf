"""Launches sampling (`sampling.cpp`): a token from each row of logits, written to its place."""

from __future__ import annotations

import torch
from torch import Tensor

from diagonal.engine.kernels.cpu import library
from diagonal.engine.kernels.cpu.calls import call
from diagonal.engine.kernels.cpu.library import PLAIN, address, bits, numbers, sample_stride
from diagonal.engine.kernels.targets import Targets
from diagonal.planning.sampling import Sampling


def draw(tokens_NL: Tensor, logits_RV: Tensor, targets: Targets, sampling: Sampling) -> None:
    """Draw a token for each row of logits and write it to its place: twin of `engine.sampler.sample_into`."""
    if type(logits_RV) not in PLAIN or logits_RV.dtype not in library.DTYPES or logits_RV.stride(1) != 1:
        logits_RV = logits_RV.detach().float().contiguous()
    given = (targets.slots_S, targets.positions_S, targets.seeds_B, *targets.ids_2L)
    slots, positions, seeds, low, high = (one.contiguous() for one in given)
    rows = None if targets.rows_B is None else targets.rows_B.contiguous()
    assert tokens_NL.dtype == torch.int64 and tokens_NL.stride(1) == 1
    struct = numbers(
        logits_RV.data_ptr(), logits_RV.dtype == torch.bfloat16, logits_RV.stride(0),
        targets.inputs, targets.batch, torch.get_num_threads(),
        slots.data_ptr(), sample_stride(slots), positions.data_ptr(), sample_stride(positions), address(targets.start),
        seeds.data_ptr(), low.data_ptr(), high.data_ptr(),
        address(rows), tokens_NL.data_ptr(), tokens_NL.stride(0),
        bits(sampling.temperature), sampling.top_k or 0, bits(1.0 if sampling.top_p is None else sampling.top_p),
        sampling.keep_crossing,
    )  # fmt: skip
    call("diagonal_sample", struct)
