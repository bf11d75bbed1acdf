"""AMT-S (Li et al., 2023): the frame in the middle of two, from coarse flow to three fine ones that are combined."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.networks.correlation import correlation_levels, look_up, places, warped

CHANNELS = (20, 32, 44, 56)  # of features at 1/2, 1/4, 1/8 and 1/16 of the size
SIDEWAYS = 20  # channels that a residual block treats by themselves as well
FLOWS = 3  # in each direction
LEVELS, RADIUS = 4, 3
SIDE = 113  # pixels, at least: of less than 128 padded ones the last level is a single one, and its places are 0 / 0
MULTIPLE = 16


class Amt(nn.Module):
    """Pictures (N, 3, H, W) of 0 to 1, sides multiples of 16, to the one in the middle of their time, 0 to 1."""

    weight_map = WeightMap(prefixes=("module.", ""))

    def __init__(self) -> None:
        super().__init__()
        one, two, three, four = CHANNELS
        self.feat_encoder = FeatureEncoder()
        self.encoder = Pyramid()
        self.decoder4 = Decoder(2 * four + 1, 2 * four, three + 4)
        self.decoder3 = Decoder(3 * three + 4, 3 * three, two + 4)
        self.decoder2 = Decoder(3 * two + 4, 3 * two, one + 4)
        self.decoder1 = Decoder(3 * one + 4, 3 * one, 8 * FLOWS)
        self.update4, self.update3, self.update2 = Update(three, 1), Update(two, 2), Update(one, 4)
        self.comb_block = nn.Sequential(
            nn.Conv2d(3 * FLOWS, 6 * FLOWS, 3, 1, 1), nn.PReLU(6 * FLOWS), nn.Conv2d(6 * FLOWS, 3, 3, 1, 1)
        )

    def forward(self, first_NCHW: Tensor, second_NCHW: Tensor) -> Tensor:
        mean = torch.cat([first_NCHW, second_NCHW], 2).mean((1, 2, 3), keepdim=True)
        pair = first_NCHW - mean, second_NCHW - mean
        *flows, mask, residual = self.fine(*self.coarse(*pair))
        moved = [warped(_each(picture), flow) for picture, flow in zip(pair, map(_split, flows), strict=True)]
        mask = mask.flatten(0, 1)[:, None]
        shown = mask * moved[0] + (1 - mask) * moved[1] + _each(mean) + residual.unflatten(1, (FLOWS, 3)).flatten(0, 1)
        shown = shown.unflatten(0, (-1, FLOWS))
        return cast(Tensor, (shown.mean(1) + self.comb_block(shown.flatten(1, 2))).clamp(0, 1))

    def coarse(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What the last decoder is given: features, those of both pictures at half their size, and both flows."""
        ours, theirs = self.feat_encoder(torch.cat([first, second])).chunk(2)
        volumes = correlation_levels(ours, theirs, LEVELS), correlation_levels(theirs, ours, LEVELS)
        levels = [self.encoder(picture) for picture in (first, second)]
        time = first.new_full((len(first), 1, *levels[0][3].shape[-2:]), 0.5)
        out = self.decoder4(torch.cat([levels[0][3], levels[1][3], time], 1))
        state = self.update4.refine(out[:, 4:], out[:, :4], volumes)
        for level, decoder, update in ((2, self.decoder3, self.update3), (1, self.decoder2, self.update2)):
            features, flow = state
            out = decoder(_gathered(features, levels[0][level], levels[1][level], flow))
            state = update.refine(out[:, 4:], out[:, :4] + 2 * _resized(flow, 2), volumes)
        features, flow = state
        return features, levels[0][0], levels[1][0], flow[:, :2], flow[:, 2:]

    def fine(
        self, features: Tensor, first: Tensor, second: Tensor, to_first: Tensor, to_second: Tensor
    ) -> list[Tensor]:
        """Three flows to each picture, what of the first is taken, and what is added."""
        flow = torch.cat([to_first, to_second], 1)
        out = self.decoder1(_gathered(features, first, second, flow))
        own_first, own_second, mask, residual = out.split((2 * FLOWS, 2 * FLOWS, FLOWS, 3 * FLOWS), 1)
        first_flow, second_flow = (2 * _resized(one, 2).repeat(1, FLOWS, 1, 1) for one in (to_first, to_second))
        return [own_first + first_flow, own_second + second_flow, torch.sigmoid(mask), residual]


def _gathered(features: Tensor, first: Tensor, second: Tensor, flow: Tensor) -> Tensor:
    """What a decoder sees: features of both pictures are brought to where the middle frame has them."""
    return torch.cat([features, warped(first, flow[:, :2]), warped(second, flow[:, 2:]), flow], 1)


def _split(flows: Tensor) -> Tensor:
    """Several flows (N, 2 F, H, W) as flows of as many samples."""
    return cast(Tensor, flows.unflatten(1, (FLOWS, 2)).flatten(0, 1))


def _each(x: Tensor) -> Tensor:
    """Every sample once for each flow."""
    return x.repeat_interleave(FLOWS, 0)


def _resized(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=False)


def _conv_prelu(before: int, after: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1), nn.PReLU(after))


class Pyramid(nn.Module):
    """Features at 1/2, 1/4, 1/8 and 1/16 of the size."""

    def __init__(self) -> None:
        super().__init__()
        before = 3
        for number, after in enumerate(CHANNELS, 1):
            self.add_module(f"pyramid{number}", nn.Sequential(_conv_prelu(before, after, 2), _conv_prelu(after, after)))
            before = after

    def forward(self, x: Tensor) -> list[Tensor]:
        levels = [x]
        for number in range(1, 1 + len(CHANNELS)):
            levels.append(self.get_submodule(f"pyramid{number}")(levels[-1]))
        return levels[1:]


class Decoder(nn.Module):
    """To twice the size."""

    def __init__(self, before: int, inside: int, after: int) -> None:
        super().__init__()
        self.convblock = nn.Sequential(
            _conv_prelu(before, inside), Residual(inside), nn.ConvTranspose2d(inside, after, 4, 2, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.convblock(x))


class Residual(nn.Module):
    """Five convolutions beside the input; between them the last channels have one of their own."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv3 = _conv_prelu(channels, channels), _conv_prelu(channels, channels)
        self.conv2, self.conv4 = _conv_prelu(SIDEWAYS, SIDEWAYS), _conv_prelu(SIDEWAYS, SIDEWAYS)
        self.conv5, self.prelu = nn.Conv2d(channels, channels, 3, 1, 1), nn.PReLU(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        y = self.conv3(torch.cat([y[:, :-SIDEWAYS], self.conv2(y[:, -SIDEWAYS:])], 1))
        y = self.conv5(torch.cat([y[:, :-SIDEWAYS], self.conv4(y[:, -SIDEWAYS:])], 1))
        return cast(Tensor, self.prelu(x + y))


class FeatureEncoder(nn.Module):
    """A picture to features at 1/8 of its size, for similarities."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 7, 2, 3)
        for name, before, after, stride in (("layer1", 32, 32, 1), ("layer2", 32, 64, 2), ("layer3", 64, 96, 2)):
            self.add_module(name, nn.Sequential(Bottleneck(before, after, stride), Bottleneck(after, after, 1)))
        self.conv2 = nn.Conv2d(96, 84, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.instance_norm(self.conv1(x)))
        for name in ("layer1", "layer2", "layer3"):
            x = self.get_submodule(name)(x)
        return cast(Tensor, self.conv2(x))


class Bottleneck(nn.Module):
    """Three convolutions beside the input, the middle one on a quarter of the channels."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        inside = after // 4
        self.conv1, self.conv2 = nn.Conv2d(before, inside, 1), nn.Conv2d(inside, inside, 3, stride, 1)
        self.conv3 = nn.Conv2d(inside, after, 1)
        self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride)) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for convolution in (self.conv1, self.conv2, self.conv3):
            y = F.relu(F.instance_norm(convolution(y)))
        return F.relu(y + (x if self.downsample is None else F.instance_norm(self.downsample(x))))


class Update(nn.Module):
    """Corrects features and flows by the similarities at 1/8 of the size; `factor` times that is what it is given."""

    def __init__(self, features: int, factor: int) -> None:
        super().__init__()
        self.factor = factor
        self.convc1 = nn.Conv2d(2 * LEVELS * (2 * RADIUS + 1) ** 2, 64, 1)
        self.convf1, self.convf2 = nn.Conv2d(4, 40, 7, 1, 3), nn.Conv2d(40, 20, 3, 1, 1)
        self.conv = nn.Conv2d(84, 68, 3, 1, 1)
        self.gru = _two_convs(68 + 4 + features, 76)
        self.feat_head, self.flow_head = _two_convs(76, features), _two_convs(76, 4)

    def refine(
        self, features: Tensor, flow: Tensor, volumes: tuple[list[Tensor], list[Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Features and flows to both pictures, corrected."""
        small = _resized(flow, 1 / self.factor) / self.factor
        start = places(small)
        # The flow from one picture to the other is twice that to the middle.
        seen = [
            look_up(volume, start + 2 * one, RADIUS)
            for volume, one in zip(volumes, (small[:, 2:], small[:, :2]), strict=True)
        ]
        similar = _leaky(self.convc1(torch.cat(seen, 1)))
        moving = _leaky(self.convf2(_leaky(self.convf1(small))))
        both = _leaky(self.conv(torch.cat([similar, moving], 1)))
        hidden = self.gru(torch.cat([both, small, _resized(features, 1 / self.factor)], 1))
        more_features, more_flow = (_resized(head(hidden), self.factor) for head in (self.feat_head, self.flow_head))
        return features + more_features, flow + self.factor * more_flow


def _two_convs(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, 76, 3, 1, 1), nn.LeakyReLU(0.1), nn.Conv2d(76, after, 3, 1, 1))


def _leaky(x: Tensor) -> Tensor:
    return F.leaky_relu(x, 0.1)
