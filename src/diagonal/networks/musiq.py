"""MUSIQ (Ke et al., 2021) trained on SPAQ: how good a picture looks, about 0 to 100, from patches of three sizes of it.

Patches of all sizes go through one stem and one transformer. Where a patch lies is told by a grid of 10 x 10 places,
the same for all sizes. Reference implementations fill sequences up with masked patches; here they are left out.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.networks.same_padding import padded

PATCH = 32
SIDES = (224, 384)  # of the picture made anew, its longer one; the third size is its own
GRID = 10
WIDTH, LAYERS, HEADS, MLP = 384, 14, 6, 1152
STEM = 64
EPSILON = 1e-6


class Musiq(nn.Module):
    """Pictures (N, 3, H, W) of 0 to 1 to scores (N,)."""

    weight_map = WeightMap(prefixes=("module.", ""))

    def __init__(self) -> None:
        super().__init__()
        self.conv_root, self.gn_root = StandardizedConv2d(3, STEM, 7, 2), nn.GroupNorm(32, STEM, EPSILON)
        self.block1 = Bottleneck()
        self.embedding = nn.Linear(4 * STEM * (PATCH // 4) ** 2, WIDTH)
        self.transformer_encoder = Encoder()
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.encode(x_NCHW))[:, 0])

    def encode(self, x_NCHW: Tensor) -> Tensor:
        """The class token behind the last norm, (N, 384)."""
        patches_NSCHW, place_S, scale_S = tokens(x_NCHW)
        stem = self.stem(patches_NSCHW.flatten(0, 1)).permute(0, 2, 3, 1).flatten(1)
        return cast(
            Tensor,
            self.transformer_encoder(self.embedding(stem).unflatten(0, patches_NSCHW.shape[:2]), place_S, scale_S),
        )

    def stem(self, patches_NCHW: Tensor) -> Tensor:
        """Patches to 256 channels at a quarter of their size."""
        x = F.relu(self.gn_root(self.conv_root(patches_NCHW)))
        return cast(Tensor, self.block1(F.max_pool2d(padded(x, (3, 3), (2, 2)), 3, 2)))


def tokens(x_NCHW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Patches (N, S, 3, 32, 32) in [-1, 1] of all sizes, and the place in the grid and the size of each."""
    x = 2 * x_NCHW - 1
    height, width = x.shape[-2:]
    pictures = []
    for side in SIDES:
        factor = side / max(height, width)
        size = (round(height * factor), round(width * factor))
        pictures.append(F.interpolate(x, size, mode="bicubic", align_corners=False))
    patches, places, scales = [], [], []
    for scale, picture in enumerate([*pictures, x]):
        rows, cols = (-(-side // PATCH) for side in picture.shape[-2:])
        cut = F.unfold(padded(picture, (PATCH, PATCH), (PATCH, PATCH)), PATCH, stride=PATCH)
        patches.append(cut.transpose(1, 2).unflatten(-1, (x.shape[1], PATCH, PATCH)))
        places.append((GRID * _nearest(rows, x.device)[:, None] + _nearest(cols, x.device)).flatten())
        scales.append(torch.full((rows * cols,), scale, device=x.device))
    return torch.cat(patches, 1), torch.cat(places), torch.cat(scales)


def _nearest(count: int, device: torch.device) -> Tensor:
    """For each of so many rows or columns, that of the grid."""
    grid = torch.arange(GRID, dtype=torch.float32, device=device)
    return F.interpolate(grid[None, None], count, mode="nearest")[0, 0].long()


class StandardizedConv2d(nn.Conv2d):
    """The weights of every output channel have mean 0 and deviation 1."""

    def __init__(self, before: int, after: int, kernel: int, stride: int = 1) -> None:
        super().__init__(before, after, kernel, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        weight = weight / (weight.std((1, 2, 3), keepdim=True) + 1e-5)
        return F.conv2d(padded(x, self.kernel_size, self.stride), weight, None, self.stride)


class Bottleneck(nn.Module):
    """A residual block of 64 channels to 256."""

    def __init__(self) -> None:
        super().__init__()
        wide, epsilon = 4 * STEM, 1e-4
        self.conv1, self.gn1 = StandardizedConv2d(STEM, STEM, 1), nn.GroupNorm(32, STEM, epsilon)
        self.conv2, self.gn2 = StandardizedConv2d(STEM, STEM, 3), nn.GroupNorm(32, STEM, epsilon)
        self.conv3, self.gn3 = StandardizedConv2d(STEM, wide, 1), nn.GroupNorm(32, wide, epsilon)
        self.conv_proj, self.gn_proj = StandardizedConv2d(STEM, wide, 1), nn.GroupNorm(32, wide, epsilon)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.gn1(self.conv1(x)))
        y = F.relu(self.gn2(self.conv2(y)))
        return F.relu(self.gn_proj(self.conv_proj(x)) + self.gn3(self.conv3(y)))


class Encoder(nn.Module):
    """Tokens with their places and sizes through the transformer; gives the class token."""

    def __init__(self) -> None:
        super().__init__()
        self.posembed_input = Table("position_emb", (1, GRID**2, WIDTH))
        self.scaleembed_input = Table("scale_emb", (1 + len(SIDES), WIDTH))
        self.cls = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.transformer = nn.ModuleDict({f"encoderblock_{number}": Block() for number in range(LAYERS)})
        self.encoder_norm = nn.LayerNorm(WIDTH, EPSILON)

    def forward(self, x_NSD: Tensor, place_S: Tensor, scale_S: Tensor) -> Tensor:
        x = x_NSD + self.posembed_input(place_S) + self.scaleembed_input(scale_S)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
        for block in self.transformer.values():
            x = block(x)
        return cast(Tensor, self.encoder_norm(x[:, 0]))


class Table(nn.Module):
    """Rows that are looked up; the file has a name of its own for each table."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.name = name
        self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def forward(self, index: Tensor) -> Tensor:
        return self.get_parameter(self.name).reshape(-1, WIDTH)[index]


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, EPSILON), nn.LayerNorm(WIDTH, EPSILON)
        names = ("query", "key", "value", "out")
        self.attention = nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in names})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(WIDTH, MLP), "fc2": nn.Linear(MLP, WIDTH)})

    def forward(self, x_NSD: Tensor) -> Tensor:
        y = self.norm1(x_NSD)
        q, k, v = (
            self.attention[name](y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for name in ("query", "key", "value")
        )
        x = x_NSD + self.attention["out"](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return cast(Tensor, x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x)))))
