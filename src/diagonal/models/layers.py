"""The layers that models are made of: norms, fused linear layers (norm, activation, residual), SwiGLU, rotary
embedding, quantized linear layers, and what diffusion transformers share.

Models call these and never ask where they run: `engine.kernels.select` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from diagonal.engine.heads import Rope
from diagonal.engine.kernels import select, select_latents
from diagonal.engine.kernels.select_latents import OpenSum as OpenSum
from diagonal.engine.linear import Activation, DeferredLinear, FusedLinear, Norm
from diagonal.engine.ranks import Ranks


class RMSNorm(nn.Module):
    """x / rms(x) * weight, the norm in float32, the weight applied after the cast back (as LLaMA does)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return select.rms_norm(x, self.weight, self.eps)

    @property
    def spec(self) -> Norm:
        return Norm(self.weight, None, self.eps, centred=False)


class LayerNorm(nn.LayerNorm):
    """(x - mean) / std * weight + bias; weight and bias may be absent."""

    def forward(self, x: Tensor) -> Tensor:
        return select.layer_norm(x, self.weight, self.bias, self.eps)

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
    """A linear layer for inference whose row n of weights is scale[n] times the few-bit values of its row n. It can
    add its result to a residual. Casts of a model leave values and scales as they are; moves go through."""

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
        return select.int8_linear(x, self.weight, self.scale, self.bias, residual)


class Fp8Linear(ScaledRows):
    """x W^T + bias with both in fp8 (e4m3): every row of x is divided by a scale of its own on the way. For many rows:
    it saves arithmetic, not only bytes."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return select.fp8_linear(x, self.weight, self.scale, self.bias, residual)


class RowParallel(nn.Module):
    """A linear layer of which every rank has some columns, for its part of the inputs: the results are summed.

    The residual and the bias go in on the first rank alone, so the fused kernel of one GPU serves there too, and
    nothing but the sum over all ranks comes after it.
    """

    def __init__(self, part: nn.Linear | ScaledRows, ranks: Ranks) -> None:
        super().__init__()
        self.part, self.ranks = part, ranks
        if not ranks.first:
            part.bias = None

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if residual is None or not self.ranks.first:
            return self.ranks.reduce(linear(self.part, x))
        return self.ranks.reduce(add_linear(residual, self.part, x))


def linear(layer: nn.Linear | ScaledRows, x: Tensor, act: Activation = None) -> Tensor:
    """f(layer(x)): one kernel where there is one for it."""
    if isinstance(layer, ScaledRows):
        return select.activation(layer(x), act)
    return select.linear(x, FusedLinear(layer.weight, layer.bias, act=act))


def norm_linear(norm: RMSNorm | LayerNorm, layer: nn.Linear | ScaledRows, x: Tensor, act: Activation = None) -> Tensor:
    """f(layer(norm(x))): one kernel where there is one for it."""
    if isinstance(layer, ScaledRows):
        return select.activation(layer(norm(x)), act)
    return select.linear(x, FusedLinear(layer.weight, layer.bias, norm.spec, act))


def norm_linear_deferred(
    norm: RMSNorm | LayerNorm, layer: nn.Linear | ScaledRows, x: Tensor
) -> Tensor | DeferredLinear:
    """layer(norm(x)), deferred to whoever can fuse it with what comes next."""
    if isinstance(layer, ScaledRows):
        return norm_linear(norm, layer, x)
    return DeferredLinear(x, FusedLinear(layer.weight, layer.bias, norm.spec), select.linear)


def tied_head(norm: RMSNorm | LayerNorm, embedding: nn.Embedding, x: Tensor) -> Tensor:
    """Logits by a head whose weights are the embedding's: embedding.weight norm(x)."""
    return select.linear(x, FusedLinear(embedding.weight, norm=norm.spec))


def add_linear(residual: Tensor, layer: nn.Linear | ScaledRows | RowParallel, x: Tensor) -> Tensor:
    """residual + layer(x). Where kernels run the residual is then gone: the result is added onto it."""
    if isinstance(layer, ScaledRows | RowParallel):
        out: Tensor = layer(x, residual)
        return out
    return select.linear(x, FusedLinear(layer.weight, layer.bias, residual=residual))


def look_up(embedding: nn.Embedding, ids: Tensor) -> Tensor:
    """Rows of an embedding."""
    return select.embed(embedding.weight, ids)


def add_norm(total: OpenSum, gain: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + gate * delta of an open sum, and its LayerNorm * gain + shift: one kernel where there is one for it."""
    return select_latents.add_norm(total, gain, shift, eps)


def open_sum(x: Tensor, delta: Tensor, gate: Tensor) -> OpenSum:
    """x + gate * delta, which may be left to the next `add_norm`."""
    return select_latents.open_sum(x, delta, gate)


def text_attention(q_BHSD: Tensor, k_BHLD: Tensor, v_BHLD: Tensor, rows_B: Tensor) -> Tensor:
    """Attention to all rows of a text, (B, H, S, D); those from `rows_B` on are padding, all alike."""
    return select_latents.text_attention(q_BHSD, k_BHLD, v_BHLD, rows_B)


def kept(keep: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Of each tensor (B, S, any) the inputs that are kept: after the last attention nobody asks for the others."""
    return tensors if keep is None else tuple(one[:, keep] for one in tensors)


def rope_1d(positions: Tensor, head_dim: int, theta: float) -> Rope:
    """cos and sin (S, D), or (B, S, D) of positions (B, S), of position * theta^(-2i/D)."""
    return select.rope_1d(positions, head_dim, theta)


class AxisPositions(nn.Module):
    """Learned vectors of frame, row and column, side by side."""

    def __init__(self, sides: tuple[int, int, int], width: int) -> None:
        super().__init__()
        self.emb = nn.ParameterDict({f"d_{axis}": torch.randn(side, width // 3) for axis, side in enumerate(sides)})

    def forward(self, cells: Tensor) -> Tensor:
        """Of cells by number; that behind the last one, whose output nobody asks for, has the last frame's."""
        tables = [self.emb[f"d_{axis}"] for axis in range(3)]
        frames, rows, cols = (len(table) for table in tables)
        places = ((cells // (rows * cols)).clamp(max=frames - 1), cells // cols % rows, cells % cols)
        return torch.cat([table[place] for table, place in zip(tables, places, strict=True)], dim=-1)
