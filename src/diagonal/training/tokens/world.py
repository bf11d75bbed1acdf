"""Trains a token world model under the visibility of any mixture of schedules.

Each step takes one order of the mixture, feeds the entries of its plan (true tokens and stand-ins) in one forward
under the plan's own mask, and scores the tokens that the plan decodes. With raster alone this is next-token
prediction; with a diagonal it is the fine-tuning of the paper's section 3.3, made exact: the logits are those the
decoder will see (tests/equivalence).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diagonal.engine.attention import BLOCK, Causal, Dense
from diagonal.engine.chunks.protocols import Memory
from diagonal.engine.tokens.masks import dense_mask, flex
from diagonal.engine.transfers import sent
from diagonal.media.video import VideoArray
from diagonal.planning.grid import Grid, Layout
from diagonal.planning.plan import NONE, Order, Plan, make_plan
from diagonal.planning.rolling import rolled
from diagonal.training.batch import BatchShard
from diagonal.training.data.recordings import TokenData
from diagonal.training.optim import Muon, adam, matrices_and_rest


@dataclass(frozen=True, slots=True)
class Lesson:
    """A plan as tensors: what a teacher-forced forward needs."""

    read: Tensor
    position: Tensor
    keep: Tensor  # entries whose output is scored
    target: Tensor  # and the positions of their true tokens
    memory: Memory


def lesson(plan: Plan, device: torch.device, use_flex: bool) -> Lesson:
    """Upload a plan's entries; raster needs no mask of its own."""
    entries = plan.entries
    memory: Memory
    if (entries.visible() == np.tri(len(entries), dtype=bool)).all():
        memory = Causal()
    elif use_flex:
        entries = entries.padded(BLOCK)
        memory = flex(entries, device)
    else:
        memory = Dense(dense_mask(entries, device))
    keep = np.flatnonzero(entries.write != NONE)

    def tensor(values: Any) -> Tensor:
        return torch.from_numpy(values).to(device)

    return Lesson(tensor(entries.read), tensor(entries.position), tensor(keep), tensor(entries.write[keep]), memory)


def nats(model: Any, tokens_BL: Tensor, given_BL: Tensor, taught: Lesson) -> Tensor:
    """Mean negative log-likelihood of the decoded tokens; `given_BL` is what the model reads."""
    logits = model(given_BL[:, taught.read], taught.position, taught.memory, taught.keep)
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens_BL[:, taught.target].flatten())


def held_out_windows(data: TokenData, frames: int, count: int) -> Tensor:
    """`count` sequences spread evenly over a recording, (count, L)."""
    starts = data.starts(frames)
    spread = torch.linspace(0, len(starts) - 1, min(count, len(starts))).long().to(starts.device)
    return data.windows(starts[spread], frames)


@torch.no_grad()
def mean_nats(model: Any, windows_NL: Tensor, taught: Lesson, batch: int) -> float:
    """Nats per token of sequences, all tokens counting the same."""
    parts = [nats(model, part, part, taught) * len(part) for part in windows_NL.split(batch)]
    return float(torch.stack(parts).sum() / len(windows_NL))


Mixture = Sequence[tuple[Order, float]]  # orders, and how often each is taught


@dataclass
class WorldTask:
    """Data and model on one device; the model's parameters are the float32 masters. Those that need a gradient are
    learnt."""

    module: Any
    data: TokenData
    held_out: TokenData
    mixture: Mixture
    batch: int
    seed: int
    lr: float = 3e-3  # of AdamW, for embeddings, head and norms
    muon_lr: float | None = 0.02  # of Muon, for the matrices of the blocks; None: AdamW for all
    weight_decay: float = 0.01
    corruption: float = 0.0  # most of the read cells that are replaced by random ones
    held_out_sequences: int = 128  # that evaluate() scores
    use_flex: bool | None = None  # None: on CUDA
    shard: BatchShard = field(default_factory=BatchShard)  # the samples of this process, whose weights may be sharded
    later: Sequence[tuple[int, Mixture]] = ()  # mixtures from these steps on: a curriculum
    rolled: int = 0  # frames beyond the window, whose places are those of the oldest ones (`planning.rolling`)
    optimizers: list[torch.optim.Optimizer] = field(init=False)

    def __post_init__(self) -> None:
        self._config = self.module.config
        self._device = self.data.units_NU.device
        self._cuda = self._device.type == "cuda"
        self._flex = self._cuda if self.use_flex is None else self.use_flex
        self._frames = self._config.frames + self.rolled
        grid = Grid(self._frames, self._config.rows, self._config.cols)
        self._layout = Layout(grid, len(self._config.prefix_ids), self._config.suffix)
        self._lessons = {
            str(order): lesson(self._plan(order), self._device, self._flex)
            for mixture in (self.mixture, *(mixture for _, mixture in self.later))
            for order, _ in mixture
        }
        self._starts = self.data.starts(self._frames)
        self.module.train()
        if self._cuda and self.shard.world == 1:
            # One kernel per order: each has its own length, and shapes that vary cost half the speed.
            torch._dynamo.config.recompile_limit = 64
            for block in self.module.blocks:
                block.compile(dynamic=False)
        self.optimizers = self._make_optimizers()

    def _plan(self, order: Order) -> Plan:
        plan = make_plan(self._layout, order, known=1)
        if not self.rolled:
            return plan
        if not self.module.relative_positions:
            raise ValueError(f"rolled={self.rolled} given; learned positions do not go beyond the window: leave it out")
        return rolled(plan, self._config.frames)

    def _make_optimizers(self) -> list[torch.optim.Optimizer]:
        learnt = [one for one in self.module.parameters() if one.requires_grad]
        if len(learnt) < len(list(self.module.parameters())):  # adapters, norms, embeddings: nothing to orthogonalise
            return [adam(self.module, self.lr, (0.9, 0.95), self.weight_decay, learnt)]
        matrices, rest = matrices_and_rest(self.module, "blocks")
        muon = [] if self.muon_lr is None else [Muon(matrices, self.muon_lr, weight_decay=self.weight_decay)]
        chosen = rest if muon else [*matrices, *rest]
        return [*muon, adam(self.module, self.lr, (0.9, 0.95), self.weight_decay, chosen)]

    def loss(self, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        return self.shard.mean(self.batch, lambda samples: self._loss(step, samples))

    def _loss(self, step: int, samples: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
        """Of some samples of the step's batch. All are drawn, whoever computes them: ids are small."""
        rng = np.random.default_rng([self.seed, step])
        mixture = next((mixture for begin, mixture in reversed(self.later) if begin <= step), self.mixture)
        weights = np.array([weight for _, weight in mixture])
        order = str(mixture[rng.choice(len(weights), p=weights / weights.sum())][0])
        chosen = sent(rng.integers(len(self._starts), size=self.batch), self._device)
        tokens_BL = self._with_prefix(self.data.windows(self._starts[chosen], self._frames))
        given_BL = self._corrupt(tokens_BL, int(rng.integers(2**62))) if self.corruption else tokens_BL
        own = slice(samples[0], samples[-1] + 1)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._cuda):
            return nats(self.module, tokens_BL[own], given_BL[own], self._lessons[order]), {}

    def _with_prefix(self, units_BL: Tensor) -> Tensor:
        prefix = sent(self._config.prefix_ids, self._device, units_BL.dtype)
        return torch.cat([prefix.expand(len(units_BL), -1), units_BL], dim=1)

    def _corrupt(self, tokens_BL: Tensor, seed: int) -> Tensor:
        """Replace cells by random ids, at a rate drawn for each sequence: rollouts read their own errors."""
        generator = torch.Generator(self._device).manual_seed(seed)
        rate = torch.rand(len(tokens_BL), 1, generator=generator, device=self._device) * self.corruption
        hit = torch.rand(tokens_BL.shape, generator=generator, device=self._device) < rate
        random = torch.randint(self._config.codebook, tokens_BL.shape, generator=generator, device=self._device)
        return torch.where(hit & (tokens_BL < self._config.codebook), random, tokens_BL)

    def evaluate(self) -> dict[str, float]:
        """Nats per token of held-out sequences under each order of the mixture, and of later ones."""
        windows = self._with_prefix(held_out_windows(self.held_out, self._frames, self.held_out_sequences))
        numbers = {}
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._cuda):
            for name, taught in self._lessons.items():
                numbers[f"val_nats {name}"] = mean_nats(self.module, windows, taught, self.batch)
        return numbers

    def sheet(self) -> VideoArray | None:
        """Samples need a tokenizer: `diagonal generate` shows them."""
        return None
