"""DINO (Caron et al., 2021): ViT-B/16, a picture to its class token behind the last norm, 768 numbers."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.networks.vision_transformer import Block

WIDTH, LAYERS, HEADS, PATCH = 768, 12, 12, 16
GRID = 14  # patches along each side of the pictures that it was trained on
EPSILON = 1e-6


class Dino(nn.Module):
    """Pictures (N, 3, H, W), normalised, of any size from one patch on, to (N, 768)."""

    weight_map = WeightMap(
        prefixes=("",),
        keys={
            "patch.{}": ("patch_embed.proj.{}",),
            "blocks.{}.qkv.{}": ("blocks.{}.attn.qkv.{}",),
            "blocks.{}.proj.{}": ("blocks.{}.attn.proj.{}",),
            "blocks.{}.fc1.{}": ("blocks.{}.mlp.fc1.{}",),
            "blocks.{}.fc2.{}": ("blocks.{}.mlp.fc2.{}",),
        },
    )

    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + GRID**2, WIDTH))
        self.patch = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.blocks = nn.ModuleList(Block(WIDTH, HEADS, EPSILON, F.gelu) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, EPSILON)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        patches = self.patch(x_NCHW)  # rows and columns beyond whole patches are dropped
        x = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches.flatten(2).transpose(1, 2)], 1)
        x = x + self._positions(*patches.shape[-2:])
        for block in self.blocks:
            x = block(x)
        return cast(Tensor, self.norm(x[:, 0]))

    def _positions(self, rows: int, cols: int) -> Tensor:
        """The table of positions for a grid, as DINO scales it: by (rows + 0.1) / 14, the sampling step too."""
        if (rows, cols) == (GRID, GRID):
            return self.pos_embed
        own, table = self.pos_embed[:, :1], self.pos_embed[:, 1:].unflatten(1, (GRID, GRID)).permute(0, 3, 1, 2)
        scale = ((rows + 0.1) / GRID, (cols + 0.1) / GRID)
        scaled = F.interpolate(table, scale_factor=scale, mode="bicubic", recompute_scale_factor=False)
        return torch.cat([own, scaled.flatten(2).transpose(1, 2)], 1)
