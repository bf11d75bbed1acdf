"""How VideoGPT looks at the pictures that steer a video: a ResNet-34 (He et al., 2016) over (T, H, W) with layer norms
over channels in place of batch norms, and attention to its features. Time keeps its length, sides are a quarter."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.engine.heads import joined

DEPTHS = (3, 4, 6, 3)
STRIDES = (1, 2, 2, 1)  # of the sides, at the first block of each group
EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Widths:
    """Channels of the first convolution and of the four groups. Defaults are the published ones."""

    stem: int = 64
    groups: tuple[int, int, int, int] = (64, 128, 256, 240)


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of each cell (B, C, T, H, W)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.Module()
        self.norm.norm = nn.LayerNorm(channels, eps=EPS)  # the checkpoints' names

    def forward(self, x: Tensor) -> Tensor:
        norm = self.norm.norm
        assert isinstance(norm, nn.LayerNorm)
        made: Tensor = norm(x.movedim(1, -1)).movedim(-1, 1)
        return made


def _conv(inputs: int, outputs: int, kernel: int, side_stride: int = 1) -> nn.Conv3d:
    return nn.Conv3d(inputs, outputs, kernel, (1, side_stride, side_stride), bias=False)


def _same(conv: nn.Conv3d, x: Tensor) -> Tensor:
    """A convolution whose output has the input's size over its stride: of what is added, the odd one comes first."""
    totals = [kernel - stride for kernel, stride in zip(conv.kernel_size, conv.stride, strict=True)]
    pad = [part for total in reversed(totals) for part in (total - total // 2, total // 2)]
    made: Tensor = conv(F.pad(x, [max(0, part) for part in pad]))
    return made


class Block(nn.Module):
    """Two convolutions around a shortcut, which the first block of a group projects."""

    def __init__(self, inputs: int, width: int, side_stride: int, projected: bool) -> None:
        super().__init__()
        if projected:
            self.proj_conv, self.proj_bnr = _conv(inputs, width, 1, side_stride), ChannelNorm(width)
        self.conv1, self.bnr1 = _conv(inputs, width, 3, side_stride), ChannelNorm(width)
        self.conv2, self.bnr2 = _conv(width, width, 3), ChannelNorm(width)
        self.projected = projected

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.proj_bnr(_same(self.proj_conv, x)) if self.projected else x
        inner = F.relu(self.bnr1(_same(self.conv1, x)))
        summed: Tensor = shortcut + F.relu(self.bnr2(_same(self.conv2, inner)))
        return F.relu(summed)


class Group(nn.Module):
    """Blocks of one width."""

    def __init__(self, inputs: int, width: int, depth: int, side_stride: int) -> None:
        super().__init__()
        self.start_block = Block(inputs, width, side_stride, projected=True)
        self.blocks = nn.ModuleList(Block(width, width, 1, projected=False) for _ in range(depth - 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.start_block(x)
        for block in self.blocks:
            x = block(x)
        return x


class FrameEncoder(nn.Module):
    """Frames (B, 3, T, H, W) in [-0.5, 0.5] to features (B, T, H/4, W/4, C)."""

    def __init__(self, widths: Widths) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(3, widths.stem, 3), ChannelNorm(widths.stem))
        inputs = (widths.stem, *widths.groups)
        for number, (depth, stride) in enumerate(zip(DEPTHS, STRIDES, strict=True), 1):
            self.add_module(f"group{number}", Group(inputs[number - 1], widths.groups[number - 1], depth, stride))

    def forward(self, frames: Tensor) -> Tensor:
        conv, norm = self.stem
        assert isinstance(conv, nn.Conv3d)
        x = F.relu(norm(_same(conv, frames)))
        for number in range(1, len(DEPTHS) + 1):
            x = self.get_submodule(f"group{number}")(x)
        return x.movedim(1, -1)


class PictureAttention(nn.Module):
    """Attention from every input to the given pictures. Values keep the width of the pictures' features."""

    def __init__(self, width: int, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.w_qs = nn.Linear(width, width, bias=False)
        self.w_ks = nn.Linear(features, width, bias=False)
        self.w_vs = nn.Linear(features, features, bias=False)
        self.fc = nn.Linear(features, width)

    def context(self, features_BLC: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, L, D)."""
        return self._split(self.w_ks(features_BLC)), self._split(self.w_vs(features_BLC))

    def _split(self, x: Tensor) -> Tensor:
        split: Tensor = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return split

    def forward(self, x_BSM: Tensor, context: tuple[Tensor, Tensor]) -> Tensor:
        k, v = (part.expand(len(x_BSM), -1, -1, -1) for part in context)
        mixed: Tensor = self.fc(joined(F.scaled_dot_product_attention(self._split(self.w_qs(x_BSM)), k, v)))
        return mixed
