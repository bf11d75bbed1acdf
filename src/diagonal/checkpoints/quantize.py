"""Fewer bits for the matrices of a model. What that changes is measured, never assumed.

`int8`, for token models: half the bytes of bfloat16. It saves memory, and time in products of few rows only. Weights
alone are rounded, row by row; activations stay as they are.

`fp8`, for token models and diffusion models: twice the arithmetic of bfloat16 on GPUs that have it (Hopper, Ada and
later), and half the bytes. It saves time where steps are wide and the model is large. The products take weights and
activations in fp8, each row with a scale of its own.

Attention, keys and values, embeddings and norms stay in all of them. What this does to a token model's choices is
measured by `evaluation.agreement`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import cast

import torch
from torch import nn

from diagonal.checkpoints.int8 import int8_rows
from diagonal.engine.kernels.reference import FP8_SIDE, fp8_rows
from diagonal.models.layers import Fp8Linear, Int8Linear, ScaledRows

KINDS = ("int8", "fp8")  # of token models
VIDEO_KINDS = ("fp8",)  # of diffusion models

# Layers that make keys and values of a text, once a video (their names: docs/add-a-model.md).
FEW = ("cross_attn.kv", "text_kv", "gates")  # of diffusion models
ONCE = re.compile(r"\.text_\w+\.kv$")


def check(kind: str | None, kinds: tuple[str, ...] = KINDS) -> None:
    """Refuse a kind of weights that there is not."""
    if kind is not None and kind not in kinds:
        raise ValueError(f"quantize={kind!r} is not known; write {', '.join(map(repr, kinds))}, or leave it out")


def quantize(model: nn.Module, kind: str) -> None:
    """Replace the linear layers of a token model by ones with weights of a kind, in place.

    All that a step reads as a whole is rounded: the matrices of the blocks and of the head. Where a model's head is its
    embedding (WHAM), it stays as it is. With fp8, so do matrices whose sides are not multiples of 16, which GPUs cannot
    multiply in it (the head of MC-AR).
    """
    check(kind)
    _replace(model, kind, lambda name: not ONCE.search(name))


def quantize_blocks(model: nn.Module) -> None:
    """Replace the linear layers in the blocks of a diffusion model by ones of fp8, in place. Those that make keys and
    values of a text, once a prompt, or gates, of one row a chunk, stay, and so do those whose sides are not multiples
    of 16."""
    _replace(model, "fp8", lambda name: name.startswith("blocks.") and not name.endswith(FEW))


@torch.no_grad()
def _replace(model: nn.Module, kind: str, wanted: Callable[[str], bool]) -> None:
    """Put rounded layers in place of linear ones with wanted names, one after the other: the old one is then free."""
    for name in [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and wanted(name)]:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, _rounded(cast(nn.Linear, model.get_submodule(name)), kind))


def _rounded(linear: nn.Linear, kind: str) -> nn.Linear | ScaledRows:
    """The layer with its weights rounded; the layer itself where fp8 cannot take them."""
    if kind == "int8":
        return Int8Linear(*int8_rows(linear.weight), linear.bias)
    if any(side % FP8_SIDE for side in linear.weight.shape):
        return linear
    rows_NK, scale_N1 = fp8_rows(linear.weight)
    return Fp8Linear(rows_NK, scale_N1.flatten(), linear.bias)
