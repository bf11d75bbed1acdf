"""What decoding takes of a GPU's memory, computed from a model's sizes before anything is loaded.

With b bytes per number, batch B, width M, widest layer F, H query and K key heads of width D, V ids; S inputs of the
widest step, as a rule the first, which is fed the prompt, and L slots that it sees; W tokens sampled at once at most:

    weights, tokenizer   b * parameters
    cache                b * 2 * layers * B * K * slots * D
    activations          S * L + the largest of these three, since none outlives the next:
        attention        b * B * S * (2M + 4HD + 3KD) + H/K * S * L * (1 + b)
        feed-forward     b * B * S * (3M + 2F)
        sampling         45 * B * W * V

Attention holds the residual and its norm; q, k and v as they are made, rotated, packed, and the result; and what the
kernel makes of the mask S * L. Feed-forward holds the residual, the norm, the result, the widest layer's output and
what is made of it. Only sampled positions have logits: in float32, sorted and summed in float64 where top-p needs it,
and 64 bits of noise for each; where Triton is, a kernel reads them as they are, and takes less.

Not counted: pixels while the tokenizer works, what layers keep of pictures that steer a video, the CUDA context, and
the allocator's gaps. A card called 24 GB has 24 GiB, 7 % more than the 24 * 10^9 bytes it is taken for here; the rest
is theirs. On a CPU the cache is in float32, whatever the weights are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from diagonal.catalog.names import find
from diagonal.catalog.variants import DiffusionVariant, Variant
from diagonal.engine.kernels.visibility import whole_blocks
from diagonal.engine.protocols import CacheSpec
from diagonal.engine.ranks import Ranks
from diagonal.models.sharding import divide
from diagonal.planning.plan import Plan

GB = 10**9
CARDS = (24, 40, 48, 80, 96, 141)  # GB of well-known GPUs
USABLE = 0.9  # of what is free: what a step computes with needs some too
SAMPLED = 45  # bytes for each logit that is sampled from


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes of each part."""

    weights: int
    tokenizer: int
    cache: int
    activations: int

    @property
    def peak(self) -> int:
        """All of them at once."""
        return self.weights + self.tokenizer + self.cache + self.activations


def estimate(variant: Variant, plans: Sequence[Plan], batch: int, dtype: torch.dtype, gpus: int = 1) -> Estimate:
    """The memory that decoding these plans, one after the other with one cache, takes on a GPU: alone, or on each of
    several that share the model by tensor parallelism."""
    with torch.device("meta"):
        model, tokenizer = variant.config.build(), find("tokenizers", variant.tokenizer).build()
    if gpus > 1:
        divide(model, "the model", Ranks(0, gpus, torch.device("meta")))
    spec, slots = cast(CacheSpec, model.cache_spec), whole_blocks(max(plan.layout.length for plan in plans))
    return Estimate(
        weights=_numbers(model) * dtype.itemsize,
        tokenizer=_numbers(tokenizer) * dtype.itemsize,
        cache=2 * spec.layers * batch * spec.kv_heads * slots * spec.head_dim * dtype.itemsize,
        activations=max(_activations(model, plan, batch, dtype.itemsize) for plan in plans),
    )


def seat_bytes(spec: CacheSpec, slots: int, dtype: torch.dtype) -> int:
    """The cache of one live session."""
    return 2 * spec.layers * spec.kv_heads * whole_blocks(slots) * spec.head_dim * dtype.itemsize


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device; on a CPU that of the machine."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # a system that does not say
        return sys.maxsize


def check_seats(seats: int, each: int, free: int) -> None:
    """Refuse more live sessions than memory holds, at so many bytes each."""
    if seats < 1:
        raise ValueError(f"{seats} seats asked for; an arena has at least 1")
    fits = int(USABLE * free) // each
    if seats > fits:
        raise ValueError(
            f"{seats} seats asked for; {fits} fit: the keys and values of one are {each / 2**20:,.0f} MiB, and "
            f"{free / 2**30:,.1f} GiB are free"
        )


@dataclass(frozen=True, slots=True)
class VideoEstimate:
    """Bytes of the parts of a diffusion model that stay while a video is made; what a call or a decoded piece needs
    for itself comes on top."""

    transformer: int
    cache: int
    text: int  # keys and values of the prompt
    vae: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.transformer + self.cache + self.text + self.vae


def estimate_video(variant: DiffusionVariant, cached: int, dtype: torch.dtype, texts: int = 1) -> VideoEstimate:
    """The memory of a diffusion model with so many tokens in its caches, and keys of so many prompts."""
    with torch.device("meta"):
        model, vae = (one.build().to(dtype) for one in (variant.config, find("tokenizers", variant.vae)))
    spec = cast(CacheSpec, model.cache_spec)
    token = 2 * spec.layers * spec.kv_heads * spec.head_dim * dtype.itemsize
    return VideoEstimate(
        transformer=_bytes(model),
        cache=cached * token,
        text=texts * variant.config.text_length * token,
        vae=_bytes(vae),
    )


def _numbers(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in module.state_dict().values())


def _bytes(module: nn.Module) -> int:
    """Of a module as it was cast, which may leave some numbers in another dtype."""
    return sum(tensor.nbytes for tensor in module.state_dict().values())


def _activations(model: nn.Module, plan: Plan, batch: int, size: int) -> int:
    """Bytes in use at once while the widest step of a plan is computed, or its most sampled one."""
    spec = cast(CacheSpec, model.cache_spec)
    widest = int(plan.widths.argmax())
    inputs, seen = int(plan.widths[widest]), 1 + max(int(step.slot.max()) for step in plan.steps[: widest + 1])
    # The head, a layer of the model itself, sees sampled positions only.
    inner = [layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and "." in name]
    feed = max(inner, key=lambda layer: layer.out_features)
    ids = max(table.num_embeddings for table in model.modules() if isinstance(table, nn.Embedding))
    heads = spec.head_dim * spec.kv_heads * (4 * spec.group + 3)
    attention = size * batch * inputs * (2 * feed.in_features + heads) + spec.group * inputs * seen * (1 + size)
    feed_forward = size * batch * inputs * (3 * feed.in_features + 2 * feed.out_features)
    sampling = SAMPLED * batch * int(plan.decoded.max()) * ids
    return max(attention, feed_forward, sampling) + inputs * seen
