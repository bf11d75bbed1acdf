"""EfficientNet-Lite0 (Tan and Le, 2019) trained on ImageNet: a picture to 1280 features. It stands in for networks that
nobody can carry; whatever is measured through it has a name of its own."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.models.batch_norm import FrozenBatchNorm
from diagonal.networks.same_padding import padded

SIDE = 224
FEATURES = 1280
STEM = 32
EPSILON = 1e-3
# Of each stage: blocks, kernel, stride of the first one, how many times wider inside, channels.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


class EfficientNet(nn.Module):
    """Pictures (N, 3, 224, 224) of about -1 to 1 to features (N, 1280), the mean over positions."""

    weight_map = WeightMap(
        prefixes=("",),
        keys={
            "blocks.{}.expand.weight": ("_blocks.{}._expand_conv.weight",),
            "blocks.{}.depthwise.weight": ("_blocks.{}._depthwise_conv.weight",),
            "blocks.{}.project.weight": ("_blocks.{}._project_conv.weight",),
            "blocks.{}.norm{}.{}": ("_blocks.{}._bn{}.{}",),
            "stem.weight": ("_conv_stem.weight",),
            "head.weight": ("_conv_head.weight",),
            "norm0.{}": ("_bn0.{}",),
            "norm1.{}": ("_bn1.{}",),
        },
        ignore=("{}.num_batches_tracked", "_fc.{}"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm0 = Conv(3, STEM, 3, 2), FrozenBatchNorm(STEM, EPSILON)
        blocks: list[nn.Module] = []
        before = STEM
        for count, kernel, stride, wider, channels in STAGES:
            for number in range(count):
                blocks.append(Block((before, wider * before, channels), kernel, 1 if number else stride))
                before = channels
        self.blocks = nn.ModuleList(blocks)
        self.head, self.norm1 = Conv(before, FEATURES, 1), FrozenBatchNorm(FEATURES, EPSILON)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        x = F.relu6(self.norm0(self.stem(x_NCHW)))
        for block in self.blocks:
            x = block(x)
        return F.relu6(self.norm1(self.head(x))).mean((2, 3))


class Conv(nn.Conv2d):
    """A convolution without bias, padded as TensorFlow does."""

    def __init__(self, before: int, after: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(before, after, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(padded(x, self.kernel_size, self.stride), self.weight, None, self.stride, groups=self.groups)


class Block(nn.Module):
    """Wider, each channel by itself, and narrow again; beside the input where nothing changes its size."""

    def __init__(self, channels: tuple[int, int, int], kernel: int, stride: int) -> None:
        super().__init__()
        before, inside, after = channels
        self.expand: nn.Module | None = None
        if inside > before:
            self.expand, self.norm0 = Conv(before, inside, 1), FrozenBatchNorm(inside, EPSILON)
        self.depthwise, self.norm1 = Conv(inside, inside, kernel, stride, inside), FrozenBatchNorm(inside, EPSILON)
        self.project, self.norm2 = Conv(inside, after, 1), FrozenBatchNorm(after, EPSILON)
        self.beside = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else F.relu6(self.norm0(self.expand(x)))
        y = self.norm2(self.project(F.relu6(self.norm1(self.depthwise(y)))))
        return cast(Tensor, x + y if self.beside else y)


def shown(frames_TCHW: Tensor) -> Tensor:
    """Frames as the network was trained to see them: (pixel - 127) / 128, stretched to 224 x 224."""
    return (_stretched(frames_TCHW) - 127) / 128


def differences(frames_TCHW: Tensor) -> Tensor:
    """Half the change from each frame to the next, shown likewise: grey where nothing moves."""
    return _stretched(frames_TCHW).diff(dim=0) / 256


def _stretched(frames_TCHW: Tensor) -> Tensor:
    return F.interpolate(frames_TCHW.float(), (SIDE, SIDE), mode="bilinear", align_corners=False, antialias=True)


@torch.inference_mode()
def features(network: EfficientNet, pictures_NCHW: Tensor, batch: int = 16) -> Tensor:
    """Features (N, 1280), a few pictures at a time."""
    return torch.cat([network(part) for part in pictures_NCHW.split(batch)])
