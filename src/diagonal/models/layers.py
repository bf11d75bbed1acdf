"""The few layers that several models share: norms, SwiGLU, rotary embedding, products with weights of few bits, and
products onto the residual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from diagonal.engine.heads import Rope
from diagonal.engine.kernels import able, ops
from diagonal.engine.kernels.products import activated, product
from diagonal.engine.product import Activation, Norm, Pending, Product


class RMSNorm(nn.Module):
    """x / rms(x) * weight, the norm in float32, the weight applied after the cast back (as LLaMA does)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return ops(x).rms_norm(x, self.weight, self.eps)

    @property
    def spec(self) -> Norm:
        return Norm(self.weight, None, self.eps, centred=False)


class LayerNorm(nn.LayerNorm):
    """(x - mean) / std * weight + bias; weight and bias may be absent."""

    def forward(self, x: Tensor) -> Tensor:
        return ops(x).layer_norm(x, self.weight, self.bias, self.eps)

    @property
    def spec(self) -> Norm:
        return Norm(self.weight, self.bias, self.eps, centred=True)


class SwiGLU(nn.Module):
    """x + down(silu(gate h) * up h) with h = norm(x), and gate and up in one matrix."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x_BSM: Tensor, norm: RMSNorm) -> Tensor:
        return add_linear(x_BSM, self.down, norm_linear(norm, self.gate_up, x_BSM, "silu"))


class ScaledRows(nn.Module):
    """A linear layer for inference whose row n of weights is scale[n] times the few-bit numbers of its row n. It can
    add its result to a residual. Casts of a model leave numbers and scales as they are; moves go through."""

    scale: Tensor

    def __init__(self, weight_NK: Tensor, scale_N: Tensor, bias_N: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight_NK, requires_grad=False)
        self.register_buffer("scale", scale_N)
        self.bias = None if bias_N is None else nn.Parameter(bias_N, requires_grad=False)

    def extra_repr(self) -> str:
        rows, width = self.weight.shape
        return f"in_features={width}, out_features={rows}, bias={self.bias is not None}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What every move or cast of a module goes through."""
        weight, scale = self.weight.data, self.scale
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.weight.dtype != weight.dtype:
            self.weight.data = weight.to(self.weight.device)
        if self.scale.dtype != scale.dtype:
            self.scale = scale.to(self.scale.device)
        return self


class Int8Linear(ScaledRows):
    """x W^T + bias with weights of int8: half the bytes."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return ops(x).int8_linear(x, self.weight, self.scale, self.bias, residual)


class Fp8Linear(ScaledRows):
    """x W^T + bias with both in fp8 (e4m3): every row of x is divided by a scale of its own on the way. For many rows:
    it saves arithmetic, not only bytes."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return ops(x).fp8_linear(x, self.weight, self.scale, self.bias, residual)


def norm_linear(norm: RMSNorm | LayerNorm, linear: nn.Linear | ScaledRows, x: Tensor, act: Activation = None) -> Tensor:
    """f(linear(norm(x))): one kernel where there is one for it."""
    if isinstance(linear, ScaledRows):
        return activated(linear(norm(x)), act)
    return product(x, Product(linear.weight, linear.bias, norm.spec, act))


def norm_linear_later(norm: RMSNorm | LayerNorm, linear: nn.Linear | ScaledRows, x: Tensor) -> Tensor | Pending:
    """linear(norm(x)), to be made by whoever can do it together with what comes next."""
    if isinstance(linear, ScaledRows):
        return norm_linear(norm, linear, x)
    return Pending(x, Product(linear.weight, linear.bias, norm.spec), product)


def look_up(embedding: nn.Embedding, ids: Tensor) -> Tensor:
    """Rows of an embedding, on a GPU by a kernel after which the first product may begin early."""
    if able(ids):
        return ops(ids).take_rows(embedding.weight[None], ids.flatten())[0].view(*ids.shape, -1)
    rows: Tensor = embedding(ids)
    return rows


def add_linear(residual: Tensor, linear: nn.Linear | ScaledRows, x: Tensor) -> Tensor:
    """residual + linear(x). Where kernels run the residual is then gone: the product is added onto it."""
    if isinstance(linear, ScaledRows):
        out: Tensor = linear(x, residual)
        return out
    return product(x, Product(linear.weight, linear.bias, residual=residual))


def kept(keep: Tensor | None, *parts: Tensor) -> tuple[Tensor, ...]:
    """Of each part (B, S, any) the inputs that are kept: after the last attention nobody asks for the others."""
    return parts if keep is None else tuple(part[:, keep] for part in parts)


def frequencies(width: int, theta: float, device: torch.device) -> Tensor:
    """theta^(-2i/width) for i < width/2, in float32: computed, not stored, so no cast can round it."""
    return theta ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)


def rope_1d(slots_S: Tensor, head_dim: int, theta: float) -> Rope:
    """cos and sin (S, D) of slot * theta^(-2i/D)."""
    return turns(slots_S.float()[:, None] * frequencies(head_dim, theta, slots_S.device))


def turns(angles: Tensor) -> Rope:
    """A rotation: cos and sin of the angles of the pairs, once for each half of the head."""
    both = torch.cat([angles, angles], dim=-1)
    return both.cos(), both.sin()
