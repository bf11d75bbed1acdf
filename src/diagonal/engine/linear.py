"""A fused linear layer: a matrix multiplication with the norm before it, its activation, and the residual after it.

A layer of a model says what it wants in one piece; which kernels make it is decided by `engine.kernels.select`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

# silu: of the first half of the outputs, times the second (SwiGLU); gelu: the tanh form.
Activation = Literal["silu", "gelu"] | None


@dataclass(frozen=True, slots=True)
class Norm:
    """(x - mean) / std * weight + bias over the last dimension; x / rms(x) * weight if it is not centred."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    centred: bool

    @property
    def gain(self) -> Tensor:
        """The weight of a norm that has one, as all do that are not centred."""
        assert self.weight is not None
        return self.weight


@dataclass(frozen=True, slots=True)
class FusedLinear:
    """f(norm(x) W^T + bias) + residual: what is asked for, without x."""

    weight_NK: Tensor
    bias_N: Tensor | None = None
    norm: Norm | None = None
    act: Activation = None
    residual: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """All that it has."""
        norm = () if self.norm is None else (self.norm.weight, self.norm.bias)
        return [one for one in (self.weight_NK, self.bias_N, self.residual, *norm) if one is not None]


@dataclass(frozen=True, slots=True)
class DeferredLinear:
    """A linear layer that has not run yet: whoever needs its result may fuse it with what comes next."""

    x: Tensor
    linear: FusedLinear
    run: Callable[[Tensor, FusedLinear], Tensor]

    def result(self) -> Tensor:
        """Run it now, by itself."""
        return self.run(self.x, self.linear)
