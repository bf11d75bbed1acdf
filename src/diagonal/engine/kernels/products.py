"""Products of a block, with what stands before and after them: one kernel where there is one for it, else several."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from diagonal.engine.kernels import able, narrow, ops, wide
from diagonal.engine.product import Activation, Norm, Product


def product(x: Tensor, asked: Product) -> Tensor:
    """f(norm(x) W^T + bias) + residual. Where kernels run the residual may then be gone: the product is added onto it,
    which saves a pass over it and a rounding."""
    fused = able(x)
    few = narrow.fitting(x, asked) if fused else None
    if few is not None:
        return narrow.run(x, asked, few)
    x = x if asked.norm is None else _normed(x, asked.norm)
    if fused:
        asked = replace(asked, norm=None)
        many = wide.fitting(x, asked)
        if many is not None:
            return wide.run(x, asked, many)
    residual, alone = asked.residual, asked.act is None and asked.bias_N is None
    if fused and residual is None and asked.act == "gelu" and asked.bias_N is not None:
        # Prompts: cuBLAS takes the tanh form along, which saves two passes over the largest activations.
        made: Tensor = torch._addmm_activation(asked.bias_N, x.flatten(0, -2), asked.weight_NK.t(), use_gelu=True)
        return made.view(*x.shape[:-1], -1)
    if residual is None:
        return activated(F.linear(x, asked.weight_NK, asked.bias_N), asked.act)
    if fused and alone and residual.dtype == x.dtype == asked.weight_NK.dtype:
        residual.view(-1, residual.shape[-1]).addmm_(x.flatten(0, -2), asked.weight_NK.t())
        return residual
    return residual + activated(F.linear(x, asked.weight_NK, asked.bias_N), asked.act)


def activated(x: Tensor, act: Activation) -> Tensor:
    """f(x)."""
    if act is None:
        return x
    return ops(x).silu_mul(x) if act == "silu" else ops(x).gelu(x)


def _normed(x: Tensor, norm: Norm) -> Tensor:
    if norm.centred:
        return ops(x).layer_norm(x, norm.weight, norm.bias, norm.eps)
    return ops(x).rms_norm(x, norm.gain, norm.eps)
