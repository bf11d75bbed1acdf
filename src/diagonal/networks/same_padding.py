"""TensorFlow's SAME padding: zeros at the edges so that every position is seen, as many as the size needs."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def padded(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """The last dimensions of x, one for each number of the kernel, padded; split evenly, the odd one last."""
    pads = list[int]()
    for size, width, step in zip(reversed(x.shape[-len(kernel) :]), reversed(kernel), reversed(stride), strict=True):
        total = max((-(-size // step) - 1) * step + width - size, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads)
