"""TAEHV, the tiny video autoencoder of Ollin Boer Bohan, for the latents of Wan2.1: a fast preview of the Wan VAE.

Convolutions over frames, in which only the memory blocks look back: each sees its own input one frame earlier. Frames
are made from channels (`Grow`) and put back into them (`Pool`). So decoding streams, with a remembered frame per block.
It takes and gives normalised latents, as the denoiser does. Pixels are clamped to [0, 1], and v becomes the byte
nearest to 255 v.

The decoder makes four frames of a latent, of which the last is the newest that the Wan VAE would make of it; of the
first latent the other three are dropped. The encoder looks ahead: to the three frames after a latent's newest one, for
which copies of a clip's last frame stand at its end. That is why only decoding streams.
Names of the layers are those of the published checkpoint (taew2_1.pth).
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.engine.protocols import WeightMap
from diagonal.tokenizers.streaming import (
    RGB,
    Past,
    Steps,
    channels_to_frames,
    check_clip,
    check_latents,
    frames_to_channels,
    numbered,
    per_frame,
    pointwise,
    twice_the_sides,
    zeros_before,
)

BLOCKS = 3  # memory blocks of a stage


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes. Each stage of the decoder doubles the sides of a frame and multiplies frames; the encoder mirrors it."""

    width: int  # of the encoder
    widths: tuple[int, ...]  # of the decoder's stages
    growth: tuple[int, ...] = (1, 2, 2)
    latent: int = 16

    def __post_init__(self) -> None:
        if len(self.widths) != len(self.growth):
            raise ValueError(f"{len(self.widths)} widths and {len(self.growth)} growths given; a stage has one of both")

    @property
    def patch(self) -> int:
        return int(2 ** len(self.widths))

    @property
    def stride(self) -> int:
        return prod(self.growth)

    def build(self) -> TAEHV:
        return TAEHV(self)


class Conv(nn.Conv2d):
    """A 3x3 convolution of every frame. `stride` 2 halves its sides."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, bias: bool = True) -> None:
        super().__init__(inputs, outputs, 3, stride, padding=1, bias=bias)

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:  # type: ignore[override]  # the call that all layers have
        return per_frame(super().forward, x_BTHWC)


class ReLU(nn.Module):
    """max(x, 0)."""

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:
        return F.relu(x_BTHWC)


class Clamp(nn.Module):
    """3 tanh(x / 3): latents that the decoder was trained on lie within."""

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:
        return torch.tanh(x_BTHWC / 3) * 3


class Double(nn.Module):
    """Twice the sides of a frame."""

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:
        return twice_the_sides(x_BTHWC)


class Grow(nn.Module):
    """Each frame becomes `count`, by a matrix."""

    def __init__(self, channels: int, count: int) -> None:
        super().__init__()
        self.count = count
        self.conv = nn.Conv2d(channels, channels * count, 1, bias=False)

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:
        return channels_to_frames(pointwise(self.conv, x_BTHWC), self.count)


class Pool(nn.Module):
    """Each `count` frames become one, by a matrix."""

    def __init__(self, channels: int, count: int) -> None:
        super().__init__()
        self.count = count
        self.conv = nn.Conv2d(channels * count, channels, 1, bias=False)

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:
        return pointwise(self.conv, frames_to_channels(x_BTHWC, self.count))


class MemBlock(nn.Module):
    """Three convolutions around a shortcut, of a frame's features beside those of the frame before (zeros at first)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = numbered(
            *(Conv(2 * channels, channels), ReLU(), Conv(channels, channels), ReLU(), Conv(channels, channels))
        )

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:
        joined = past.join(zeros_before(x_BTHWC, 1) if past.empty else x_BTHWC, 1, dim=1)
        both = torch.cat([x_BTHWC, joined[:, :-1]], dim=-1)
        out: Tensor = self.conv(both, past)
        return F.relu(out + x_BTHWC)


def encoder(config: Config) -> Steps:
    """Pixels to latents, from the finest stage to the coarsest."""
    width = config.width
    layers: list[nn.Module] = [Conv(RGB, width), ReLU()]
    for count in reversed(config.growth):
        layers += [Pool(width, count), Conv(width, width, stride=2, bias=False)]
        layers += [MemBlock(width) for _ in range(BLOCKS)]
    return numbered(*layers, Conv(width, config.latent))


def decoder(config: Config) -> Steps:
    """Latents to pixels, from the coarsest stage to the finest.

    The published order is to double the sides, then to grow. A matrix does the same at every place, so growing first
    gives the same numbers for a quarter of the work; the layers keep their published numbers.
    """
    layers: dict[str, nn.Module] = {"0": Clamp(), "1": Conv(config.latent, config.widths[0]), "2": ReLU()}
    ends = (*config.widths[1:], config.widths[-1])
    for before, after, count in zip(config.widths, ends, config.growth, strict=True):
        layers |= {str(len(layers) + index): MemBlock(before) for index in range(BLOCKS)}
        double, grow, conv = (str(len(layers) + index) for index in range(3))
        layers |= {grow: Grow(before, count), double: Double(), conv: Conv(before, after, bias=False)}
    layers |= {str(len(layers)): ReLU(), str(len(layers) + 1): Conv(ends[-1], RGB)}
    return Steps(layers)


class TAEHV(nn.Module):
    """Clips to latents and back."""

    weight_map = WeightMap(prefixes=("tokenizer.", ""))

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder, self.decoder = encoder(config), decoder(config)

    @property
    def patch(self) -> int:
        return self.config.patch

    @property
    def stride(self) -> int:
        return self.config.stride

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def encode(self, video_BTCHW: Tensor) -> Tensor:
        """Latents (B, F, C, rows, cols) of a whole clip."""
        check_clip(video_BTCHW, self.stride, self.patch)
        with torch.inference_mode():
            latents = self.latents(video_BTCHW.float() / 255)
        return latents.clone()

    def latents(self, pixels_BTCHW: Tensor) -> Tensor:
        """Latents (B, F, C, rows, cols) of frames in [0, 1]."""
        x_BTHWC = pixels_BTCHW.permute(0, 1, 3, 4, 2).to(self.dtype)
        ahead = x_BTHWC[:, -1:].expand(-1, self.stride - 1, -1, -1, -1)
        out: Tensor = self.encoder(torch.cat([x_BTHWC, ahead], dim=1), Past(None, start=True))
        return out.permute(0, 1, 4, 2, 3)

    def decode(self, latents_BFCHW: Tensor, state: MutableMapping[str, Tensor]) -> Tensor:
        """Each latent gives `stride` frames, but the first of a video one."""
        check_latents(latents_BFCHW, self.config.latent)
        with torch.inference_mode():
            pixels = self.pixels(latents_BFCHW, state)
            bytes_BTCHW = (pixels.float().clamp(0, 1) * 255).round().to(torch.uint8)
        return bytes_BTCHW.clone()

    def pixels(self, latents_BFCHW: Tensor, state: MutableMapping[str, Tensor]) -> Tensor:
        """Decoded frames in about [0, 1], (B, T, C, height, width)."""
        past = Past(state, start=not state)
        x_BTHWC = latents_BFCHW.permute(0, 1, 3, 4, 2).to(self.dtype).contiguous()
        out: Tensor = self.decoder(x_BTHWC, past)
        return out[:, self.stride - 1 if past.start else 0 :].permute(0, 1, 4, 2, 3)


VARIANTS = {
    "wan": Config(width=64, widths=(256, 128, 64)),
    "tiny": Config(width=4, widths=(8, 6, 4)),
}
