"""GEMM in fp8 by cuBLAS, with the rows of activations rounded by a kernel on the way."""

from __future__ import annotations

import torch
from torch import Tensor

from diagonal.engine.kernels import reference
from diagonal.engine.kernels.triton.pointwise import fp8_rows


def linear(x: Tensor, weight_NK: Tensor, scale_N: Tensor, bias_N: Tensor | None, residual: Tensor | None) -> Tensor:
    """x W^T + bias + residual, with x in bfloat16; the residual is added to the rounded result."""
    x_MK = x.flatten(0, -2)
    rows_PK, scale_P1 = fp8_rows(x_MK, reference.FP8_SIDE)  # P: M and rows of zeros, to a multiple
    out_PN = torch._scaled_mm(
        rows_PK, weight_NK.t(), scale_P1, scale_N[None], bias=bias_N, out_dtype=x.dtype, use_fast_accum=True
    )
    out: Tensor = out_PN[: len(x_MK)].unflatten(0, x.shape[:-1])
    return out if residual is None else residual + out
