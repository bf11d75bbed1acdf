"""How far two models agree on what comes next: what quantised weights do to a model's choices.

Both are fed the same tokens in raster order (teacher forcing), in one call, and compared wherever the next token is a
cell of a frame: what each holds most likely among the ids that may stand there, and the distributions themselves. An
answer fed back would part two videos at the first difference; this counts each difference once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diagonal.engine.attention import Causal
from diagonal.generation.world import World

MOST = 512  # positions, unless more are asked for

DEFINITION = """\
greedy_agreement    for quantised weights: share of the agreement_positions at which they and the same weights in the
                    case's dtype hold the same token most likely, both fed the same random ids. Random weights are
                    seldom sure of a token, and agree less than trained ones
agreement_kl        mean Kullback-Leibler divergence there, in nats: of the quantised model from the other"""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Over so many positions: the share with the same most likely token, and the mean divergence KL(reference || other)
    in nats."""

    positions: int
    greedy: float
    kl: float

    def numbers(self) -> dict[str, float]:
        """As `diagonal bench` reports it."""
        return {
            "greedy_agreement": self.greedy,
            "agreement_kl": self.kl,
            "agreement_positions": self.positions,
        }


@torch.inference_mode()
def agreement(reference: World, other: World, video: Tensor | None = None, most: int = MOST) -> Agreement:
    """Compare two worlds of one model on a video: token ids (T, rows, cols) or a batch of them, with actions of doing
    nothing; None: a window of random ids. The first `most` positions of each sequence are fed."""
    if reference.variant.config != other.variant.config:
        raise ValueError(f"{reference.name} and {other.name} have other sizes; only worlds of one model can agree")
    if most < 2:
        raise ValueError(f"most={most} positions given; at least 2 are needed")
    tokens_BS = _sequence(reference, video)[:, :most]
    slots_S = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)
    kept_N, outside_NV = _next_cells(reference, slots_S)
    first, second = (
        _log_probabilities(world.runner(tokens_BS, slots_S, Causal(), kept_N), outside_NV)
        for world in (reference, other)
    )
    same = first.argmax(-1) == second.argmax(-1)
    kl = (first.exp() * (first - second)).sum(-1)
    return Agreement(same.numel(), float(same.double().mean()), float(kl.double().mean()))


def _sequence(world: World, video: Tensor | None) -> Tensor:
    """The token sequence of a video (B, L), as the engine would feed it as a prompt."""
    config = world.variant.config
    if video is None:
        shape = (config.frames, config.rows, config.cols)
        video = torch.randint(config.codebook, shape, generator=torch.Generator().manual_seed(0))
    stream = world.stream(video, frames=int(world.tokenizer.stride))
    prompt = stream.video.units_BTU[:, : stream.known].flatten(1)
    prefix = torch.tensor(config.prefix_ids, dtype=prompt.dtype, device=prompt.device)
    return torch.cat([prefix.expand(len(prompt), -1), prompt], dim=1)


def _next_cells(world: World, slots_S: Tensor) -> tuple[Tensor, Tensor]:
    """The inputs whose next token is a cell of a frame (N), and which ids may not stand there (N, V)."""
    config = world.variant.config
    layout = world.layout(1)
    offset_S = slots_S + 1 - layout.prefix
    kept_N = torch.nonzero((offset_S >= 0) & (offset_S % layout.unit < layout.grid.frame_tokens)).flatten()
    ranges_N2 = torch.tensor(config.valid_ids(), device=slots_S.device)[offset_S[kept_N] % layout.unit]
    ids_V = torch.arange(int(ranges_N2.max()), device=slots_S.device)
    return kept_N, (ids_V < ranges_N2[:, :1]) | (ids_V >= ranges_N2[:, 1:])


def _log_probabilities(logits_BNV: Tensor, outside_NV: Tensor) -> Tensor:
    """In float32, over the ids that may be chosen. The others get the least number, not -inf, of which differences can
    be taken; ids that may stand nowhere are cut off."""
    chosen = logits_BNV[..., : outside_NV.shape[1]].float()
    return chosen.masked_fill(outside_NV, torch.finfo(torch.float32).min).log_softmax(-1)
