"""Draws tokens from logits: valid ids, temperature, top-k, top-p, one random generator per sample.

A sample's stream of random numbers depends on its own seed alone, so a batch gives what its members give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diagonal.engine.protocols import Sampling

AHEAD = 4096  # random numbers drawn at a time
LIKELY = 256  # ids that nearly always hold the nucleus


def filter_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits over temperature, with what top-k and top-p exclude at -inf."""
    logits = logits.float() / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        kth = logits.topk(sampling.top_k).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)  # ties with the k-th stay
    if sampling.top_p is not None and sampling.top_p < 1:
        logits = _nucleus(logits, sampling.top_p, sampling.keep_crossing)
    return logits


def _nucleus(logits: Tensor, top_p: float, keep_crossing: bool) -> Tensor:
    """Logits with all but the most likely ids, which together have top_p, at -inf.

    The nucleus is nearly always small: the largest logits are looked at first, and all are sorted only where these do
    not reach top_p.
    """
    total = logits.logsumexp(-1, keepdim=True)
    for count in (min(LIKELY, logits.shape[-1]), logits.shape[-1]):
        ordered, ids = logits.topk(count)
        probs = (ordered - total).exp()
        mass = probs.cumsum(-1)
        if count == logits.shape[-1] or bool((mass[..., -1] > top_p).all()):
            break
    out = (mass - probs if keep_crossing else mass) > top_p
    out[..., 0] = False
    return torch.full_like(logits, -torch.inf).scatter(-1, ids, ordered.masked_fill(out, -torch.inf))


@dataclass(slots=True)
class Sampler:
    """Samples the tokens of a step. Each sample consumes one uniform number per token, from its own generator."""

    sampling: Sampling
    ids_U2: Tensor  # valid ids [low, high) at each offset from the start of a frame
    prefix: int
    generators: Sequence[torch.Generator]  # one per sample
    _drawn_BN: Tensor | None = None  # numbers drawn ahead, many at a time: a draw per step and sample would be slow
    _used: int = 0

    def __call__(self, logits_BSV: Tensor, positions_S: Tensor) -> Tensor:
        logits_BSV = self._valid(logits_BSV.float(), positions_S)
        if self.sampling.temperature == 0:
            return logits_BSV.argmax(-1)
        probs = filter_logits(logits_BSV, self.sampling).softmax(-1)
        # The first id whose cumulative probability exceeds a uniform number: one random number per token, no host sync.
        cumulative = probs.double().cumsum(-1)
        draws_BS1 = self._uniform(probs.shape[1], probs.device)[..., None].double()
        return torch.searchsorted(cumulative, draws_BS1 * cumulative[..., -1:], right=True).squeeze(-1)

    def _uniform(self, count: int, device: torch.device) -> Tensor:
        """The next `count` numbers of every sample, (B, count)."""
        if self._drawn_BN is None or self._used + count > self._drawn_BN.shape[1]:
            ahead = max(count, AHEAD)
            fresh = [torch.rand(ahead, generator=generator, device=device) for generator in self.generators]
            left = [] if self._drawn_BN is None else [self._drawn_BN[:, self._used :]]
            self._drawn_BN, self._used = torch.cat([*left, torch.stack(fresh)], dim=1), 0
        self._used += count
        return self._drawn_BN[:, self._used - count : self._used]

    def _valid(self, logits_BSV: Tensor, positions_S: Tensor) -> Tensor:
        low, high = self.ids_U2[(positions_S - self.prefix) % len(self.ids_U2)].unbind(-1)
        ids = torch.arange(logits_BSV.shape[-1], device=logits_BSV.device)
        valid = (ids >= low[:, None]) & (ids < high[:, None])
        return logits_BSV.masked_fill(~valid, -torch.inf)
