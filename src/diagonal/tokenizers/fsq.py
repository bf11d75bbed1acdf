"""A small convolutional image tokenizer with finite scalar quantisation (Mentzer et al., 2024).

Each place of the latent grid holds a few numbers, each rounded to one of a few levels; the id is the mixed-radix
number of the levels, so there is no codebook to learn or to collapse. Frames are independent.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.tokenizers.norm import NormSiLU
from diagonal.tokenizers.radix import digits, number


@dataclass(frozen=True, slots=True)
class Config:
    """Channels from the finest stage to the coarsest: each stage halves the sides."""

    levels: tuple[int, ...]
    channels: tuple[int, ...]
    encoder_blocks: int
    decoder_blocks: int

    @property
    def patch(self) -> int:
        return int(2 ** len(self.channels))

    @property
    def codebook(self) -> int:
        return prod(self.levels)

    def build(self) -> FSQTokenizer:
        return FSQTokenizer(self)


class Residual(nn.Module):
    """Two normalised convolutions around a shortcut; starts as the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = NormSiLU(8, channels), NormSiLU(8, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.conv2(self.norm2(self.conv1(self.norm1(x))))
        return out


def _encoder(config: Config) -> nn.Sequential:
    layers: list[nn.Module] = []
    before = 3
    for channels in config.channels:
        layers += [nn.Conv2d(before, channels, 4, stride=2, padding=1)]
        layers += [Residual(channels) for _ in range(config.encoder_blocks)]
        before = channels
    # Weights are counted by place, and there was a layer for SiLU once.
    return nn.Sequential(*layers, NormSiLU(8, before), nn.Identity(), nn.Conv2d(before, len(config.levels), 1))


def _decoder(config: Config) -> nn.Sequential:
    *finer, coarsest = config.channels
    layers: list[nn.Module] = [nn.Conv2d(len(config.levels), coarsest, 3, padding=1)]
    before = coarsest
    for channels in (*reversed(finer), None):
        layers += [Residual(before) for _ in range(config.decoder_blocks)]
        if channels is not None:
            layers += [nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(before, channels, 3, padding=1)]
            before = channels
    # The last doubling is a shuffle of twelve channels into 2x2 pixels of three.
    last = nn.Conv2d(before, 12, 3, padding=1)
    return nn.Sequential(*layers, NormSiLU(8, before), nn.Identity(), last, nn.PixelShuffle(2))


class FSQTokenizer(nn.Module):
    """Frames to ids and back."""

    whole = False
    weight_map = WeightMap(prefixes=("tokenizer.", ""))

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder, self.decoder = _encoder(config), _decoder(config)

    @property
    def patch(self) -> int:
        return self.config.patch

    @property
    def stride(self) -> int:
        return 1

    def encode(self, video_BTCHW: Tensor) -> Tensor:
        frames_NCHW = self.scale(video_BTCHW.flatten(0, 1))
        with torch.inference_mode():
            ids_NHW = self.ids(self.levels(self.encoder(frames_NCHW)))
        return ids_NHW.reshape(*video_BTCHW.shape[:2], *ids_NHW.shape[1:]).clone()

    def decode(self, tokens_BTHW: Tensor, state: MutableMapping[str, Tensor]) -> Tensor:
        """Every frame stands alone: `state` stays empty."""
        with torch.inference_mode():
            pixels = self.decoder(self.codes(tokens_BTHW.flatten(0, 1)))
            bytes_NCHW: Tensor = ((pixels.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return bytes_NCHW.reshape(*tokens_BTHW.shape[:2], *bytes_NCHW.shape[1:]).clone()

    def scale(self, bytes_NCHW: Tensor) -> Tensor:
        """uint8 to [-1, 1]."""
        pixels: Tensor = bytes_NCHW.to(next(self.parameters()).dtype) / 127.5 - 1
        return pixels

    def forward(self, pixels_NCHW: Tensor) -> Tensor:
        """Reconstruction of pixels in [-1, 1]; rounding passes gradients straight through."""
        bounded = self._bound(self.encoder(pixels_NCHW))
        rounded = bounded + (bounded.round() - bounded).detach()
        out: Tensor = self.decoder(self._centre(rounded))
        return out

    def levels(self, latents_NCHW: Tensor) -> Tensor:
        """Whole numbers 0 to L-1 of each channel."""
        return self._bound(latents_NCHW).round().long()

    def ids(self, levels_NCHW: Tensor) -> Tensor:
        """Mixed-radix number of the levels, the first channel the lowest digit."""
        return number(levels_NCHW, self.config.levels)

    def codes(self, ids_NHW: Tensor) -> Tensor:
        """What the decoder takes: each channel in [-1, 1]."""
        return self._centre(digits(ids_NHW, self.config.levels)).to(next(self.parameters()).dtype)

    def _bound(self, latents_NCHW: Tensor) -> Tensor:
        """Squash each channel to [0, L-1]."""
        counts = torch.tensor(self.config.levels, device=latents_NCHW.device)[:, None, None]
        return (latents_NCHW.float().tanh() + 1) / 2 * (counts - 1)

    def _centre(self, levels_NCHW: Tensor) -> Tensor:
        counts = torch.tensor(self.config.levels, device=levels_NCHW.device)[:, None, None]
        return levels_NCHW / (counts - 1) * 2 - 1


VARIANTS = {
    "doom": Config(levels=(5, 5, 5, 5), channels=(64, 128, 192), encoder_blocks=2, decoder_blocks=3),
    "tiny": Config(levels=(4, 4, 4), channels=(8, 16, 16), encoder_blocks=1, decoder_blocks=1),
}
