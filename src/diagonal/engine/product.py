"""One product of a block with what stands before and after it: what a kernel may take in one, said in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

# silu: of the first half of the outputs, times the second; gelu: the tanh form.
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
class Product:
    """f(norm(x) W^T + bias), or that onto a residual."""

    weight_NK: Tensor
    bias_N: Tensor | None = None
    norm: Norm | None = None
    act: Activation = None
    residual: Tensor | None = None

    def parts(self) -> list[Tensor]:
        """All its tensors."""
        norm = () if self.norm is None else (self.norm.weight, self.norm.bias)
        return [part for part in (self.weight_NK, self.bias_N, self.residual, *norm) if part is not None]


@dataclass(frozen=True, slots=True)
class Pending:
    """A product that nobody has made yet: whoever needs it may make it together with something else."""

    x: Tensor
    asked: Product
    make: Callable[[Tensor, Product], Tensor]

    def made(self) -> Tensor:
        return self.make(self.x, self.asked)
