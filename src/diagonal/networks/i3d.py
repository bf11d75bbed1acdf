"""I3D (Carreira and Zisserman, 2017) trained on Kinetics-400, as FVD uses it: videos to 400 numbers before softmax.

Two files hold it. `i3d_pretrained_400.pt` is a state dict; `i3d_torchscript.pt` is an archive whose code is never run:
its tensors are read and fill this network. The first was converted with a batch-norm epsilon of 1e-5, the second keeps
the original's 1e-3; which one it is, is seen from the names of the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.models.batch_norm import FrozenBatchNorm

FEATURES = 400
SIDE = 224  # pixels of the square that it sees
FRAMES = 10  # at least: fewer leave nothing for the last pooling
# Inputs, then channels of the four branches: 1x1; 1x1 and 3x3; 1x1 and 3x3; pooled and 1x1.
MIXED = {
    "Mixed_3b": (192, 64, 96, 128, 16, 32, 32),
    "Mixed_3c": (256, 128, 128, 192, 32, 96, 64),
    "Mixed_4b": (480, 192, 96, 208, 16, 48, 64),
    "Mixed_4c": (512, 160, 112, 224, 24, 64, 64),
    "Mixed_4d": (512, 128, 128, 256, 24, 64, 64),
    "Mixed_4e": (512, 112, 144, 288, 32, 64, 64),
    "Mixed_4f": (528, 256, 160, 320, 32, 128, 128),
    "Mixed_5b": (832, 256, 160, 320, 32, 128, 128),
    "Mixed_5c": (832, 384, 192, 384, 48, 128, 128),
}
BRANCHES = {"b0": "0", "b1a": "1.0", "b1b": "1.1", "b2a": "2.0", "b2b": "2.1", "b3b": "3.1"}  # of the archive
STEMS = ("Conv3d_1a_7x7", "Conv3d_2b_1x1", "Conv3d_2c_3x3")


def _script_names() -> dict[str, tuple[str, ...]]:
    """Our names of tensors, and those of the archive."""
    units = {name: name.lower() for name in STEMS}
    units |= {
        f"{mixed}.{ours}": f"{mixed.lower()}.branch_{theirs}" for mixed in MIXED for ours, theirs in BRANCHES.items()
    }
    names: dict[str, tuple[str, ...]] = {"logits.conv3d.{}": ("conv3d_0c_1x1.conv3d.{}",)}
    for ours, theirs in units.items():
        names[f"{ours}.conv3d.{{}}"] = (f"{theirs}.conv3d.{{}}",)
        names[f"{ours}.bn.{{}}"] = (f"{theirs}.batch3d.{{}}",)
    return names


class I3D(nn.Module):
    """Videos (N, 3, T, H, W) in [-1, 1] to logits (N, 400)."""

    weight_map = WeightMap(prefixes=("",), keys=_script_names(), ignore=("{}.num_batches_tracked",))

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.Conv3d_1a_7x7 = Unit(3, 64, 7, 2, epsilon)
        self.Conv3d_2b_1x1 = Unit(64, 64, 1, 1, epsilon)
        self.Conv3d_2c_3x3 = Unit(64, 192, 3, 1, epsilon)
        for name, sizes in MIXED.items():
            self.add_module(name, Mixed(sizes, epsilon))
        self.logits = nn.ModuleDict({"conv3d": nn.Conv3d(1024, FEATURES, 1)})

    def forward(self, x_NCTHW: Tensor) -> Tensor:
        x = _max_pool(self.Conv3d_1a_7x7(x_NCTHW), (1, 3, 3), (1, 2, 2))
        x = _max_pool(self.Conv3d_2c_3x3(self.Conv3d_2b_1x1(x)), (1, 3, 3), (1, 2, 2))
        for name in MIXED:
            if name == "Mixed_4b":
                x = _max_pool(x, (3, 3, 3), (2, 2, 2))
            if name == "Mixed_5b":
                x = _max_pool(x, (2, 2, 2), (2, 2, 2))
            x = self.get_submodule(name)(x)
        pooled_NCT = self.logits["conv3d"](F.avg_pool3d(x, (2, 7, 7), 1))[..., 0, 0]
        return cast(Tensor, pooled_NCT.mean(2))


class Mixed(nn.Module):
    """Four branches side by side."""

    def __init__(self, sizes: tuple[int, ...], epsilon: float) -> None:
        super().__init__()
        before, one, two_a, two_b, three_a, three_b, four = sizes
        self.b0 = Unit(before, one, 1, 1, epsilon)
        self.b1a, self.b1b = Unit(before, two_a, 1, 1, epsilon), Unit(two_a, two_b, 3, 1, epsilon)
        self.b2a, self.b2b = Unit(before, three_a, 1, 1, epsilon), Unit(three_a, three_b, 3, 1, epsilon)
        self.b3b = Unit(before, four, 1, 1, epsilon)

    def forward(self, x: Tensor) -> Tensor:
        pooled = _max_pool(x, (3, 3, 3), (1, 1, 1))
        return torch.cat([self.b0(x), self.b1b(self.b1a(x)), self.b2b(self.b2a(x)), self.b3b(pooled)], 1)


class Unit(nn.Module):
    """Convolution, batch norm with the statistics of training, ReLU."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, epsilon: float) -> None:
        super().__init__()
        self.conv3d = nn.Conv3d(before, after, kernel, stride, bias=False)
        self.bn = FrozenBatchNorm(after, epsilon)

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.conv3d.kernel_size, self.conv3d.stride
        return F.relu(self.bn(self.conv3d(_padded(x, kernel, stride))))


def epsilon_of(state: Mapping[str, Tensor]) -> float:
    """That of the file a state is from: the archive keeps TensorFlow's."""
    return 1e-3 if any(".batch3d." in key for key in state) else 1e-5


def _padded(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """TensorFlow's SAME padding: it depends on the size, and the odd one goes last."""
    pads = list[int]()
    for size, width, step in zip(reversed(x.shape[2:]), reversed(kernel), reversed(stride), strict=True):
        total = max(width - (step if size % step == 0 else size % step), 0)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads)


def _max_pool(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Zeros are added at the edges: all inputs come behind a ReLU."""
    return F.max_pool3d(_padded(x, kernel, stride), kernel, stride)
