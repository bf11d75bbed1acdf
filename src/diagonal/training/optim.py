"""Muon for matrices, and the learning rate over a run.

Muon (Jordan et al., 2024) makes the momentum of a weight matrix orthogonal by a few Newton-Schulz steps. Matrices of
the same shape are stacked, so a model of many equal layers needs few large products instead of many small ones.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonal(update: Tensor, steps: int = 5) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly, of a stack (N, rows, cols), in bfloat16."""
    a, b, c = COEFFICIENTS
    x = update.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.mT if tall else x
    return result


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, made orthogonal; lr scaled by sqrt(max(1, rows/cols)); decoupled weight decay.

    A convolution counts as the matrix with a row for each output: (outputs, inputs x places)."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes[parameter.shape].append(parameter)
            for shape, parameters in shapes.items():
                self._update(shape, parameters, group)
        return None

    def _update(self, shape: torch.Size, parameters: list[Tensor], group: dict[str, Any]) -> None:
        grads: list[Tensor] = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for parameter in parameters:
            if "momentum" not in self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        buffers = [self.state[parameter]["momentum"] for parameter in parameters]
        torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
        ahead = torch._foreach_lerp(grads, buffers, group["momentum"])
        updates = orthogonal(torch.stack([one.flatten(1) for one in ahead])).to(parameters[0].dtype)
        rate = group["lr"] * math.sqrt(max(1.0, shape[0] / updates.shape[2]))
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, [one.view(shape) for one in updates.unbind(0)], alpha=-rate)


def matrices_and_rest(module: nn.Module, inside: str) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Weight matrices under the submodule `inside`, and all other parameters."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        (matrices if name.startswith(inside) and parameter.ndim == 2 else rest).append(parameter)
    return matrices, rest


def rate(step: int, steps: int, warmup: int, decay_from: float) -> float:
    """Learning rate over its peak: linear warm-up, constant, cosine to zero over the last part of the run."""
    if step < warmup:
        return (step + 1) / warmup
    begin = int(steps * decay_from)
    if step < begin:
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (step - begin) / max(1, steps - begin)))
