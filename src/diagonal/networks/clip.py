"""CLIP (Radford et al., 2021): the picture towers ViT-B/32 and ViT-L/14 of OpenAI's files, and a linear head on them.

The files are TorchScript archives that hold the text tower too; their code is never run, and what does not belong to
the picture tower is left aside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.networks.vision_transformer import Block

SIDE = 224  # pixels of the square that it sees
EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of a picture tower."""

    width: int
    layers: int
    patch: int
    features: int

    def build(self) -> PictureTower:
        return PictureTower(self)


B32 = Config(width=768, layers=12, patch=32, features=512)
L14 = Config(width=1024, layers=24, patch=14, features=768)


def quick_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x), which stands for GELU in these files."""
    return x * torch.sigmoid(1.702 * x)


class PictureTower(nn.Module):
    """Pictures (N, 3, 224, 224), normalised, to features (N, F) that are not normalised yet."""

    weight_map = WeightMap(
        prefixes=("visual.", ""),
        keys={
            "blocks.{}.norm1.{}": ("transformer.resblocks.{}.ln_1.{}",),
            "blocks.{}.norm2.{}": ("transformer.resblocks.{}.ln_2.{}",),
            "blocks.{}.qkv.weight": ("transformer.resblocks.{}.attn.in_proj_weight",),
            "blocks.{}.qkv.bias": ("transformer.resblocks.{}.attn.in_proj_bias",),
            "blocks.{}.proj.{}": ("transformer.resblocks.{}.attn.out_proj.{}",),
            "blocks.{}.fc1.{}": ("transformer.resblocks.{}.mlp.c_fc.{}",),
            "blocks.{}.fc2.{}": ("transformer.resblocks.{}.mlp.c_proj.{}",),
        },
    )

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        self.class_embedding = nn.Parameter(torch.zeros(width))
        self.positional_embedding = nn.Parameter(torch.zeros(1 + (SIDE // config.patch) ** 2, width))
        self.conv1 = nn.Conv2d(3, width, config.patch, config.patch, bias=False)
        self.ln_pre, self.ln_post = nn.LayerNorm(width, EPSILON), nn.LayerNorm(width, EPSILON)
        heads = width // 64
        self.blocks = nn.ModuleList(Block(width, heads, EPSILON, quick_gelu) for _ in range(config.layers))
        self.proj = nn.Parameter(torch.zeros(width, config.features))

    def forward(self, x_NCHW: Tensor) -> Tensor:
        patches = self.conv1(x_NCHW).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_embedding.expand(len(patches), 1, -1), patches], 1)
        x = self.ln_pre(x + self.positional_embedding)
        for block in self.blocks:
            x = block(x)
        return cast(Tensor, self.ln_post(x[:, 0]) @ self.proj)


class AestheticHead(nn.Linear):
    """Normalised features of ViT-L/14 to a score of about 0 to 10 (LAION's sa_0_4_vit_l_14_linear.pth)."""

    weight_map = WeightMap(prefixes=("",))

    def __init__(self) -> None:
        super().__init__(L14.features, 1)
