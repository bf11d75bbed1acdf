"""Trains the network that reads what a clip shows (networks/caption_reader.py), on clips whose facts are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diagonal.engine.transfers import sent
from diagonal.evaluation.clips import f1
from diagonal.media.video import VideoArray
from diagonal.networks.caption_reader import Answers, read, right
from diagonal.training.latents.diffusion import autocast
from diagonal.training.optim import adam


@dataclass(frozen=True, slots=True)
class Told:
    """Clips (N, T, C, H, W) uint8 on one device, and what is true of them."""

    video_NTCHW: Tensor
    answers: Answers


@dataclass
class ReaderTask:
    """Scenario, motions and things of whole clips, each answer with its cross entropy."""

    module: Any
    data: Told
    held_out: Told
    batch: int
    lr: float
    seed: int
    optimizers: list[torch.optim.Optimizer] = field(init=False)

    def __post_init__(self) -> None:
        self.module.train().requires_grad_(True)
        self._device = self.data.video_NTCHW.device
        self.optimizers = [adam(self.module, self.lr, (0.9, 0.999), 0.05)]

    def loss(self, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        rng = np.random.default_rng([self.seed, step])
        chosen = sent(rng.integers(len(self.data.video_NTCHW), size=self.batch), self._device)
        with autocast(self._device):
            scores = self.module(self.data.video_NTCHW[chosen])
        true = self.data.answers[chosen]
        rates = {name: one.float().mean() for name, one in right(scores.answers(), true).items()}
        return scores.loss(true), rates

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Rates of right answers on held-out clips: what no student can be expected to pass."""
        seen, true = read(self.module, self.held_out.video_NTCHW, self.batch), self.held_out.answers
        numbers = {f"val_{name}": float(one.float().mean()) for name, one in right(seen, true).items()}
        return numbers | {"val_things_f1": f1(true.things_NM, seen.things_NM)}

    def sheet(self) -> VideoArray | None:
        """There is nothing to see."""
        return None
