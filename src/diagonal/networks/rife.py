"""RIFE v4 (Huang et al., 2022): the frame in the middle of two, by flows that four blocks refine from coarse to fine.

Of the published file only these blocks are used, as its authors use it: the networks that would refine colours are off.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.networks.correlation import warped

WIDTHS = (192, 128, 96, 64)
SCALES = (8, 4, 2, 1)  # by which each block sees pictures smaller
FAR = 32  # pixels: where the second block still moves both flows farther, all is begun again at half the size
MULTIPLE = 64  # a block halves twice, which the doubled first scale must allow


class Rife(nn.Module):
    """Pictures (N, 3, H, W) of 0 to 1, sides multiples of 64, to the one in the middle of their time, 0 to 1."""

    weight_map = WeightMap(prefixes=("module.", ""), ignore=("contextnet.{}", "unet.{}", "block_tea.{}"))

    def __init__(self) -> None:
        super().__init__()
        for number, width in enumerate(WIDTHS):
            # Both pictures and the time; from the second block on both moved pictures, the time, mask and flows.
            self.add_module(f"block{number}", Block(12 if number else 7, width))

    def forward(self, first_NCHW: Tensor, second_NCHW: Tensor) -> Tensor:
        pair, scales = (first_NCHW, second_NCHW), list(SCALES)
        flow, mask = self._begin(pair, scales[0])
        for number in range(1, len(WIDTHS)):
            more_flow, more_mask = self._refine(number, pair, flow, mask, scales[number])
            if number == 1 and all(one.abs().max() > FAR for one in more_flow.chunk(2, 1)):
                scales = [2 * scale for scale in SCALES]
                flow, mask = self._begin(pair, scales[0])
                more_flow, more_mask = self._refine(number, pair, flow, mask, scales[number])
            flow, mask = flow + more_flow, mask + more_mask
        first, second = _moved(pair, flow)
        share = torch.sigmoid(mask)
        return first * share + second * (1 - share)

    def _begin(self, pair: tuple[Tensor, Tensor], scale: float) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self.get_submodule("block0")(torch.cat([*pair, _time(pair[0])], 1), None, scale)
        return found

    def _refine(
        self, number: int, pair: tuple[Tensor, Tensor], flow: Tensor, mask: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        """What a block changes of the flows and the mask."""
        seen = torch.cat([*_moved(pair, flow), _time(mask), mask], 1)
        found: tuple[Tensor, Tensor] = self.get_submodule(f"block{number}")(seen, flow, scale)
        return found


def _time(x_NCHW: Tensor) -> Tensor:
    """The middle, at every position."""
    return torch.full_like(x_NCHW[:, :1], 0.5)


def _moved(pair: tuple[Tensor, Tensor], flow_N4HW: Tensor) -> tuple[Tensor, Tensor]:
    """Both pictures as their flows bring them to the middle."""
    to_first, to_second = flow_N4HW.chunk(2, 1)
    return warped(pair[0], to_first), warped(pair[1], to_second)


def _resized(x: Tensor, factor: float) -> Tensor:
    return F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=False)


def _conv(before: int, after: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1), nn.PReLU(after))


class Block(nn.Module):
    """Flows to both pictures and what of the first is taken, from what it sees at a smaller size."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.conv0 = nn.Sequential(_conv(before, width // 2, 2), _conv(width // 2, width, 2))
        self.convblock = nn.Sequential(*(_conv(width, width) for _ in range(8)))
        self.lastconv = nn.ConvTranspose2d(width, 5, 4, 2, 1)

    def forward(self, x: Tensor, flow: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
        x = _resized(x, 1 / scale)
        if flow is not None:
            x = torch.cat([x, _resized(flow, 1 / scale) / scale], 1)
        x = self.conv0(x)
        out = _resized(self.lastconv(self.convblock(x) + x), 2 * scale)
        return out[:, :4] * 2 * scale, out[:, 4:]
