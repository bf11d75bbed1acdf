"""Statistics of natural pictures (Mittal et al., 2012): brightness freed of its local mean and contrast is nearly
Gaussian in photographs, and products of neighbours have known shapes. Blur, noise and blocks change them.

BRISQUE and NIQE both describe these distributions by asymmetric generalised Gaussians, and judge the numbers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

RADIUS, DEVIATION = 3, 7 / 6  # of the neighbourhood, in pixels
# To the right, down, and along both diagonals.
NEIGHBOURS = ((0, 1), (1, 0), (1, 1), (-1, 1))
LUMA = (4899, 9617, 1868)  # of 2^14: red, green and blue
EQUAL = 1e-9
SHAPES = torch.arange(0.2, 10.001, 0.001, dtype=torch.float64)  # that are tried


def _gamma(x: Tensor) -> Tensor:
    return torch.lgamma(x).exp()


# Of each shape a: Gamma(2/a)^2 / (Gamma(1/a) Gamma(3/a)), which is the square of the mean length over the mean square.
RATIOS = _gamma(2 / SHAPES) ** 2 / (_gamma(1 / SHAPES) * _gamma(3 / SHAPES))


def grey(frames_NCHW: Tensor) -> Tensor:
    """Brightness (N, H, W) of bytes, as bytes, 0 to 255."""
    weights = torch.tensor(LUMA, device=frames_NCHW.device)[:, None, None]
    return ((frames_NCHW * weights).sum(1) + 2**13 >> 14).double()


def normalised(grey_NHW: Tensor, floor: float) -> Tensor:
    """(x - mean) / (deviation + floor), both of a pixel's neighbourhood; beyond the edge its last pixel goes on."""
    mean = _blurred(grey_NHW)
    deviation = (_blurred(grey_NHW.square()) - mean.square()).abs().sqrt()
    apart = grey_NHW - mean
    # Where all is equal it is 0, on neither side; rounding must not say more.
    return torch.where(apart.abs() > EQUAL, apart, 0) / (deviation + floor)


def _blurred(x_NHW: Tensor) -> Tensor:
    steps = torch.arange(-RADIUS, RADIUS + 1, dtype=x_NHW.dtype, device=x_NHW.device)
    weights = torch.exp(-(steps**2) / (2 * DEVIATION**2))
    weights = weights / weights.sum()
    wide = F.pad(x_NHW[:, None], (RADIUS,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(wide, weights[None, None, :, None]), weights[None, None, None])[:, 0]


def asymmetric(x_NM: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The asymmetric generalised Gaussian nearest to each row of numbers: its shape, and the root mean squares to the
    left and to the right of 0; nan where there is nothing on one side."""
    squares = x_NM.square()
    left, right = ((squares * side).sum(1).div(side.sum(1)).sqrt() for side in (x_NM < 0, x_NM > 0))
    skew = left / right
    ratio = x_NM.abs().mean(1) ** 2 / squares.mean(1)
    ratio = ratio * (skew**3 + 1) * (skew + 1) / (skew**2 + 1) ** 2
    shapes = SHAPES.to(x_NM.device)
    # The ratio grows with the shape, so the nearest one is one of the two neighbours.
    after = torch.searchsorted(RATIOS.to(x_NM.device), ratio).clamp(1, len(shapes) - 1)
    near = torch.stack([after - 1, after], 1)
    best = (RATIOS.to(x_NM.device)[near] - ratio[:, None]).abs().argmin(1, keepdim=True)
    shape = shapes[near.gather(1, best)[:, 0]]
    return torch.where(ratio.isnan(), ratio, shape), left, right


def scales(shape_N: Tensor, left_N: Tensor, right_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The widths of the two sides, and the mean: (right - left) Gamma(2/a) / Gamma(1/a) of the widths."""
    width = (_gamma(1 / shape_N) / _gamma(3 / shape_N)).sqrt()
    left, right = width * left_N, width * right_N
    return left, right, (right - left) * _gamma(2 / shape_N) / _gamma(1 / shape_N)
