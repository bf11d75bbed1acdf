"""Tiny models on small grids, and one way to run a plan that also records the logits it sampled from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from diagonal.catalog.names import find, listing
from diagonal.catalog.variants import Variant
from diagonal.engine.attention import Dense
from diagonal.engine.sampler import Sampler
from diagonal.engine.tokens.cache import KVCache
from diagonal.engine.tokens.decode import decode
from diagonal.engine.tokens.protocols import TokenMemory
from diagonal.engine.tokens.runner import Eager
from diagonal.planning.plan import Plan
from diagonal.planning.sampling import Sampling

TOKENS = [name for name in listing("models") if isinstance(find("models", name), Variant)]  # the rest denoises latents
ALL_TINY = [name for name in TOKENS if "tiny" in name]  # every family has at least one
TINY = [name for name in ALL_TINY if find("models", name).prompt_frames]  # those that continue a clip
PLAIN = [*TINY, "videogpt/tiny"]  # as models alone, on any grid, bound to nothing
GREEDY = Sampling(temperature=0)


def tiny_config(name: str, **changes: Any) -> Any:
    """A tiny variant's config on a grid small enough to try everything."""
    variant: Variant = find("models", name)
    config: Any = variant.config
    return replace(config, **({"rows": 4, "cols": 6, "frames": 6, "reference_frames": 2} | changes))


def build(config: Any, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return config.build().eval().requires_grad_(False)


class Recorded:
    """A model that keeps the logits of every kept input."""

    def __init__(self, model: Any) -> None:
        self.model, self.cache_spec = model, model.cache_spec
        self.logits: list[Tensor] = []

    def __call__(self, tokens_BS: Tensor, slots_S: Tensor, memory: TokenMemory, keep: Tensor | None = None) -> Tensor:
        logits: Tensor = self.model(tokens_BS, slots_S, memory, keep)
        self.logits.append(logits.clone())
        return logits


def sampler(config: Any, plan: Plan, sampling: Sampling, seeds: list[int]) -> Sampler:
    return Sampler(sampling, torch.tensor(config.valid_ids()), plan.layout.prefix, torch.tensor(seeds))


def random_prompt(config: Any, plan: Plan, batch: int = 1, seed: int = 0) -> Tensor:
    """Given tokens everywhere, -1 in the cells to decode: a read of one would fail."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(config.codebook, (batch, plan.layout.length), generator=generator)
    for frame in range(plan.known, plan.layout.grid.frames):
        tokens[:, plan.layout.frame(frame)] = -1
    for frame in range(plan.acts, plan.layout.grid.frames - 1):
        tokens[:, plan.layout.after(frame)] = -1
    return tokens


def new_cache(model: Any, plan: Plan, batch: int = 1) -> KVCache:
    return KVCache(model.cache_spec, batch, plan.layout.length, torch.device("cpu"), torch.float32)


def run(
    model: Any, plan: Plan, tokens: Tensor, sampling: Sampling = GREEDY, seeds: list[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Decode a plan: the filled-in tokens, and the logits (B, written, V) in the order of the steps."""
    recorded, tokens = Recorded(model), tokens.clone()
    chosen = sampler(model.config, plan, sampling, seeds or [0] * len(tokens))
    for _ in decode(Eager(recorded, new_cache(model, plan, len(tokens)), chosen), plan, tokens):
        pass
    return tokens, torch.cat(recorded.logits, dim=1)


def naive(model: Any, plan: Plan, prompt: Tensor) -> Tensor:
    """Greedy tokens of one sample by a loop that knows neither plans nor caches: what a raster plan must give."""
    tokens, config = prompt.clone(), model.config
    for position in range(plan.layout.length - config.suffix):
        if tokens[0, position] == -1:
            low, high = config.valid_ids()[position % plan.layout.unit]
            causal = Dense(torch.ones(position, position, dtype=torch.bool).tril())
            logits = model(tokens[:, :position], torch.arange(position), causal)
            tokens[0, position] = logits[0, -1, low:high].argmax() + low
    return tokens
