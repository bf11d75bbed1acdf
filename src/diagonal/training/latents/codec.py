"""Trains a causal video codec with continuous latents: L1, LPIPS where its weights are given, and a little KL.

An encoder gives each number of a latent a mean and a variance, and training decodes a draw from them. The divergence
from unit Gaussians keeps the draws from telling every pixel apart, so that a diffusion model has something smooth to
learn; its weight is small, for what is seen counts more. When training is done, `settle` absorbs the mean and the
deviation that each channel ended up with into the weights: the latents that come out of the codec have 0 and 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diagonal.engine.transfers import sent
from diagonal.media.video import VideoArray
from diagonal.networks import lpips
from diagonal.training.data.recordings import starts
from diagonal.training.latents.diffusion import HELD_OUT, autocast, compiled, where_learnt
from diagonal.training.optim import Muon, adam
from diagonal.worlds.recordings import Part

EVALUATED = 8  # batches
SHOWN = 8  # frames of a sheet
QUIET = 6.0  # by which the log variances begin smaller
LARGE = 8  # channels that a convolution must have, in and out, to be a matrix worth the name


@dataclass
class CodecTask:
    """Clips of `frames` frames, which are uint8 (N, H, W, 3) on the codec's device."""

    module: Any
    data: Part
    held_out: Part
    frames: int
    batch: int
    lr: float
    seed: int
    kl_scale: float
    muon_lr: float
    lpips_weights: Mapping[str, Tensor] | None = None
    lpips_scale: float = 0.5
    optimizers: list[torch.optim.Optimizer] = field(init=False)

    def __post_init__(self) -> None:
        self.module.train().requires_grad_(True)
        self._device = self.data.frames_NHWC.device
        seeded = torch.Generator(self._device).manual_seed(self.seed)
        for part in self.module.modules():  # what goes in comes out as large: torch's own start shrinks it
            if isinstance(part, nn.Conv2d | nn.Conv3d):
                nn.init.kaiming_normal_(part.weight, nonlinearity="linear", generator=seeded)
        with torch.no_grad():  # draws begin close to their means: else noise drowns what the encoder has to say
            self.module.conv1.bias[self.module.config.latent :] -= QUIET
        convolutions: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for one in self.module.parameters():
            (convolutions if one.ndim >= 4 and min(one.shape[:2]) >= LARGE else rest).append(one)
        self.optimizers = [
            adam(self.module, self.lr, (0.9, 0.95), 0.01, rest),
            Muon(convolutions, lr=self.muon_lr),
        ]
        self._starts, self._held_starts = (
            starts(part.episodes_N, self.frames).cpu() for part in (self.data, self.held_out)
        )
        compiled((self.module.encoder, self.module.decoder), self._device)
        self._distance = where_learnt(lpips.distance, self._device)

    def loss(self, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        pixels = _unit(self._draw(self.data, self._starts, self.seed, step))
        with autocast(self._device):
            mu, log_variance = self.module.moments(pixels)
            seeded = torch.Generator(self._device).manual_seed(self.seed * 1_000_003 + step)
            noise = torch.randn(mu.shape, generator=seeded, device=self._device)
            mu, log_variance = mu.float(), log_variance.float().clamp(-30, 20)
            made = self.module.pixels(mu + (log_variance / 2).exp() * noise, None)
        made = made.float()
        l1 = (made - pixels).abs().mean()
        kl = 0.5 * (mu.square() + log_variance.exp() - 1 - log_variance).mean()
        loss, extras = l1 + self.kl_scale * kl, {"l1": l1.detach(), "kl": kl.detach()}
        if self.lpips_weights is not None:
            distance = self._distance(made.flatten(0, 1), pixels.flatten(0, 1), self.lpips_weights).mean()
            loss, extras = loss + self.lpips_scale * distance, extras | {"lpips": distance.detach()}
        return loss, extras

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """PSNR, and LPIPS where there is one, of held-out clips through latents and bytes, as they will be used."""
        psnr, distance = [], []
        for step in range(EVALUATED):
            clips = self._draw(self.held_out, self._held_starts, self.seed + HELD_OUT, step)
            made = self.module.decode(self.module.encode(clips), {})
            error = (made.float() - clips.float()).square().flatten(2).mean(2)
            psnr.append(10 * (255**2 / error.clamp(min=1e-6)).log10())
            if self.lpips_weights is not None:
                ours, true = (_unit(one).flatten(0, 1) for one in (made, clips))
                distance.append(lpips.distance(ours, true, self.lpips_weights))
        numbers = {"val_psnr": float(torch.cat(psnr).mean())}
        return numbers | ({"val_lpips": float(torch.cat(distance).mean())} if distance else {})

    def sheet(self) -> VideoArray:
        """The first frames of held-out clips above what the codec makes of them."""
        clips = self._draw(self.held_out, self._held_starts, self.seed + HELD_OUT, 0)[:2]
        made = self.module.decode(self.module.encode(clips), {})
        rows = [torch.cat(list(clip[:SHOWN]), dim=-1) for pair in zip(clips, made, strict=True) for clip in pair]
        return torch.cat(rows, dim=-2).permute(1, 2, 0).cpu().numpy()

    @torch.no_grad()
    def settle(self, frames: int) -> None:
        """Absorb the mean and deviation of the latents of training clips as long as those that will be encoded: the
        first latent of a clip is of another kind than the rest."""
        found, begin = [], starts(self.data.episodes_N, frames).cpu()
        for step in range(EVALUATED):
            clips = self._draw(self.data, begin, self.seed + HELD_OUT, step, frames)
            found.append(self.module.moments(_unit(clips))[0].double().transpose(0, 2).flatten(1))
        every = torch.cat(found, dim=1)
        mean, std = every.mean(1), every.std(1)
        if not bool((std > 1e-4).all()):
            raise ValueError(f"a channel of the latents never changes (deviations {std.tolist()}); train longer")
        self.module.absorb(mean.float(), std.float())

    def _draw(self, part: Part, begin: Tensor, seed: int, step: int, frames: int | None = None) -> Tensor:
        """Clips (B, T, C, H, W) in bytes."""
        chosen = torch.from_numpy(np.random.default_rng([seed, step]).integers(len(begin), size=self.batch))
        index = begin[chosen][:, None] + torch.arange(frames or self.frames)
        return part.frames_NHWC[sent(index, self._device)].permute(0, 1, 4, 2, 3)


def _unit(clips: Tensor) -> Tensor:
    """Bytes as numbers in [-1, 1]."""
    return clips.float() / 127.5 - 1
