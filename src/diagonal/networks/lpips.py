"""LPIPS, the learned perceptual distance (Zhang et al., 2018), version 0.1 on AlexNet, for weights the user has.

The file holds `conv{0-4}.weight`, `conv{0-4}.bias` and `lin{0-4}`; package lpips with torchvision's AlexNet gives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

# stride, padding, and whether a 3x3 stride-2 maximum comes before
STAGES = ((4, 2, False), (1, 2, True), (1, 1, True), (1, 1, False), (1, 1, False))
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)


def load(path: str | Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """The weights, in float32."""
    try:
        weights = {key: value.float().to(device) for key, value in load_file(path).items()}
    except SafetensorError as error:
        raise ValueError(f"{path} holds no LPIPS weights: {error}") from error
    missing = {name for i in range(5) for name in (f"conv{i}.weight", f"conv{i}.bias", f"lin{i}")} - weights.keys()
    if missing:
        raise ValueError(f"{path} holds no LPIPS weights: {sorted(missing)} are missing")
    return weights


def distance(x_NCHW: Tensor, y_NCHW: Tensor, weights: Mapping[str, Tensor], spatial: bool = False) -> Tensor:
    """Distance of each pair of pictures in [-1, 1], (N,). `spatial`: stages are enlarged to the picture, and
    then averaged."""
    total = torch.zeros(len(x_NCHW), device=x_NCHW.device)
    for stage, (a, b) in enumerate(zip(_features(x_NCHW, weights), _features(y_NCHW, weights), strict=True)):
        heads = weights[f"lin{stage}"].reshape(1, -1, 1, 1)
        apart = ((_unit(a) - _unit(b)).square() * heads).sum(1, keepdim=True)
        if spatial:
            apart = F.interpolate(apart, x_NCHW.shape[-2:], mode="bilinear", align_corners=False)
        total = total + apart.mean((1, 2, 3))
    return total


def _features(x: Tensor, weights: Mapping[str, Tensor]) -> list[Tensor]:
    # Filled on the device: numbers sent there would wait for all that it has to do.
    shift, scale = (torch.cat([torch.full((1, 1, 1), v, device=x.device) for v in part]) for part in (SHIFT, SCALE))
    x = (x - shift) / scale
    features = []
    for stage, (stride, padding, pool) in enumerate(STAGES):
        x = F.max_pool2d(x, 3, 2) if pool else x
        x = F.relu(F.conv2d(x, weights[f"conv{stage}.weight"], weights[f"conv{stage}.bias"], stride, padding))
        features.append(x)
    return features


def _unit(x: Tensor) -> Tensor:
    """Unit length over channels; the small number inside the root keeps the gradient finite at zero."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(1, keepdim=True) + 1e-10)
