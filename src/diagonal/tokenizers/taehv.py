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

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.engine.kernels import select
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
LANES, HALVES = 8, (torch.float16, torch.bfloat16)  # cuDNN's kernels that do more than convolve: channels and numbers


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

    @property
    def first(self) -> int:
        return 1

    def build(self) -> TAEHV:
        return TAEHV(self)


class Conv(nn.Conv2d):
    """A 3x3 convolution of every frame, and where asked for the max(x, 0) that follows. `stride` 2 halves its sides."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, bias: bool = True, relu: bool = False) -> None:
        super().__init__(inputs, outputs, 3, stride, padding=1, bias=bias)
        self.relu = relu

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:  # type: ignore[override]  # the call that all layers have
        return self.onto(None, x_BTHWC)

    def onto(self, shortcut_BTHWC: Tensor | None, x_BTHWC: Tensor) -> Tensor:
        """The convolution, added to a shortcut if there is one. cuDNN does all of it in one kernel."""

        def run(x_NCHW: Tensor) -> Tensor:
            sizes: Any = (self.stride, self.padding, self.dilation, self.groups)
            added = None if shortcut_BTHWC is None else shortcut_BTHWC.flatten(0, 1).permute(0, 3, 1, 2)
            whole = self.in_channels % LANES == self.out_channels % LANES == 0 and x_NCHW.dtype in HALVES
            if self.relu and whole and select.serves(x_NCHW):
                if added is None:
                    return torch.cudnn_convolution_relu(x_NCHW, self.weight, self.bias, *sizes)
                return torch.cudnn_convolution_add_relu(x_NCHW, self.weight, added, 1.0, self.bias, *sizes)
            out = F.conv2d(x_NCHW, self.weight, self.bias, *sizes)
            out = out if added is None else out + added
            return F.relu(out) if self.relu else out

        return per_frame(run, x_BTHWC)


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
        first, then, last = (Conv(count * channels, channels, relu=True) for count in (2, 1, 1))
        self.conv = numbered(first, None, then, None, last)

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:
        joined = past.join(zeros_before(x_BTHWC, 1) if past.empty else x_BTHWC, 1, dim=1)
        both = torch.cat([x_BTHWC, joined[:, :-1]], dim=-1)
        first, then, last = cast(Iterable[Conv], self.conv.values())
        return last.onto(x_BTHWC, then(first(both, past), past))


def encoder(config: Config) -> Steps:
    """Pixels to latents, from the finest stage to the coarsest."""
    width = config.width
    layers: list[nn.Module | None] = [Conv(RGB, width, relu=True), None]
    for count in reversed(config.growth):
        layers += [Pool(width, count), Conv(width, width, stride=2, bias=False)]
        layers += [MemBlock(width) for _ in range(BLOCKS)]
    return numbered(*layers, Conv(width, config.latent))


def decoder(config: Config) -> Steps:
    """Latents to pixels, from the coarsest stage to the finest.

    The published order is to double the sides, then to grow. A matrix does the same at every place, so growing first
    gives the same numbers for a quarter of the work; the layers keep their published numbers.
    """
    layers: dict[str, nn.Module] = {"0": Clamp(), "1": Conv(config.latent, config.widths[0], relu=True)}
    number = 3  # of the next layer; the one before it is the end of "1"
    ends = (*config.widths[1:], config.widths[-1])
    for stage, (before, after, count) in enumerate(zip(config.widths, ends, config.growth, strict=True), 1):
        layers |= {str(number + index): MemBlock(before) for index in range(BLOCKS)}
        double, grow, conv = (str(number + BLOCKS + index) for index in range(3))
        relu = stage == len(ends)
        layers |= {grow: Grow(before, count), double: Double(), conv: Conv(before, after, bias=False, relu=relu)}
        number += BLOCKS + 3
    return Steps(layers | {str(number + 1): Conv(ends[-1], RGB)})


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
    def first(self) -> int:
        return self.config.first

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
