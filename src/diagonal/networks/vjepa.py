"""V-JEPA (Bardes et al., 2024), ViT-H/16, and the attentive probe that JEDi pools its tokens with: 1280 numbers a clip.

Two files hold them: of `vith16.pth.tar` the averaged encoder is read (`target_encoder`), of `ssv2-probe.pth.tar` the
pooler; what classifies behind it is left aside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.networks.vision_transformer import Block

PATCH, TUBE = 16, 2  # pixels along each side and frames of a token
EPSILON = 1e-6  # of the encoder's norms
PROBE_EPSILON = 1e-5
PART = "target_encoder"  # of vith16.pth.tar


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of an encoder, and of the clips whose positions its table has."""

    width: int = 1280
    layers: int = 32
    heads: int = 16
    side: int = 224
    frames: int = 16

    @property
    def grid(self) -> tuple[int, int, int]:
        """Tokens in time, down and across."""
        return self.frames // TUBE, self.side // PATCH, self.side // PATCH

    def encoder(self) -> Encoder:
        return Encoder(self)

    def pooler(self) -> Pooler:
        return Pooler(self)


class Encoder(nn.Module):
    """Clips (N, 3, T, H, W), normalised, to tokens (N, S, D). What does not fill a token at the end is not seen."""

    weight_map = WeightMap(
        prefixes=("module.backbone.", "backbone.", ""),
        keys={
            "patch.{}": ("patch_embed.proj.{}",),
            "blocks.{}.qkv.{}": ("blocks.{}.attn.qkv.{}",),
            "blocks.{}.proj.{}": ("blocks.{}.attn.proj.{}",),
            "blocks.{}.fc1.{}": ("blocks.{}.mlp.fc1.{}",),
            "blocks.{}.fc2.{}": ("blocks.{}.mlp.fc2.{}",),
        },
    )

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.grid = config.grid
        width, tokens = config.width, config.grid[0] * config.grid[1] * config.grid[2]
        self.pos_embed = nn.Parameter(torch.zeros(1, tokens, width))
        self.patch = nn.Conv3d(3, width, (TUBE, PATCH, PATCH), (TUBE, PATCH, PATCH))
        self.blocks = nn.ModuleList(Block(width, config.heads, EPSILON, F.gelu) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width, EPSILON)

    def forward(self, x_NCTHW: Tensor) -> Tensor:
        tubes = self.patch(x_NCTHW)
        x = tubes.flatten(2).transpose(1, 2) + self._positions(tubes.shape[2:])
        for block in self.blocks:
            x = block(x)
        return cast(Tensor, self.norm(x))

    def _positions(self, grid: torch.Size) -> Tensor:
        """The table of positions, interpolated for other sizes and lengths."""
        if tuple(grid) == self.grid:
            return self.pos_embed
        table = self.pos_embed.unflatten(1, self.grid).permute(0, 4, 1, 2, 3)
        scale = tuple(now / usual for now, usual in zip(grid, self.grid, strict=True))
        scaled = F.interpolate(table, scale_factor=scale, mode="trilinear", recompute_scale_factor=False)
        return scaled.flatten(2).transpose(1, 2)


class Pooler(nn.Module):
    """Tokens (N, S, D) to one vector (N, D): a learned query looks at all of them, then an MLP."""

    weight_map = WeightMap(
        prefixes=("module.pooler.", "pooler.", ""),
        keys={
            "query": ("query_tokens",),
            "norm1.{}": ("cross_attention_block.norm1.{}",),
            "q.{}": ("cross_attention_block.xattn.q.{}",),
            "kv.{}": ("cross_attention_block.xattn.kv.{}",),
            "proj.{}": ("cross_attention_block.xattn.proj.{}",),
            "norm2.{}": ("cross_attention_block.norm2.{}",),
            "fc1.{}": ("cross_attention_block.mlp.fc1.{}",),
            "fc2.{}": ("cross_attention_block.mlp.fc2.{}",),
        },
    )

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.query = nn.Parameter(torch.zeros(1, 1, width))
        self.norm1, self.norm2 = nn.LayerNorm(width, PROBE_EPSILON), nn.LayerNorm(width, PROBE_EPSILON)
        self.q, self.kv, self.proj = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_NSD: Tensor) -> Tensor:
        query = self.query.expand(len(x_NSD), -1, -1)
        q = self.q(query).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(self.norm1(x_NSD)).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = query + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return cast(Tensor, (y + self.fc2(F.gelu(self.fc1(self.norm2(y)))))[:, 0])
