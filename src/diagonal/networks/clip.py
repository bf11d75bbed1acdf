"""CLIP (Radford et al., 2021): picture and text towers of OpenAI's ViT-B/32 and ViT-L/14, and a linear head on them.

The files are TorchScript archives that hold both towers; their code is never run, and what does not belong to the
tower that is asked for is left aside.
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
    """Sizes of a picture tower, and of the text tower beside it."""

    width: int
    layers: int
    patch: int
    features: int
    text: TextConfig

    def build(self) -> PictureTower:
        return PictureTower(self)


@dataclass(frozen=True, slots=True)
class TextConfig:
    """Sizes of a text tower; its heads are 64 wide."""

    width: int
    features: int
    layers: int = 12
    words: int = 49408
    length: int = 77

    def build(self) -> TextTower:
        return TextTower(self)


B32 = Config(width=768, layers=12, patch=32, features=512, text=TextConfig(512, 512))
L14 = Config(width=1024, layers=24, patch=14, features=768, text=TextConfig(768, 768))
BLOCKS = {  # names of a tower's blocks in the files
    "blocks.{}.norm1.{}": ("transformer.resblocks.{}.ln_1.{}",),
    "blocks.{}.norm2.{}": ("transformer.resblocks.{}.ln_2.{}",),
    "blocks.{}.qkv.weight": ("transformer.resblocks.{}.attn.in_proj_weight",),
    "blocks.{}.qkv.bias": ("transformer.resblocks.{}.attn.in_proj_bias",),
    "blocks.{}.proj.{}": ("transformer.resblocks.{}.attn.out_proj.{}",),
    "blocks.{}.fc1.{}": ("transformer.resblocks.{}.mlp.c_fc.{}",),
    "blocks.{}.fc2.{}": ("transformer.resblocks.{}.mlp.c_proj.{}",),
}


def quick_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x), which stands for GELU in these files."""
    return x * torch.sigmoid(1.702 * x)


class PictureTower(nn.Module):
    """Pictures (N, 3, 224, 224), normalised, to features (N, F) that are not normalised yet."""

    weight_map = WeightMap(prefixes=("visual.", ""), keys=BLOCKS)

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


class TextTower(nn.Module):
    """Numbers of texts (N, 77), as text/clip_words.py makes them, to features (N, F) that are not normalised yet."""

    weight_map = WeightMap(
        prefixes=("",),
        keys=BLOCKS | {"words.weight": ("token_embedding.weight",)},
        ignore=("visual.{}", "logit_scale", "input_resolution", "context_length", "vocab_size"),
    )

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        width = config.width
        self.words = nn.Embedding(config.words, width)
        self.positional_embedding = nn.Parameter(torch.zeros(config.length, width))
        self.blocks = nn.ModuleList(
            Block(width, width // 64, EPSILON, quick_gelu, causal=True) for _ in range(config.layers)
        )
        self.ln_final = nn.LayerNorm(width, EPSILON)
        self.text_projection = nn.Parameter(torch.zeros(width, config.features))

    def forward(self, text_NL: Tensor) -> Tensor:
        x = self.words(text_NL) + self.positional_embedding
        for block in self.blocks:
            x = block(x)
        end_N = text_NL.argmax(1)  # the end of a text has the largest number
        ends = x[torch.arange(len(x), device=x.device), end_N]
        return cast(Tensor, self.ln_final(ends) @ self.text_projection)


class AestheticHead(nn.Linear):
    """Normalised features of ViT-L/14 to a score of about 0 to 10 (LAION's sa_0_4_vit_l_14_linear.pth)."""

    weight_map = WeightMap(prefixes=("",))

    def __init__(self) -> None:
        super().__init__(L14.features, 1)
