"""Trains the inverse-dynamics network that judges whether generated frames obey their actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diagonal import checkpoints
from diagonal.engine.transfers import sent
from diagonal.media.video import VideoArray
from diagonal.networks.inverse_dynamics import Config
from diagonal.training.optim import adam
from diagonal.training.recipe import JudgeRecipe
from diagonal.training.stages import MODEL, Stage, build, training
from diagonal.worlds import vizdoom
from diagonal.worlds.recordings import Part


@dataclass
class JudgeTask:
    """Pairs of consecutive frames; the target is the action taken on the first."""

    module: Any
    data: Part
    held_out: Part
    batch: int
    lr: float
    seed: int
    optimizers: list[torch.optim.Optimizer] = field(init=False)

    def __post_init__(self) -> None:
        self._pairs, self._held_pairs = _pairs(self.data), _pairs(self.held_out)
        self.module.train().requires_grad_(True)
        self._device = self.data.frames_NHWC.device
        self._cuda = self._device.type == "cuda"
        self.optimizers = [adam(self.module, self.lr, (0.9, 0.999), 0.05)]

    def loss(self, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        rng = np.random.default_rng([self.seed, step])
        chosen = sent(rng.integers(len(self._pairs), size=self.batch), self._device)
        frames, actions = _take(self.data, self._pairs[chosen])
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._cuda):
            logits, _ = self.module(frames)
        loss = F.cross_entropy(logits.float(), actions)
        return loss, {"accuracy": (logits.argmax(-1) == actions).float().mean()}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        right = []
        for part in self._held_pairs.split(self.batch):
            frames, actions = _take(self.held_out, part)
            right.append(self.module(frames)[0].argmax(-1) == actions)
        return {"val_accuracy": float(torch.cat(right).float().mean())}

    def sheet(self) -> VideoArray | None:
        """There is nothing to see."""
        return None


def training_stage(how: JudgeRecipe, folder: Path, data: Callable[[], tuple[Part, Part]]) -> Stage:
    """Train the network on Doom's actions in recordings, for training and held out."""

    def task() -> JudgeTask:
        train, held_out = data()
        module = build(Config(len(vizdoom.ACTIONS)), how.run.seed, train.frames_NHWC.device)
        return JudgeTask(module, train, held_out, how.batch, how.lr, how.run.seed)

    def keep(made: JudgeTask) -> None:
        checkpoints.save({"judge": made.module}, folder / MODEL, {"judge": "vizdoom"})

    return training("judge", how, folder, task, keep)


def _pairs(part: Part) -> Tensor:
    """Indices of frames whose successor is of the same episode."""
    return (part.episodes_N[:-1] == part.episodes_N[1:]).nonzero().flatten().to(part.frames_NHWC.device)


def _take(part: Part, first: Tensor) -> tuple[Tensor, Tensor]:
    frames = torch.stack([part.frames_NHWC[first], part.frames_NHWC[first + 1]], dim=1)
    return frames.permute(0, 1, 4, 2, 3), part.actions_NA[first, 0]
