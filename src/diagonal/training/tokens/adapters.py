"""Training a part of a world: low-rank adapters of its matrices (LoRA, Hu et al., 2021), or its norms and embeddings.

    adapt(module, rank=16, seed=0)  # every matrix of the blocks is W + B A from here on; W rests
    ...                             # train
    lora = adapters(module)         # A and B alone, small
    merge(module)                   # W + B A in one matrix: a plain module again

`generation.load` merges such files in the same way (`checkpoints/lora.py`). B begins as zeros: before the first step
the world is what it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized, register_parametrization, remove_parametrizations

from diagonal.checkpoints.state import State

NORMS, EMBEDDINGS, HEAD = "norms", "embeddings", "head"
PARTS = (NORMS, EMBEDDINGS, HEAD)
MATRICES = "blocks"  # where the adapted matrices are


class LowRank(nn.Module):
    """A matrix W (rows, cols) as W + B A with B (rows, rank) and A (rank, cols)."""

    def __init__(self, weight: Tensor, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        rows, cols = weight.shape
        drawn = torch.randn(rank, cols, generator=generator) / cols**0.5  # on the CPU: the same on every device
        self.down = nn.Parameter(drawn.to(weight.device))
        self.up = nn.Parameter(weight.new_zeros(rows, rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


def adapt(module: nn.Module, rank: int, seed: int) -> None:
    """Give every matrix of the blocks an adapter; nothing else is learnt from here on."""
    module.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for name, linear in list(module.named_modules()):
        if name.startswith(MATRICES) and isinstance(linear, nn.Linear):
            smaller = min(linear.weight.shape)
            if not 1 <= rank <= smaller:
                raise ValueError(f"a LoRA of rank {rank} is asked for; {name} takes 1 to {smaller}")
            register_parametrization(linear, "weight", LowRank(linear.weight, rank, generator))
            linear.parametrizations.weight.original.requires_grad_(False)  # type: ignore[union-attr]


def _adapted(module: nn.Module) -> Iterator[tuple[str, nn.Module, LowRank]]:
    for name, linear in list(module.named_modules()):
        if is_parametrized(linear, "weight"):
            yield name, linear, linear.parametrizations.weight[0]


def adapters(module: nn.Module) -> State:
    """The adapters alone, under the names that PEFT gives them."""
    found: State = {}
    for name, _, pair in _adapted(module):
        found[f"{name}.lora_A.weight"] = pair.down.detach().clone()
        found[f"{name}.lora_B.weight"] = pair.up.detach().clone()
    return found


def merge(module: nn.Module) -> None:
    """Put the adapters into the matrices: the module is as it was before `adapt`, with other numbers."""
    for _, linear, _ in list(_adapted(module)):
        remove_parametrizations(linear, "weight", leave_parametrized=True)


def check_parts(parts: Sequence[str]) -> tuple[str, ...]:
    """These parts, if a model has such."""
    unknown = [part for part in parts if part not in PARTS]
    if unknown or not parts:
        raise ValueError(f"{', '.join(unknown) or 'nothing'} cannot be learnt alone; these can: {', '.join(PARTS)}")
    return tuple(parts)


def learn_only(module: nn.Module, parts: Sequence[str]) -> None:
    """Learn some parts alone: `norms` (and biases), `embeddings`, `head`."""
    parts = check_parts(parts)
    module.requires_grad_(False)
    for name, one in module.named_modules():
        for parameter in one.parameters(recurse=False):
            is_norm = parameter.ndim == 1
            is_head = name == HEAD and not is_norm
            kind = NORMS if is_norm else EMBEDDINGS if isinstance(one, nn.Embedding) else HEAD if is_head else ""
            if kind in parts:
                parameter.requires_grad_(True)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(f"this model has none of {', '.join(parts)}")
