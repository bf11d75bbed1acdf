"""Draws tokens from logits: valid ids, temperature, top-k, top-p, one random generator per sample.

Every position of a sample has a random number of its own, which depends on the sample's seed alone: a batch gives what
its members give, and two schedules with the same seed share their noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diagonal.engine.kernels import select
from diagonal.planning.sampling import Sampling

LIKELY = 256  # ids that nearly always hold the nucleus


@dataclass(slots=True)
class Sampler:
    """Samples the tokens of a step. `begin` comes before the first step of each window."""

    sampling: Sampling
    ids_U2: Tensor  # valid ids [low, high) at each offset from the start of a frame
    prefix: int
    generators: Sequence[torch.Generator]  # one per sample
    _uniform_BL: Tensor | None = None  # a number for each position of the window
    _ids_2L: Tensor | None = None  # valid ids at each position: the first, and the end

    def begin(self, length: int) -> None:
        """Draw the random numbers of a window of so many positions, in place where there is room for them.

        The token at position p uses number p, whichever step it is decoded in.
        """
        if self._uniform_BL is None or self._uniform_BL.shape[1] < length:
            self._uniform_BL = torch.empty(len(self.generators), length, device=self.ids_U2.device)
            positions = torch.arange(length, device=self.ids_U2.device)
            self._ids_2L = self.ids_U2[(positions - self.prefix) % len(self.ids_U2)].t().contiguous()
        for row_L, generator in zip(self._uniform_BL, self.generators, strict=True):
            row_L[:length].uniform_(generator=generator)

    def __call__(self, logits_BSV: Tensor, positions_S: Tensor) -> Tensor:
        """The tokens at some positions of a window, (B, S)."""
        ids_2L, uniform_BL = self._tables()
        batch, ids_2S = len(logits_BSV), ids_2L[:, positions_S]
        low_R, high_R = ids_2S if batch == 1 else ids_2S.repeat(1, batch)
        uniform_R, draw = uniform_BL[:, positions_S].flatten(), select.sampler(logits_BSV.device) or sample
        return draw(logits_BSV.flatten(0, 1), low_R, high_R, uniform_R, self.sampling).view(batch, -1)

    def into(self, tokens_BL: Tensor, logits_BSV: Tensor, positions_S: Tensor) -> None:
        """Write the tokens at some positions of a window to their places; one kernel where it is available."""
        if select.sampler(tokens_BL.device) is None:
            tokens_BL[:, positions_S] = self(logits_BSV, positions_S)
            return
        select.sample_into(tokens_BL, logits_BSV, *self._tables(), positions_S, self.sampling)

    def _tables(self) -> tuple[Tensor, Tensor]:
        if self._uniform_BL is None or self._ids_2L is None:
            raise ValueError("no random numbers drawn yet; call begin(length) before the first step of a window")
        return self._ids_2L, self._uniform_BL


def generators(seed: int | Sequence[int], batch: int, device: torch.device) -> list[torch.Generator]:
    """One per sample: sample b has seed + b, or the b-th of several seeds."""
    seeds = [seed + index for index in range(batch)] if isinstance(seed, int) else list(seed)
    if len(seeds) != batch:
        raise ValueError(f"{len(seeds)} seeds given for {batch} prompts")
    if not all(0 <= one < 2**63 for one in seeds):
        raise ValueError(f"seed {seed} given; a seed is a whole number from 0 to 2^63 - 1")
    return [torch.Generator(device).manual_seed(one) for one in seeds]


def sample(logits_RV: Tensor, low_R: Tensor, high_R: Tensor, uniform_R: Tensor, sampling: Sampling) -> Tensor:
    """One id (R,) from each row, of those in [low, high).

    The first id at which the cumulative probability of what the filters leave exceeds the row's uniform number in
    [0, 1); at temperature 0 the first of the most likely ids. -1 if no valid id has a finite logit.
    """
    logits_RV = valid_logits(logits_RV.float(), low_R, high_R)
    if sampling.temperature == 0:
        return torch.where(logits_RV.amax(-1) > -torch.inf, logits_RV.argmax(-1), -1)
    cumulative_RV = weights(logits_RV, sampling).cumsum(-1, dtype=torch.float64)
    whole_R1 = cumulative_RV[:, -1:]
    drawn_R1 = torch.searchsorted(cumulative_RV, uniform_R[:, None] * whole_R1, right=True)
    return torch.where(whole_R1 > 0, drawn_R1, -1).squeeze(-1)


def valid_logits(logits_RV: Tensor, low_R: Tensor, high_R: Tensor) -> Tensor:
    """Logits with the ids outside [low, high) at -inf."""
    ids_V = torch.arange(logits_RV.shape[-1], device=logits_RV.device)
    return logits_RV.masked_fill((ids_V < low_R[:, None]) | (ids_V >= high_R[:, None]), -torch.inf)


def weights(logits: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities up to a factor; 0 for what top-k, and then top-p of the rest, exclude.

    top-k keeps the logits that fewer than k others exceed. top-p keeps those that others of probability top_p at most
    exceed; without keep_crossing their own probability, and that of their equals, must fit in as well, but the greatest
    stay in any case. So equal logits share their fate.
    """
    top = logits.amax(-1, keepdim=True)
    # The difference first: logits divided by a small temperature would lose their last digits.
    weights = ((logits - top) / sampling.temperature).exp()
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        kth = logits.topk(sampling.top_k).values[..., -1:]
        weights = weights.masked_fill(logits < kth, 0)
    if sampling.top_p is not None and sampling.top_p < 1:
        crossing = _crossing(logits, weights, sampling.top_p)
        out = logits < crossing if sampling.keep_crossing else (logits <= crossing) & (logits < top)
        weights = weights.masked_fill(out, 0)
    return weights


def _crossing(logits: Tensor, weights: Tensor, top_p: float) -> Tensor:
    """The logit whose weight, added to that of all greater ones, first exceeds top_p of the whole.

    The nucleus is nearly always small: on a CPU the greatest logits are looked at first, and all are sorted only where
    these do not reach top_p. Elsewhere the question would stop the device, so all are sorted at once.
    """
    size, limit = logits.shape[-1], top_p * weights.sum(-1, keepdim=True, dtype=torch.float64)
    for count in (LIKELY, size) if logits.device.type == "cpu" and size > LIKELY else (size,):
        ordered, ids = logits.topk(count)
        likely = weights.gather(-1, ids)
        before = likely.cumsum(-1, dtype=torch.float64) - likely
        if count == size or bool((before[..., -1:] > limit).all()):
            break
    last = ((before <= limit).sum(-1, keepdim=True) - 1).clamp(min=0)
    return ordered.gather(-1, last)
