"""Draws tokens from logits: valid ids, temperature, top-k, top-p, one random generator per sample.

A sample's stream of random numbers depends on its own seed alone, so a batch gives what its members give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diagonal.engine.protocols import Sampling


def filter_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits over temperature, with what top-k and top-p exclude at -inf."""
    logits = logits.float() / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        kth = logits.topk(sampling.top_k).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)  # ties with the k-th stay
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, ids = logits.sort(descending=True)
        probs = ordered.softmax(-1)
        mass = probs.cumsum(-1)
        out = (mass - probs if sampling.keep_crossing else mass) > sampling.top_p
        out[..., 0] = False
        logits = logits.masked_fill(out.scatter(-1, ids, out), -torch.inf)
    return logits


@dataclass(frozen=True, slots=True)
class Sampler:
    """Samples the tokens of a step."""

    sampling: Sampling
    ids_U2: Tensor  # valid ids [low, high) at each offset from the start of a frame
    prefix: int
    generators: Sequence[torch.Generator]  # one per sample

    def __call__(self, logits_BSV: Tensor, positions_S: Tensor) -> Tensor:
        logits_BSV = self._valid(logits_BSV.float(), positions_S)
        if self.sampling.temperature == 0:
            return logits_BSV.argmax(-1)
        probs = filter_logits(logits_BSV, self.sampling).softmax(-1)
        # The first id whose cumulative probability exceeds a uniform number: one random number per token, no host sync.
        cumulative = probs.double().cumsum(-1)
        draws = [
            torch.rand(len(p), 1, generator=g, device=p.device) for p, g in zip(probs, self.generators, strict=True)
        ]
        return torch.searchsorted(cumulative, torch.stack(draws) * cumulative[..., -1:], right=True).squeeze(-1)

    def _valid(self, logits_BSV: Tensor, positions_S: Tensor) -> Tensor:
        low, high = self.ids_U2[(positions_S - self.prefix) % len(self.ids_U2)].unbind(-1)
        ids = torch.arange(logits_BSV.shape[-1], device=logits_BSV.device)
        valid = (ids >= low[:, None]) & (ids < high[:, None])
        return logits_BSV.masked_fill(~valid, -torch.inf)
