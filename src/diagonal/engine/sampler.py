"""Draws tokens from logits: valid ids, temperature, top-k, top-p, and Gumbel-max with noise by (seed, position, id).

The noise of a token is that of its position in the video, and depends on the sample's seed alone (`engine.noise`): a
batch gives what its members give, and two schedules or two windowings with the same seed share their noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from diagonal.engine import noise
from diagonal.engine.kernels import select
from diagonal.engine.kernels.targets import Targets
from diagonal.planning.sampling import Sampling

LIKELY = 256  # ids that nearly always hold the nucleus


@dataclass(slots=True)
class Sampler:
    """Samples the tokens of a step. `begin` comes before the first step of each window."""

    sampling: Sampling
    ids_U2: Tensor  # valid ids [low, high) at each offset from the start of a frame
    prefix: int
    seeds_B: Tensor  # one per sample
    _start: Tensor | None = None  # (): the position of the window's first slot
    _ids_2L: Tensor | None = None  # valid ids in each slot: the first, and the end

    def begin(self, length: int, start: int) -> None:
        """Take up a window of so many slots, the first of which has position `start` of the video. All tensors stay
        where they are if there is room: captured graphs read them."""
        if self._start is None:
            self._start = torch.zeros((), dtype=torch.long, device=self.ids_U2.device)
        if self._ids_2L is None or self._ids_2L.shape[1] < length:
            slots = torch.arange(length, device=self.ids_U2.device)
            self._ids_2L = self.ids_U2[(slots - self.prefix) % len(self.ids_U2)].t().contiguous()
        self._start.fill_(start)

    def __call__(self, logits_BSV: Tensor, slots_S: Tensor) -> Tensor:
        """The tokens in some slots of a window, (B, S)."""
        draw = select.sampler(logits_BSV.device) or sample
        drawn_R = draw(logits_BSV.flatten(0, 1), *self._targets(slots_S).by_row(), self.sampling)
        return drawn_R.view(len(logits_BSV), -1)

    def into(self, tokens_BL: Tensor, logits_BSV: Tensor, slots_S: Tensor) -> None:
        """Write the tokens in some slots of a window to their places; one kernel where it is available."""
        draw_into(tokens_BL, logits_BSV, self._targets(slots_S), self.sampling)

    def owned(self) -> Sampler:
        """The same with seeds of its own, which may change."""
        return replace(self, seeds_B=self.seeds_B.clone())

    def adopt(self, other: Sampler) -> None:
        """Go on with the seeds of another, in place."""
        self.seeds_B.copy_(other.seeds_B)

    def _targets(self, slots_S: Tensor) -> Targets:
        if self._start is None or self._ids_2L is None:
            raise ValueError("no window begun yet; call begin(length, start) before the first step of a window")
        return Targets(slots_S, slots_S, self.seeds_B, self._ids_2L, start=self._start)


def seeds(seed: int | Sequence[int], batch: int, device: torch.device) -> Tensor:
    """One per sample: sample b has seed + b, or the b-th of several seeds."""
    listed = [seed + index for index in range(batch)] if isinstance(seed, int) else list(seed)
    if len(listed) != batch:
        raise ValueError(f"{len(listed)} seeds given for {batch} prompts")
    if not all(0 <= one < 2**63 for one in listed):
        raise ValueError(f"seed {seed} given; a seed is a whole number from 0 to 2^63 - 1")
    return torch.tensor(listed, dtype=torch.long, device=device)


def draw_into(tokens_NL: Tensor, logits_BSV: Tensor, targets: Targets, sampling: Sampling) -> None:
    """Draw a token for each row of logits and write it to its place; one kernel where it is available."""
    write = sample_into if select.sampler(tokens_NL.device) is None else select.sample_into
    write(tokens_NL, logits_BSV, targets, sampling)


def sample_into(tokens_NL: Tensor, logits_BSV: Tensor, targets: Targets, sampling: Sampling) -> None:
    """Draw a token for each row of logits and write it to its place: the twin of `select.sample_into`."""
    drawn_R = sample(logits_BSV.flatten(0, 1), *targets.by_row(), sampling)
    tokens_NL[targets.where] = drawn_R.view(targets.batch, targets.inputs)


def sample(
    logits_RV: Tensor, low_R: Tensor, high_R: Tensor, seeds_R: Tensor, positions_R: Tensor, sampling: Sampling
) -> Tensor:
    """One id (R,) from each row, of those in [low, high).

    Of the ids that the filters leave, the one with the greatest exp(logit / temperature) / E(seed, position, id), E
    exponential: that is a draw from their softmax. At temperature 0 the most likely id. Of equals the first. -1 if no
    valid id has a finite logit.
    """
    logits_RV = valid_logits(logits_RV.float(), low_R, high_R)
    if sampling.temperature == 0:
        return torch.where(logits_RV.amax(-1) > -torch.inf, logits_RV.argmax(-1), -1)
    scores_RV, keys_R = weights(logits_RV, sampling), noise.keys(seeds_R, positions_R)
    # For all ids: to take out those that are left takes as long as their noise, and the question stops a device.
    scores_RV /= noise.exponential(keys_R[:, None], torch.arange(logits_RV.shape[-1], device=logits_RV.device))
    return torch.where(scores_RV.amax(-1) > 0, scores_RV.argmax(-1), -1)


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
