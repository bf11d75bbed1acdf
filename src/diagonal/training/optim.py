"""Muon for matrices, and the learning rate over a run.

Muon (Jordan et al., 2024) makes the momentum of a weight matrix orthogonal by a few Newton-Schulz steps. Matrices of
the same shape are stacked, so a model of many equal layers needs few large GEMMs instead of many small ones.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonal(update: Tensor, steps: int = 5) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly, of a stack (N, rows, cols), in bfloat16."""
    a, b, c = COEFFICIENTS
    x = update.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):  # x = a x + (b g + c g g) x with g = x x^T: three operators, and sums are rounded once
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
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
            learnt = {parameter: parameter.grad for parameter in group["params"] if parameter.grad is not None}
            if learnt:
                self._update(list(learnt), list(learnt.values()), group)
        return None

    def _update(self, parameters: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        for parameter in parameters:
            if "momentum" not in self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        buffers = [self.state[parameter]["momentum"] for parameter in parameters]
        torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
        ahead = torch._foreach_lerp(grads, buffers, group["momentum"])
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        stacks: dict[Any, list[int]] = defaultdict(list)
        matrices = [_whole(one).flatten(1) for one in ahead]
        for index, matrix in enumerate(matrices):
            stacks[matrix.shape, matrix.dtype].append(index)
        for ((rows, cols), dtype), chosen in stacks.items():
            made = orthogonal(torch.stack([matrices[index] for index in chosen]))
            # Contiguous as the weights are: else a GPU adds them one by one.
            each = made.to(dtype, memory_format=torch.contiguous_format).unbind()
            moved = [parameters[index] for index in chosen]
            changes = [_like(parameter, one.view(parameter.shape)) for one, parameter in zip(each, moved, strict=True)]
            torch._foreach_add_(moved, changes, alpha=-group["lr"] * math.sqrt(max(1.0, rows / cols)))


def _whole(one: Tensor) -> Tensor:
    """A matrix of which each process may have some rows: gathered, for all of it decides which rotation is near."""
    return one.full_tensor() if isinstance(one, DTensor) else one


def _like(parameter: Tensor, change: Tensor) -> Tensor:
    """The rows of a change that belong to this process's rows of a parameter."""
    if not isinstance(parameter, DTensor):
        return change
    return distribute_tensor(change, parameter.device_mesh, parameter.placements, src_data_rank=None)


def matrices_and_rest(module: nn.Module, inside: str) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Weight matrices under the submodule `inside`, and all other parameters."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        (matrices if name.startswith(inside) and parameter.ndim == 2 else rest).append(parameter)
    return matrices, rest


def adam(
    module: nn.Module,
    lr: float,
    betas: tuple[float, float],
    weight_decay: float,
    parameters: Sequence[nn.Parameter] | None = None,
) -> torch.optim.Optimizer:
    """The optimizer of all that is learnt here, or of some of its parameters, over float32 weights."""
    wrong = [name for name, one in module.named_parameters() if one.dtype != torch.float32]
    if wrong:
        raise ValueError(f"{wrong[0]} and {len(wrong) - 1} more are not float32; small updates would be lost: convert")
    chosen = list(module.parameters()) if parameters is None else parameters
    return torch.optim.AdamW(chosen, lr=lr, betas=betas, weight_decay=weight_decay, fused=chosen[0].is_cuda)


def rate(step: int, steps: int, warmup: int, decay_from: float) -> float:
    """Learning rate over its peak: linear warm-up, constant, cosine to zero over the last part of the run."""
    if step < warmup:
        return (step + 1) / warmup
    begin = int(steps * decay_from)
    if step < begin:
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (step - begin) / max(1, steps - begin)))
