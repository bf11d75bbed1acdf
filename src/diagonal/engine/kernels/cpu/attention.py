"""Launches attention of a decode step (`attention.cpp`): it reads the slots that some query sees."""

from __future__ import annotations

import torch
from torch import Tensor

from diagonal.engine.kernels.cpu import library
from diagonal.engine.kernels.cpu.calls import call, made
from diagonal.engine.kernels.cpu.library import address, numbers, sample_stride
from diagonal.engine.kernels.visibility import Visibility

LANES = 16  # of the widest vectors: heads are whole ones
WIDEST = 256  # numbers of a head, at most
WHOLE = (torch.int32, torch.int64)


def supports(q_BHSD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor, seen: Visibility) -> bool:
    """Whether the library can attend with these."""
    width = q_BHSD.shape[3]
    caches = k_BKLD.dtype == v_BKLD.dtype and k_BKLD.dtype in library.DTYPES and k_BKLD.stride() == v_BKLD.stride()
    dense = k_BKLD.stride()[2:] == (width, 1) and q_BHSD.stride(3) == 1
    counts = all(one.dtype in WHOLE for one in (seen.slots_S, seen.needed_L, seen.whole, seen.extent))
    whole = counts and seen.slots_S.stride(-1) == seen.needed_L.stride(-1) == 1
    return caches and dense and whole and width % LANES == 0 and width <= WIDEST and q_BHSD.numel() > 0


def attend(q_BHSD: Tensor, k_NKLD: Tensor, v_NKLD: Tensor, seen: Visibility) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over what each query sees, (B, H, S, D). What samples see may differ, and their rows
    of the cache too."""
    batch, heads, inputs, width = q_BHSD.shape
    out_BSHD = made((batch, inputs, heads, width), q_BHSD.dtype)
    slots, needed, whole, extent = seen.slots_S, seen.needed_L, seen.whole, seen.extent
    struct = numbers(
        batch, heads, k_NKLD.shape[1], inputs, width, torch.get_num_threads(),
        q_BHSD.data_ptr(), q_BHSD.dtype == torch.bfloat16, *q_BHSD.stride()[:3],
        k_NKLD.data_ptr(), v_NKLD.data_ptr(), k_NKLD.dtype == torch.bfloat16, *k_NKLD.stride()[:2],
        address(seen.rows_B),
        slots.data_ptr(), slots.dtype == torch.int64, sample_stride(slots),
        needed.data_ptr(), needed.dtype == torch.int64, sample_stride(needed), min(needed.shape[-1], k_NKLD.shape[2]),
        whole.data_ptr(), whole.dtype == torch.int64, sample_stride(whole),
        extent.data_ptr(), extent.dtype == torch.int64, sample_stride(extent),
        out_BSHD.data_ptr(),
    )  # fmt: skip
    call("diagonal_attention", struct)
    return out_BSHD.transpose(1, 2)
