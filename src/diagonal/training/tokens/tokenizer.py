"""Trains an image tokenizer to reconstruct frames: L1, plus LPIPS where its weights are given, plus what a learned
codebook asks for (van den Oord et al., 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diagonal.engine.transfers import sent
from diagonal.media.video import VideoArray
from diagonal.networks import lpips
from diagonal.training.batch import BatchShard
from diagonal.training.optim import adam


@dataclass
class TokenizerTask:
    """Frames are uint8 (N, H, W, 3) on the tokenizer's device."""

    module: Any
    frames: Tensor
    held_out: Tensor
    batch: int
    lr: float
    seed: int
    lpips_weights: Mapping[str, Tensor] | None = None
    lpips_scale: float = 0.5
    shard: BatchShard = field(default_factory=BatchShard)
    optimizers: list[torch.optim.Optimizer] = field(init=False)

    def __post_init__(self) -> None:
        self.module.train().requires_grad_(True)
        self.optimizers = [adam(self.module, self.lr, (0.9, 0.95), 0.01)]
        self._cuda = self.frames.device.type == "cuda"
        if self._cuda:
            self.module.to(memory_format=torch.channels_last)
        compiles = self._cuda and self.shard.world == 1
        self._forward = torch.compile(self.module, dynamic=False) if compiles else self.module

    def loss(self, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        chosen = np.random.default_rng([self.seed, step]).integers(len(self.frames), size=self.batch)
        return self.shard.mean(self.batch, lambda samples: self._loss(chosen[samples[0] : samples[-1] + 1]))

    def _loss(self, chosen: npt.NDArray[np.int64]) -> tuple[Tensor, dict[str, Tensor]]:
        """Of some frames of the step's batch."""
        pixels = self._pixels(self.frames[sent(chosen, self.frames.device)])
        with torch.autocast(self.frames.device.type, torch.bfloat16, enabled=self._cuda):
            found = self._forward(pixels)
            made, codes = found if isinstance(found, tuple) else (found, None)
            distance = self._lpips(made, pixels)
        made = made.float()
        l1 = (made - pixels).abs().mean()
        psnr = -10 * ((made.detach().clamp(-1, 1) - pixels) / 2).square().mean().log10()
        total, extras = l1, {"l1": l1.detach(), "psnr": psnr}
        if codes is not None:
            total, extras["codes"] = total + codes, codes.detach()
        if distance is not None:
            total, extras["lpips"] = total + self.lpips_scale * distance.mean(), distance.mean().detach()
        return total, extras

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """PSNR and LPIPS of held-out frames through the ids, as they will be used; each frame counts the same."""
        psnr, distance = [], []
        for start in range(0, len(self.held_out), self.batch):
            frames = self.held_out[start : start + self.batch].permute(0, 3, 1, 2)
            made = self.module.decode(self.module.encode(frames[None]), {})[0]
            psnr.append(_psnr(made, frames))
            if self.lpips_weights is not None:
                ours, true = (part.float() / 127.5 - 1 for part in (made, frames))
                distance.append(lpips.distance(ours, true, self.lpips_weights))
        numbers = {"val_psnr": float(torch.cat(psnr).mean())}
        return numbers | ({"val_lpips": float(torch.cat(distance).mean())} if distance else {})

    def sheet(self) -> VideoArray:
        """Held-out frames above their reconstructions."""
        pick = self.held_out[:: max(1, len(self.held_out) // 8)][:8].permute(0, 3, 1, 2)
        made = self.module.decode(self.module.encode(pick[None]), {})[0]
        rows = [torch.cat(list(part), dim=-1) for part in (pick, made)]
        return torch.cat(rows, dim=-2).permute(1, 2, 0).cpu().numpy()

    def _pixels(self, frames_NHWC: Tensor) -> Tensor:
        # A permuted NHWC tensor is channels_last already.
        return frames_NHWC.permute(0, 3, 1, 2).float() / 127.5 - 1

    def _lpips(self, made: Tensor, pixels: Tensor) -> Tensor | None:
        return None if self.lpips_weights is None else lpips.distance(made, pixels, self.lpips_weights)


def _psnr(made: Tensor, frames: Tensor) -> Tensor:
    error = (made.float() - frames.float()).square().flatten(1).mean(1)
    return 10 * (255**2 / error.clamp(min=1e-6)).log10()
