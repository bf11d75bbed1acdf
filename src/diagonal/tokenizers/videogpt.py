"""VideoGPT's VQ-VAE (Yan et al., 2021, arXiv:2104.10157): clips to a grid of codes and back, through three-dimensional
convolutions and attention along each axis.

It looks at whole clips: convolutions pad both ends of time and attention sees every frame. So it decodes all token
frames of a clip together, and exactly only then. Checkpoints: wilson1yan/VideoGPT; no shape in them tells the strides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.models.batch_norm import FrozenBatchNorm

KERNEL = 4  # of convolutions that halve or double, along every axis
AXES = {"attn_w": 3, "attn_h": 2, "attn_t": 1}  # of (B, T, H, W, C), in the checkpoints' names
ATTENTION_HEADS = 2


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of a VideoGPT VQ-VAE. Defaults are those of the published ones."""

    stride: int  # frames per token frame
    patch: int  # pixels per token along each side of a frame
    codebook: int = 2048
    width: int = 240
    latent: int = 256
    layers: int = 4

    def __post_init__(self) -> None:
        for name in ("stride", "patch"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise ValueError(f"{name}={value} given; clips are halved, so it must be a power of two, such as 4")
        if max(self.stride, self.patch) < 4:
            raise ValueError(f"stride={self.stride} and patch={self.patch} given; one of them must be 4 or more")

    @property
    def halvings(self) -> tuple[int, int, int]:
        """How often time, height and width are halved."""
        side = int(math.log2(self.patch))
        return int(math.log2(self.stride)), side, side

    def strides(self) -> list[tuple[int, int, int]]:
        """Of each convolution that halves: 2 along an axis as long as it has halvings left, then 1."""
        time, height, width = self.halvings
        steps = range(max(self.halvings))
        return [(1 + (step < time), 1 + (step < height), 1 + (step < width)) for step in steps]

    def fit(self, state: Mapping[str, Tensor], settings: Mapping[str, Any], grid: tuple[int, int]) -> Config:
        """The config of a checkpoint. Strides are in no shape: they follow from the clips that its prior was trained on
        (`grid`: their token frames and rows), or are noted in our own files."""
        shapes = {re.sub(r"^(vqvae|tokenizer)\.", "", key): tuple(value.shape) for key, value in state.items()}
        noted = {name: settings.get(f"tokenizer.{name}") for name in ("stride", "patch")}
        length, side = settings.get("args.sequence_length"), settings.get("args.resolution")
        if isinstance(length, int) and isinstance(side, int):
            noted = {"stride": length // grid[0], "patch": side // grid[1]}
        found = {name: value for name, value in noted.items() if isinstance(value, int)}
        if shapes.keys() >= {"codebook.embeddings", "encoder.conv_last.conv.weight"}:
            blocks = [key for key in shapes if re.fullmatch(r"encoder\.res_stack\.\d+\.block\.0\.weight", key)]
            codebook, latent = shapes["codebook.embeddings"]
            found |= {"codebook": codebook, "latent": latent, "layers": len(blocks)}
            found |= {"width": shapes["encoder.conv_last.conv.weight"][0]}
        return replace(self, **found)

    def build(self) -> VideoVQ:
        return VideoVQ(self)


def _padding(kernel: int, stride: tuple[int, int, int]) -> list[int]:
    """What `F.pad` takes so that a clip of a multiple of the strides keeps its size: the odd one comes first."""
    totals = [kernel - one for one in reversed(stride)]
    return [part for total in totals for part in (total - total // 2, total // 2)]


class SameConv(nn.Module):
    """A convolution whose output has the input's size over its stride."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: tuple[int, int, int], bias: bool) -> None:
        super().__init__()
        self.pad = _padding(kernel, stride)
        self.conv = nn.Conv3d(inputs, outputs, kernel, stride, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.conv(F.pad(x, self.pad))
        return made


class SameConvTranspose(nn.Module):
    """A transposed convolution whose output has the input's size times its stride."""

    def __init__(self, inputs: int, outputs: int, stride: tuple[int, int, int]) -> None:
        super().__init__()
        self.pad = _padding(KERNEL, stride)
        self.convt = nn.ConvTranspose3d(inputs, outputs, KERNEL, stride, padding=KERNEL - 1)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.convt(F.pad(x, self.pad))
        return made


class LineAttention(nn.Module):
    """Attention of cells to those on the same line along one axis, without positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w_qs, self.w_ks, self.w_vs = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.fc = nn.Linear(width, width)

    def forward(self, x_BTHWC: Tensor, axis: int) -> Tensor:
        lines = x_BTHWC.transpose(axis, 3)
        q, k, v = (
            layer(lines).unflatten(-1, (ATTENTION_HEADS, -1)).transpose(-2, -3)
            for layer in (self.w_qs, self.w_ks, self.w_vs)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(-2, -3).flatten(-2)
        made: Tensor = self.fc(mixed).transpose(axis, 3)
        return made


class AxialAttention(nn.Module):
    """The sum of attention along width, height and time, all of the same input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        for name in AXES:
            self.add_module(name, LineAttention(width))

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        x_BTHWC = x_BCTHW.permute(0, 2, 3, 4, 1)
        total = sum(self.get_submodule(name)(x_BTHWC, axis) for name, axis in AXES.items())
        assert isinstance(total, Tensor)
        return total.permute(0, 4, 1, 2, 3)


class Residual(nn.Module):
    """x + a narrow convolution, a wide one of single cells, and attention, each behind batch norm and ReLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.block = nn.Sequential(
            FrozenBatchNorm(width),
            nn.ReLU(),
            SameConv(width, half, 3, (1, 1, 1), bias=False),
            FrozenBatchNorm(half),
            nn.ReLU(),
            SameConv(half, width, 1, (1, 1, 1), bias=False),
            FrozenBatchNorm(width),
            nn.ReLU(),
            AxialAttention(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.block(x)
        return made


def _stack(config: Config) -> nn.Sequential:
    blocks = [Residual(config.width) for _ in range(config.layers)]
    return nn.Sequential(*blocks, FrozenBatchNorm(config.width), nn.ReLU())


class Encoder(nn.Module):
    """Pixels (B, 3, T, H, W) to features of cells."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        widths = [3] + [config.width] * len(config.strides())
        self.convs = nn.ModuleList(
            SameConv(inputs, config.width, KERNEL, stride, bias=True)
            for inputs, stride in zip(widths, config.strides(), strict=False)
        )
        self.conv_last = SameConv(config.width, config.width, 3, (1, 1, 1), bias=True)
        self.res_stack = _stack(config)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.relu(conv(x))
        made: Tensor = self.res_stack(self.conv_last(x))
        return made


class Decoder(nn.Module):
    """Features of cells to pixels."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.res_stack = _stack(config)
        widths = [config.width] * (len(config.strides()) - 1) + [3]
        self.convts = nn.ModuleList(
            SameConvTranspose(config.width, outputs, stride)
            for outputs, stride in zip(widths, config.strides(), strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.res_stack(x)
        *inner, last = self.convts
        for convt in inner:
            x = F.relu(convt(x))
        made: Tensor = last(x)
        return made


class Codebook(nn.Module):
    """The vectors that codes stand for. The reference updates them by moving averages, so they are no parameters."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embeddings: Tensor
        self.register_buffer("embeddings", torch.randn(config.codebook, config.latent))


class VideoVQ(nn.Module):
    """Clips to codes and back."""

    whole = True
    weight_map = WeightMap(
        prefixes=("tokenizer.", "vqvae.", ""),
        ignore=("codebook.N", "codebook.z_avg", "{}.num_batches_tracked"),  # what its training went by
    )

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.patch, self.stride = config, config.patch, config.stride
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        self.pre_vq_conv = SameConv(config.width, config.latent, 1, (1, 1, 1), bias=True)
        self.post_vq_conv = SameConv(config.latent, config.width, 1, (1, 1, 1), bias=True)
        self.codebook = Codebook(config)

    def encode(self, video_BTCHW: Tensor) -> Tensor:
        """Codes (B, token frames, rows, cols) of whole clips of uint8."""
        frames, size = video_BTCHW.shape[1], tuple(video_BTCHW.shape[-2:])
        if frames % self.stride or not frames or any(side % self.patch for side in size):
            raise ValueError(
                f"{frames} frames of {size[0]}x{size[1]} given; this tokenizer takes a multiple of {self.stride} "
                f"frames, with sides that are multiples of {self.patch}"
            )
        pixels = video_BTCHW.transpose(1, 2).to(self.codebook.embeddings.dtype) / 255 - 0.5
        with torch.inference_mode():
            return self.nearest(self.latents(pixels)).clone()

    def latents(self, pixels_BCTHW: Tensor) -> Tensor:
        """What is looked up in the codebook (B, C, T, rows, cols), of pixels in [-0.5, 0.5]."""
        made: Tensor = self.pre_vq_conv(self.encoder(pixels_BCTHW))
        return made

    def nearest(self, latents_BCTHW: Tensor) -> Tensor:
        """The code of the closest vector of each cell: least |z|^2 - 2 z e + |e|^2."""
        vectors = latents_BCTHW.permute(0, 2, 3, 4, 1)
        table = self.codebook.embeddings
        flat = vectors.flatten(0, 3)
        distances = flat.square().sum(1, keepdim=True) - 2 * flat @ table.t() + table.t().square().sum(0, keepdim=True)
        return distances.argmin(-1).view(vectors.shape[:-1])

    def decode(self, tokens_BTHW: Tensor, state: MutableMapping[str, Tensor]) -> Tensor:
        """Pixels of whole clips, uint8 by truncation. Each call is a clip of its own: `state` stays empty."""
        with torch.inference_mode():
            pixels = self.pixels(tokens_BTHW).float().clamp(-0.5, 0.5) + 0.5
            return (pixels * 255).to(torch.uint8).transpose(1, 2).clone()

    def pixels(self, tokens_BTHW: Tensor) -> Tensor:
        """Decoded clips in about [-0.5, 0.5], (B, 3, T, H, W)."""
        vectors = F.embedding(tokens_BTHW, self.codebook.embeddings).permute(0, 4, 1, 2, 3)
        made: Tensor = self.decoder(self.post_vq_conv(vectors))
        return made


VARIANTS = {
    "stride4x4x4": Config(stride=4, patch=4),
    "stride2x4x4": Config(stride=2, patch=4),
    "stride4x2x2": Config(stride=4, patch=2),
    "tiny": Config(stride=4, patch=4, codebook=32, width=8, latent=8, layers=1),
}
