"""Linear layers to try kernels with, and what they should come to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from diagonal.engine.kernels.select import linear as make
from diagonal.engine.linear import FusedLinear, Norm

# How far a result in bfloat16 may be off, of the largest: half of its last bit, and a little for the sum it was.
NEAREST = 1.1 * 2**-8


def random(*shape: int, scale: float = 1.0, device: str = "cuda") -> Tensor:
    return (scale * torch.randn(*shape, device=device)).bfloat16()


def random_linear(kind: str, tokens: int, rows: int, depth: int, device: str = "cuda") -> FusedLinear:
    weight, gain = random(rows, depth, scale=depth**-0.5, device=device), 1 + random(depth, scale=0.3, device=device)
    norms: dict[str, Norm] = {
        "rms": Norm(gain, None, 1e-5, centred=False),
        "layer": Norm(None, None, 1e-5, centred=True),
        "affine": Norm(gain, random(depth, device=device), 1e-5, centred=True),
    }
    act: Any = "silu" if "silu" in kind else "gelu" if "gelu" in kind else None
    return FusedLinear(
        weight,
        random(rows, device=device) if "bias" in kind else None,
        next((norm for name, norm in norms.items() if name in kind), None),
        act,
        random(tokens, rows, device=device) if "residual" in kind else None,
    )


def double(linear: FusedLinear) -> FusedLinear:
    def up(part: Tensor | None) -> Tensor | None:
        return None if part is None else part.double()

    norm = linear.norm and replace(linear.norm, weight=up(linear.norm.weight), bias=up(linear.norm.bias))
    weight = linear.weight_NK.double()
    return FusedLinear(weight, up(linear.bias_N), norm, linear.act, up(linear.residual))


def usual(x: Tensor, linear: FusedLinear) -> Tensor:
    """In plain torch: with gradients no kernel is asked."""
    with torch.enable_grad():
        return make(x, linear)


def check_linear(found: Tensor, x: Tensor, linear: FusedLinear) -> None:
    """Against float64. What a norm or an activation takes is rounded on the way."""
    wanted = usual(x.double(), double(linear))
    assert found.shape == wanted.shape and found.dtype == torch.bfloat16
    bound = NEAREST * (4 if linear.norm or linear.act else 1)
    assert (found.double() - wanted).abs().max() <= bound * wanted.abs().max(), tuple(linear.weight_NK.shape)
