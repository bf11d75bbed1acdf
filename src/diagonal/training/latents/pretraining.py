"""Trains models of latent video with whole videos in one call: the bidirectional teacher, and a causal student's start.

The teacher learns the velocity of noised clips (flow matching), now and then without their prompt, so that it can be
guided. A student begins as the teacher with frames that no longer see the future, and learns to jump from states of the
teacher's trajectories, each chunk at a level of its own, to their end (ODE initialisation of CausVid).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diagonal.engine.attention import Full
from diagonal.engine.chunks.bidirectional import velocity
from diagonal.engine.chunks.denoise import Gaussian
from diagonal.engine.transfers import sent
from diagonal.planning.denoising.noise import START, shifted
from diagonal.planning.presets import Preset
from diagonal.training.batch import BatchShard, Terms
from diagonal.training.data.latents import Source, Trajectories
from diagonal.training.latents import losses
from diagonal.training.latents.diffusion import (
    HELD_OUT,
    Undecoded,
    autocast,
    chunk_levels,
    chunk_memory,
    compiled,
    draw,
    noised,
    preset_sigmas,
    seed_of,
)
from diagonal.training.optim import Muon, adam, matrices_and_rest

EVALUATED = 4  # batches


@dataclass
class TeacherTask(Undecoded):
    """Flow matching on clips, some of which lose their prompt. Sigmas are even before the shift."""

    module: Any
    data: Source  # with videos
    held_out: Source
    negative_1LC: Tensor  # what stands for no prompt
    batch: int
    seed: int
    lr: float = 1e-3
    muon_lr: float | None = None  # of the matrices of the blocks; None: they are like the rest
    shift: float = 5.0
    dropout: float = 0.1
    shard: BatchShard = field(default_factory=BatchShard)
    optimizers: list[torch.optim.Optimizer] = field(init=False)

    def __post_init__(self) -> None:
        self.module.train().requires_grad_(True)
        compiled(self.module.blocks, self.negative_1LC.device)
        matrices, rest = matrices_and_rest(self.module, "blocks.") if self.muon_lr is not None else ([], None)
        self.optimizers = [adam(self.module, self.lr, (0.9, 0.95), 0.01, rest)]
        if self.muon_lr is not None:
            self.optimizers.append(Muon(matrices, self.muon_lr))

    def loss(self, step: int) -> tuple[Tensor, Terms]:
        def loss(samples: Sequence[int]) -> tuple[Tensor, Terms]:
            rngs = [draw(self.seed, step, sample) for sample in samples]
            dropped = [rng.random() < self.dropout for rng in rngs]
            return self._distance(self.data, rngs, dropped), {}

        return self.shard.mean(self.batch, loss)

    def _distance(self, data: Source, rngs: Sequence[np.random.Generator], dropped: Sequence[bool]) -> Tensor:
        """The flow-matching loss of clips that chance chooses, some of them without their prompt."""
        batch = data.take([int(rng.integers(len(data))) for rng in rngs])
        clean, device = batch.video_BFCHW, batch.text_BLC.device
        assert clean is not None
        without = sent(dropped, device)[:, None, None]
        sigma = sent([[shifted(rng.random(), self.shift)] for rng in rngs], device)
        noise = Gaussian([seed_of(rng) for rng in rngs], device)(0, 0, tuple(clean.shape))
        with autocast(device):
            text = self.module.embed_text(torch.where(without, self.negative_1LC, batch.text_BLC))
            found = velocity(self.module, noised(clean, sigma, noise), START * sigma, text, Full())
        return losses.flow_matching(found, noise, clean)

    def evaluate(self) -> dict[str, float]:
        """The loss on held-out clips with their prompts, and how much of it the prompts save: 1 - loss / loss without
        them."""
        told, untold = (
            _held_out(self, partial(self._distance, self.held_out, dropped=[dropped] * self.batch))
            for dropped in (False, True)
        )
        return {"val_loss": told, "val_text_gain": 1 - told / untold}


@dataclass
class OdeTask(Undecoded):
    """The student's x0 from states of the teacher's trajectories, against their end.

    One start serves students of several presets: a chunk is at one of the levels that any of them has there, and sees
    what the first one's window would hold.
    """

    module: Any
    data: Trajectories
    held_out: Trajectories
    presets: tuple[Preset, ...]
    batch: int
    seed: int
    lr: float = 2e-6
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01
    shard: BatchShard = field(default_factory=BatchShard)
    optimizers: list[torch.optim.Optimizer] = field(init=False)

    def __post_init__(self) -> None:
        _, states = self.data.states([0])
        frames, side = states.shape[2], self.module.config.patch
        missing = {*preset_sigmas(self.presets, frames)} - {*self.data.sigmas}
        if missing:
            raise ValueError(f"the trajectories have no states at {sorted(missing)}, which the schedules ask for")
        self._frames, self._device = frames, states.device
        self._memory = chunk_memory(self.presets[0], frames, states[0, 0, 0, 0].numel() // side**2, self._device)
        self.module.train().requires_grad_(True)
        compiled(self.module.blocks, self._device)
        self.optimizers = [adam(self.module, self.lr, self.betas, self.weight_decay)]

    def loss(self, step: int) -> tuple[Tensor, Terms]:
        def loss(samples: Sequence[int]) -> tuple[Tensor, Terms]:
            return self._distance(self.data, [draw(self.seed, step, sample) for sample in samples]), {}

        return self.shard.mean(self.batch, loss)

    def _distance(self, data: Trajectories, rngs: Sequence[np.random.Generator]) -> Tensor:
        text, states_BSFCHW = data.states([int(rng.integers(len(data))) for rng in rngs])
        level, sigma = chunk_levels(self.presets, self._frames, rngs)
        which = sent([[data.sigmas.index(one) for one in row] for row in sigma.tolist()], self._device)
        each, frame = (torch.arange(count, device=self._device) for count in (len(text), self._frames))
        x = states_BSFCHW[each[:, None], which, frame]
        with autocast(self._device):
            flow = velocity(self.module, x, sent(level, self._device), self.module.embed_text(text), self._memory)
        clean = x - sent(sigma.float(), self._device)[..., None, None, None] * flow
        return losses.regression(clean, states_BSFCHW[:, -1])

    def evaluate(self) -> dict[str, float]:
        """The distance to the end of held-out trajectories."""
        return {"val_loss": _held_out(self, partial(self._distance, self.held_out))}


@torch.no_grad()
def _held_out(task: TeacherTask | OdeTask, distance: Callable[[Sequence[np.random.Generator]], Tensor]) -> float:
    """The mean of a task's distance over a few batches: samples, levels and noise are the same each time."""
    found = []
    for step in range(EVALUATED):
        found.append(distance([draw(task.seed + HELD_OUT, step, sample) for sample in range(task.batch)]))
    return float(torch.stack(found).mean())
