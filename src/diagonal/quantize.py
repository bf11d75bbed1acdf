"""Fewer bits for the matrices of a model. What that changes is measured, never assumed.

`int8`, for token models: half the bytes of bfloat16, for steps that take as long as their weights take to read. Only
weights are quantised, row by row; activations, keys and values, embeddings and norms stay as they are. What that does
to a model's choices is measured by `evaluation.agreement`.

`fp8`, for diffusion models: twice the arithmetic of bfloat16 on GPUs that have it (Hopper, Ada and later). The products
of the blocks take weights and activations in fp8, each row with a scale of its own; attention stays as it is.
"""

from __future__ import annotations

import re

import torch
from torch import nn

from diagonal.engine.kernels.plain import fp8_rows
from diagonal.models.layers import Fp8Linear, Int8Linear
from diagonal.weights import int8_rows

KINDS = ("int8",)  # of token models
VIDEO_KINDS = ("fp8",)  # of diffusion models

# Layers that make keys and values of a text, once a video (their names: docs/add-a-model.md).
ONCE = re.compile(r"\.text_\w+\.kv$")


def check(kind: str | None, kinds: tuple[str, ...] = KINDS) -> None:
    """Refuse a kind of weights that there is not."""
    if kind is not None and kind not in kinds:
        raise ValueError(f"quantize={kind!r} is not known; write {', '.join(map(repr, kinds))}, or leave it out")


def quantize(model: nn.Module, device: torch.device | None = None) -> None:
    """Replace the linear layers of a token model by ones with weights of int8, in place.

    All that a step reads as a whole becomes int8: the matrices of the blocks and of the head. Where a model's head is
    its embedding (WHAM), it stays as it is. With a `device`, each layer is moved there before it is quantised: a large
    model never is there as a whole.
    """
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and not ONCE.search(name):
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, _int8(layer, device))


@torch.no_grad()
def _int8(linear: nn.Linear, device: torch.device | None) -> Int8Linear:
    linear = linear.to(device=device)
    return Int8Linear(*int8_rows(linear.weight), linear.bias)


@torch.no_grad()
def quantize_blocks(model: nn.Module) -> None:
    """Replace the linear layers in the blocks of a diffusion model by ones of fp8, in place; those that make keys and
    values of a text, once a prompt, stay."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and name.startswith("blocks.") and not name.endswith("cross_attn.kv"):
            rows_NK, scale_N1 = fp8_rows(layer.weight)
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, Fp8Linear(rows_NK, scale_N1.flatten(), layer.bias))
