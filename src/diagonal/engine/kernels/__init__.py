"""GPU kernels in Triton, and some in CUDA C++. Each has a twin in plain torch with the same call, which runs everywhere
else.

Triton is optional: its modules are imported only where `usable` says so. DIAGONAL_KERNELS=0 in the environment leaves
them alone.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Protocol, cast

import torch
from torch import Tensor

from diagonal.engine.heads import Heads
from diagonal.engine.kernels import plain

SWITCH = "DIAGONAL_KERNELS"


class Ops(Protocol):
    """The small operations of a block: the module `plain`, or `fused`."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def layer_norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor: ...

    def silu_mul(self, gate_up: Tensor) -> Tensor: ...

    def gelu(self, x: Tensor) -> Tensor: ...

    def norm_silu(self, x: Tensor, weight: Tensor, eps: float, plus: Tensor | None = None) -> Tensor: ...

    def frame_norm(self, x_BTHWC: Tensor, weight: Tensor, bias: Tensor, eps: float, silu: bool) -> Tensor: ...

    def group_norm_silu(self, x_NCHW: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor: ...

    def add_bias(self, x: Tensor, bias: Tensor, other: Tensor) -> Tensor: ...

    def fp8_linear(
        self, x: Tensor, weight_NK: Tensor, scale_N: Tensor, bias_N: Tensor | None, residual: Tensor | None
    ) -> Tensor: ...

    def add_norm(
        self, x_BFNC: Tensor, delta: Tensor | None, gate: Tensor | None, gain: Tensor, shift: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]: ...

    def add_gated(self, x_BFNC: Tensor, delta: Tensor, gate: Tensor) -> Tensor: ...

    def next_step(
        self, rows_NR: Tensor, cursor: Tensor, fed_L: Tensor, tokens_BL: Tensor, inputs: int
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def take_rows(self, tables_TLC: Tensor, ids_N: Tensor) -> Tensor: ...

    def int8_linear(
        self, x: Tensor, weight_NK: Tensor, scale_N: Tensor, bias_N: Tensor | None, residual: Tensor | None
    ) -> Tensor: ...

    def prompt(self, q_BHSD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor) -> Tensor: ...

    def remember(self, heads: Heads, k_cache_BKLD: Tensor, v_cache_BKLD: Tensor, slots_S: Tensor) -> Tensor: ...


def usable(device: torch.device) -> bool:
    """Whether the kernels can run on a device, and nobody forbids them."""
    return device.type == "cuda" and find_spec("triton") is not None and os.environ.get(SWITCH) != "0"


def able(x: Tensor) -> bool:
    """Whether the kernels, which know no gradient, serve a tensor. torch.compile gets plain torch and makes its own."""
    return x.is_cuda and not torch.is_grad_enabled() and not torch.compiler.is_compiling() and usable(x.device)


def ops(x: Tensor) -> Ops:
    """The operations for a tensor: kernels, or their twins."""
    if able(x):
        from diagonal.engine.kernels import fused

        return cast(Ops, fused)
    return cast(Ops, plain)
