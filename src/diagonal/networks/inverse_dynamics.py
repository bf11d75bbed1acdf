"""A small inverse-dynamics network: which action lies between two frames?

It judges whether generated frames obey the actions they were given, and its features give a Frechet distance
(`frechet_idm`). The idea of judging by inverse dynamics is VPT's and MineWorld's; this network is our own and small.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap


@dataclass(frozen=True, slots=True)
class Config:
    """Stages of stride 2 over two stacked frames."""

    actions: int
    channels: tuple[int, ...] = (32, 48, 64, 96, 128)
    features: int = 128

    def build(self) -> InverseDynamics:
        return InverseDynamics(self)


class InverseDynamics(nn.Module):
    """Two frames (N, 2, C, H, W) uint8 to logits over actions and a feature vector."""

    weight_map = WeightMap(prefixes=("judge.", ""))

    def __init__(self, config: Config) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 6
        for channels in config.channels:
            layers += [nn.Conv2d(before, channels, 5 if before == 6 else 3, 2, 2 if before == 6 else 1)]
            layers += [nn.GroupNorm(8, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, 1, 1), nn.SiLU()]
            before = channels
        self.trunk = nn.Sequential(*layers)
        # Where things moved matters: pool to a coarse grid, not to a point.
        self.features = nn.Linear(before * 3 * 4, config.features)
        self.head = nn.Linear(config.features, config.actions)

    def forward(self, frames_N2CHW: Tensor) -> tuple[Tensor, Tensor]:
        pixels = frames_N2CHW.to(self.head.weight.dtype) / 127.5 - 1
        trunk = F.adaptive_avg_pool2d(self.trunk(pixels.flatten(1, 2)), (3, 4))
        features = F.silu(self.features(trunk.flatten(1)))
        return self.head(features), features


@torch.no_grad()
def judge(network: InverseDynamics, video_BTCHW: Tensor, batch: int = 512) -> tuple[Tensor, Tensor]:
    """Predicted action (B, T-1) and features (B, T-1, F) between consecutive frames."""
    pairs = torch.stack([video_BTCHW[:, :-1], video_BTCHW[:, 1:]], dim=2).flatten(0, 1)
    parts = [network(part) for part in pairs.split(batch)]
    shape = (len(video_BTCHW), video_BTCHW.shape[1] - 1)
    logits, features = (torch.cat(kind).unflatten(0, shape) for kind in zip(*parts, strict=True))
    return logits.argmax(-1), features.float()
