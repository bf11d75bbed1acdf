"""Speculative Jacobi decoding, and its coupled forms: raster's distribution, by rejection. For comparison.

A draft x of a cell was drawn from q; a call gives p, what raster would draw from if the cells before are right. In the
order of cells, x is right with probability min(1, p(x) / q(x)); the first that is not is drawn from the part of p above
q, and is right too. What is drafted for the cells after it, now from p, is where the rules differ:

- sjd: a new draw (Teng et al., arXiv:2410.01699). Two draws from nearly equal flat distributions rarely agree, so it
  stalls.
- coupled: the outcome of the same accept-or-replace, the draw from p that agrees with x as often as any can (maximal
  coupling; So et al., arXiv:2510.24211).
- gumbel: a draw with noise that belongs to the position (So et al.).

A draft that nobody drew has the whole of q. Coins depend on (seed, position, call), like the noise of sampling.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diagonal.engine import noise
from diagonal.engine.kernels.live import LiveStep, LiveWindow
from diagonal.engine.kernels.targets import Targets
from diagonal.engine.sampler import valid_logits, weights
from diagonal.planning.sampling import Sampling

_SALT = 0x5851F42D4C957  # coins of a call are other noise than that of sampling


class Rejection:
    """The drafts of a frame with the distributions that they were drawn from."""

    def __init__(self, rule: str, window: LiveWindow) -> None:
        shape, device = (len(window.next_B), window.last + 1 - window.first), window.next_B.device
        self._rule, self._window, self._calls = rule, window, 0
        self._drawn_BC = torch.zeros(shape, dtype=torch.bool, device=device)
        self._q_BCV = torch.zeros(*shape, 0, device=device)

    def begin(self) -> None:
        """A new frame: no draft is drawn yet."""
        self._drawn_BC.fill_(False)
        self._calls = 0

    def settle(
        self, tokens_NL: Tensor, logits_BSV: Tensor, step: LiveStep, targets: Targets, sampling: Sampling
    ) -> None:
        """Write what is right, or drafted next, and move the windows on."""
        p_BSV, window = probabilities(logits_BSV, targets, sampling), self._window
        batch, inputs, ids = p_BSV.shape
        at_BS = (step.seen.slots_S + 1 - window.first).clamp(min=0, max=self._drawn_BC.shape[1] - 1)
        q_BSV = self._of(at_BS, tokens_NL[targets.where], ids)
        x_BS1 = tokens_NL[targets.where][..., None]
        race_BSV, coin_BS = self._noise(targets, ids)
        right_BS = coin_BS * q_BSV.gather(2, x_BS1)[..., 0] < p_BSV.gather(2, x_BS1)[..., 0]
        rest_BSV = (p_BSV - q_BSV).clamp(min=0)
        rest_BSV = torch.where(rest_BSV.sum(-1, keepdim=True) > 0, rest_BSV, p_BSV)
        outcome_BS = torch.where(right_BS, x_BS1[..., 0], (rest_BSV / race_BSV).argmax(-1))
        wanted_BS = targets.slots_S < tokens_NL.shape[1] - 1
        leading_BS = (right_BS | ~wanted_BS).long().cumprod(1)
        settled_BS = torch.cat([torch.ones_like(leading_BS[:, :1]), leading_BS[:, :-1]], 1).bool()  # with the first not
        drafted_BS = self._draft(p_BSV, outcome_BS, race_BSV, targets)
        tokens_NL[targets.where] = torch.where(settled_BS, outcome_BS, drafted_BS)
        drawn_BS = wanted_BS & ~settled_BS
        rows_BS = torch.arange(batch, device=at_BS.device)[:, None].expand(batch, inputs)
        cells = rows_BS[drawn_BS], at_BS[drawn_BS]
        self._q_BCV[cells], self._drawn_BC[cells] = p_BSV[drawn_BS], True
        window.next_B.add_(leading_BS[:, : inputs - 1].sum(1) + 1).clamp_(max=window.last)
        self._calls += 1

    def _of(self, at_BS: Tensor, x_BS: Tensor, ids: int) -> Tensor:
        """The distributions that the drafts of some cells were drawn from."""
        if self._q_BCV.shape != (*self._drawn_BC.shape, ids):
            self._q_BCV = torch.zeros(*self._drawn_BC.shape, ids, device=at_BS.device)
        rows_B1 = torch.arange(len(at_BS), device=at_BS.device)[:, None]
        whole_BSV = torch.nn.functional.one_hot(x_BS.clamp(0, ids - 1), ids).float()
        return torch.where(self._drawn_BC[rows_B1, at_BS][..., None], self._q_BCV[rows_B1, at_BS], whole_BSV)

    def _noise(self, targets: Targets, ids: int) -> tuple[Tensor, Tensor]:
        """For each cell exponential numbers to draw with, and a uniform one."""
        seeds_B = targets.seeds_B + _SALT * (self._calls + 1)
        keys_BS = noise.keys(seeds_B[:, None], targets.counted.expand(targets.batch, targets.inputs))
        drawn = noise.exponential(keys_BS[..., None], torch.arange(ids + 1, device=keys_BS.device))
        return drawn[..., :ids], 1 - (-drawn[..., ids]).exp()

    def _draft(self, p_BSV: Tensor, outcome_BS: Tensor, race_BSV: Tensor, targets: Targets) -> Tensor:
        if self._rule == "coupled":
            return outcome_BS
        if self._rule == "gumbel":
            keys_BS = noise.keys(targets.seeds_B[:, None], targets.counted.expand(targets.batch, targets.inputs))
            race_BSV = noise.exponential(keys_BS[..., None], torch.arange(p_BSV.shape[-1], device=p_BSV.device))
        return (p_BSV / race_BSV).argmax(-1)


def probabilities(logits_BSV: Tensor, targets: Targets, sampling: Sampling) -> Tensor:
    """What sampling draws from (B, S, V): after the filters, of valid ids alone."""
    low_R, high_R, *_ = targets.by_row()
    logits_RV = valid_logits(logits_BSV.flatten(0, 1).float(), low_R, high_R)
    if sampling.temperature == 0:
        p_RV = torch.nn.functional.one_hot(logits_RV.argmax(-1), logits_RV.shape[-1]).float()
    else:
        weights_RV = weights(logits_RV, sampling)
        p_RV = weights_RV / weights_RV.sum(-1, keepdim=True)
    return p_RV.view(logits_BSV.shape)
