"""RAFT (Teed and Deng, 2020), the large network: optical flow between two pictures by 20 refinements."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.models.batch_norm import FrozenBatchNorm
from diagonal.networks.correlation import correlation_levels, look_up, places

HIDDEN = CONTEXT = 128
LEVELS, RADIUS = 4, 4
ITERATIONS = 20
SIDE = 121  # pixels, at least: of less than 128 padded ones the last level is a single one, and its places are 0 / 0
MULTIPLE = 8


class Raft(nn.Module):
    """Pictures (N, 3, H, W) of 0 to 255, sides multiples of 8, to displacements (N, 2, H, W) across and down."""

    weight_map = WeightMap(
        prefixes=("module.", ""),
        ignore=("{}.num_batches_tracked", "{}.downsample.1.{}"),  # norm3, written twice
    )

    def __init__(self) -> None:
        super().__init__()
        self.fnet = Encoder(256, batch_norm=False)
        self.cnet = Encoder(HIDDEN + CONTEXT, batch_norm=True)
        self.update_block = Update()

    def forward(self, first_NCHW: Tensor, second_NCHW: Tensor, iterations: int = ITERATIONS) -> Tensor:
        flow, mask = self.refine(first_NCHW, second_NCHW, iterations)
        return enlarge(flow, mask)

    def refine(self, first_NCHW: Tensor, second_NCHW: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
        """Flow at an eighth of the size, and the weights with which it is enlarged."""
        first, second = (2 * picture / 255 - 1 for picture in (first_NCHW, second_NCHW))
        levels = correlation_levels(*self.fnet(torch.cat([first, second])).chunk(2))
        hidden, context = self.cnet(first).split((HIDDEN, CONTEXT), 1)
        hidden, context = torch.tanh(hidden), F.relu(context)
        start = places(hidden)
        now, mask = start, hidden
        for _ in range(iterations):
            seen = look_up(levels, now, RADIUS)
            hidden, mask, delta = self.update_block(hidden, context, seen, now - start)
            now = now + delta
        return now - start, mask


def enlarge(flow_N2HW: Tensor, mask: Tensor, times: int = MULTIPLE) -> Tensor:
    """Each fine displacement as a convex combination of the nine coarse ones around it."""
    batch, _, height, width = flow_N2HW.shape
    weights = mask.reshape(batch, 1, 9, times, times, height, width).softmax(2)
    around = F.unfold(times * flow_N2HW, 3, padding=1).reshape(batch, 2, 9, 1, 1, height, width)
    fine = (weights * around).sum(2).permute(0, 1, 4, 2, 5, 3)
    return fine.reshape(batch, 2, times * height, times * width)


def _norm(channels: int, batch_norm: bool) -> nn.Module:
    return FrozenBatchNorm(channels) if batch_norm else nn.InstanceNorm2d(channels)


class Encoder(nn.Module):
    """A picture to features at an eighth of its size."""

    def __init__(self, features: int, batch_norm: bool) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 64, 7, 2, 3), _norm(64, batch_norm)
        sizes = (("layer1", 64, 64, 1), ("layer2", 64, 96, 2), ("layer3", 96, 128, 2))
        for name, before, after, stride in sizes:
            blocks = Residual(before, after, stride, batch_norm), Residual(after, after, 1, batch_norm)
            self.add_module(name, nn.Sequential(*blocks))
        self.conv2 = nn.Conv2d(128, features, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        for name in ("layer1", "layer2", "layer3"):
            x = self.get_submodule(name)(x)
        return cast(Tensor, self.conv2(x))


class Residual(nn.Module):
    """Two convolutions beside the input, which is halved by one of its own where the size changes."""

    def __init__(self, before: int, after: int, stride: int, batch_norm: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(before, after, 3, stride, 1), nn.Conv2d(after, after, 3, 1, 1)
        self.norm1, self.norm2 = _norm(after, batch_norm), _norm(after, batch_norm)
        self.downsample: nn.Module | None = None
        if stride > 1:
            self.norm3 = _norm(after, batch_norm)
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(y + (x if self.downsample is None else self.norm3(self.downsample(x))))


class Update(nn.Module):
    """One refinement: motion seen, two gated steps across and down, the change of the flow."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Motion()
        self.gru = Gru()
        self.flow_head = FlowHead()
        self.mask = nn.Sequential(nn.Conv2d(HIDDEN, 256, 3, 1, 1), nn.ReLU(), nn.Conv2d(256, 9 * MULTIPLE**2, 1))

    def forward(self, hidden: Tensor, context: Tensor, seen: Tensor, flow: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.gru(hidden, torch.cat([context, self.encoder(flow, seen)], 1))
        return hidden, 0.25 * self.mask(hidden), self.flow_head(hidden)


class Motion(nn.Module):
    """Similarities and the flow so far as 128 features, the last two of which are the flow."""

    def __init__(self) -> None:
        super().__init__()
        self.convc1, self.convc2 = nn.Conv2d(LEVELS * (2 * RADIUS + 1) ** 2, 256, 1), nn.Conv2d(256, 192, 3, 1, 1)
        self.convf1, self.convf2 = nn.Conv2d(2, 128, 7, 1, 3), nn.Conv2d(128, 64, 3, 1, 1)
        self.conv = nn.Conv2d(192 + 64, 126, 3, 1, 1)

    def forward(self, flow: Tensor, seen: Tensor) -> Tensor:
        both = [F.relu(self.convc2(F.relu(self.convc1(seen)))), F.relu(self.convf2(F.relu(self.convf1(flow))))]
        return torch.cat([F.relu(self.conv(torch.cat(both, 1))), flow], 1)


class Gru(nn.Module):
    """A gated recurrent unit of convolutions, along rows and then along columns."""

    def __init__(self) -> None:
        super().__init__()
        for number, kernel in ((1, (1, 5)), (2, (5, 1))):
            for gate in "zrq":
                pads = kernel[0] // 2, kernel[1] // 2
                self.add_module(f"conv{gate}{number}", nn.Conv2d(3 * HIDDEN, HIDDEN, kernel, padding=pads))

    def forward(self, hidden: Tensor, x: Tensor) -> Tensor:
        for number in (1, 2):
            z, r, q = (self.get_submodule(f"conv{gate}{number}") for gate in "zrq")
            both = torch.cat([hidden, x], 1)
            keep, reset = torch.sigmoid(z(both)), torch.sigmoid(r(both))
            hidden = (1 - keep) * hidden + keep * torch.tanh(q(torch.cat([reset * hidden, x], 1)))
        return hidden


class FlowHead(nn.Module):
    """Hidden state to a change of the flow."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(HIDDEN, 256, 3, 1, 1), nn.Conv2d(256, 2, 3, 1, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return cast(Tensor, self.conv2(F.relu(self.conv1(hidden))))
