"""GMFlow (Xu et al., 2022) with its refinement: optical flow by matching all positions of two pictures.

Features at an eighth of the size are matched everywhere, those at a quarter only around where that led. Where a place
is hidden in the second picture, similar places of the first say how it moved.
"""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.networks.correlation import places, warped
from diagonal.networks.pictures import IMAGENET, normalised
from diagonal.networks.raft import enlarge

CHANNELS, LAYERS, WIDER = 128, 6, 4
SPLITS = 2, 8  # windows along each side within which features at an eighth and at a quarter attend
REACH = 4  # positions around, at a quarter of the size
ENLARGED = 4  # from the finest features to pixels
MULTIPLE = 32
SIDE = 33  # pixels, at least: windows of a smaller picture are one feature wide, and cannot be shifted
HIDDEN = -1e9  # the similarity of places beyond the edge


class Gmflow(nn.Module):
    """Pictures (N, 3, H, W) of 0 to 255, sides multiples of 32 and 64 at least, to displacements (N, 2, H, W) across
    and down."""

    weight_map = WeightMap(
        prefixes=("module.", ""),
        keys={
            "layers.{}.mlp.{}": ("transformer.layers.{}.cross_attn_ffn.mlp.{}",),
            "layers.{}.norm.{}": ("transformer.layers.{}.cross_attn_ffn.norm2.{}",),
            "layers.{}.cross_attn.{}": ("transformer.layers.{}.cross_attn_ffn.{}",),
            "layers.{}": ("transformer.layers.{}",),
        },
    )

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Encoder()
        self.layers = nn.ModuleList(Exchange() for _ in range(LAYERS))
        self.feature_flow_attn = Propagation()
        self.upsampler = nn.Sequential(
            nn.Conv2d(2 + CHANNELS, 256, 3, 1, 1), nn.ReLU(), nn.Conv2d(256, 9 * ENLARGED**2, 1)
        )

    def forward(self, first_NCHW: Tensor, second_NCHW: Tensor) -> Tensor:
        pictures = normalised(torch.cat([first_NCHW, second_NCHW]) / 255, IMAGENET)
        fine, coarse = self.backbone(pictures)
        first, second = self._attended(coarse, SPLITS[0])
        flow = self.feature_flow_attn.everywhere(first, matched(first, second))
        flow = 2 * F.interpolate(flow, scale_factor=2, mode="bilinear", align_corners=True)
        first, second = fine.chunk(2)
        first, second = self._attended(torch.cat([first, warped(second, flow, "zeros")]), SPLITS[1])
        flow = self.feature_flow_attn.around(first, flow + matched_around(first, second))
        return enlarge(flow, self.upsampler(torch.cat([flow, first], 1)), ENLARGED)

    def _attended(self, both: Tensor, splits: int) -> tuple[Tensor, Tensor]:
        """Features of both pictures, each of which then knows of the other one."""
        height, width = both.shape[-2:]
        at = position(height // splits, width // splits, both.device).repeat(1, splits, splits)
        both = (both + at).permute(0, 2, 3, 1)
        for number, layer in enumerate(self.layers):
            # Every other layer shifts its windows by half of one, so that what they keep apart meets.
            both = layer(both, torch.cat(both.chunk(2)[::-1]), splits, number % 2 == 1)
        first, second = both.permute(0, 3, 1, 2).chunk(2)
        return first, second


def matched(first: Tensor, second: Tensor) -> Tensor:
    """Displacements to the mean place of the second picture, each weighted by how similar it is."""
    similar = first.flatten(2).transpose(1, 2) @ second.flatten(2) / math.sqrt(CHANNELS)
    at = places(first)
    where = similar.softmax(-1) @ at.flatten(2).transpose(1, 2)
    return where.transpose(1, 2).reshape(at.shape) - at


def matched_around(first: Tensor, second: Tensor) -> Tensor:
    """The same, over places at most REACH away."""
    height, width = first.shape[-2:]
    reach = torch.arange(-REACH, REACH + 1, device=first.device, dtype=first.dtype)
    window = torch.stack(torch.meshgrid(reach, reach, indexing="xy"), -1).reshape(-1, 2)
    at = places(first)
    seen = at.permute(0, 2, 3, 1).reshape(len(first), -1, 1, 2) + window
    size = torch.tensor([width, height], device=first.device)
    found = F.grid_sample(second, 2 * seen / (size - 1) - 1, padding_mode="zeros", align_corners=True)
    similar = torch.einsum("nci,ncij->nij", first.flatten(2), found) / math.sqrt(CHANNELS)
    inside = ((seen >= 0) & (seen < size)).all(-1)
    share = similar.masked_fill(~inside, HIDDEN).softmax(-1)
    where = torch.einsum("nij,nijd->ndi", share, seen)
    return where.reshape(at.shape) - at


def position(height: int, width: int, device: torch.device) -> Tensor:
    """Sines and cosines of row and column, from just above 0 to a full turn, (C, height, width)."""
    count = CHANNELS // 4
    rates = 10000.0 ** (-torch.arange(count, device=device) / count)

    def waves(size: int) -> Tensor:
        turn = 2 * math.pi * torch.arange(1, size + 1, device=device) / (size + 1e-6)
        angle = turn[:, None] * rates
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)  # (size, C / 2)

    down, right = waves(height).T[:, :, None], waves(width).T[:, None]
    return torch.cat([down.expand(-1, -1, width), right.expand(-1, height, -1)])


class Encoder(nn.Module):
    """A picture to features at a quarter and at an eighth of its size, by the same last kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        for name, before, after, stride in (("layer1", 64, 64, 1), ("layer2", 64, 96, 2), ("layer3", 96, 128, 1)):
            self.add_module(name, nn.Sequential(Residual(before, after, stride), Residual(after, after, 1)))
        self.conv2 = nn.Conv2d(128, CHANNELS, 1)
        self.trident_conv = nn.Conv2d(CHANNELS, CHANNELS, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(F.instance_norm(self.conv1(x)))
        for name in ("layer1", "layer2", "layer3"):
            x = self.get_submodule(name)(x)
        x = self.conv2(x)
        return self.trident_conv(x), F.conv2d(x, self.trident_conv.weight, stride=2, padding=1)


class Residual(nn.Module):
    """Two convolutions beside the input, which has one of its own where its shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride)) if before != after else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(F.instance_norm(self.conv1(x)))
        y = F.relu(F.instance_norm(self.conv2(y)))
        return F.relu(y + (x if self.downsample is None else F.instance_norm(self.downsample(x))))


class Exchange(nn.Module):
    """Attends to its own picture, then to the other one, then a network of each position."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.cross_attn = Attention(), Attention()
        inside = 2 * CHANNELS
        self.mlp = nn.Sequential(
            nn.Linear(inside, WIDER * inside, bias=False), nn.GELU(), nn.Linear(WIDER * inside, CHANNELS, bias=False)
        )
        self.norm = nn.LayerNorm(CHANNELS)

    def forward(self, x_NHWC: Tensor, other_NHWC: Tensor, splits: int, shifted: bool) -> Tensor:
        x = x_NHWC + self.self_attn(x_NHWC, x_NHWC, splits, shifted)
        told = self.cross_attn(x, other_NHWC, splits, shifted)
        return cast(Tensor, x + self.norm(self.mlp(torch.cat([x, told], -1))))


class Attention(nn.Module):
    """One head, within windows of a picture."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "merge"):
            self.add_module(name, nn.Linear(CHANNELS, CHANNELS, bias=False))
        self.norm1 = nn.LayerNorm(CHANNELS)

    def forward(self, x_NHWC: Tensor, other_NHWC: Tensor, splits: int, shifted: bool) -> Tensor:
        size = x_NHWC.shape[1:3]
        window = size[0] // splits, size[1] // splits
        shift = (window[0] // 2, window[1] // 2) if shifted else (0, 0)
        sources = (("q_proj", x_NHWC), ("k_proj", other_NHWC), ("v_proj", other_NHWC))
        parts = (self.get_submodule(name)(source).roll((-shift[0], -shift[1]), (1, 2)) for name, source in sources)
        q, k, v = (_windows(part, window) for part in parts)
        mask = _apart(size, window, shift, x_NHWC.device) if shifted else None
        out = _whole(F.scaled_dot_product_attention(q, k, v, mask), size, window)
        return cast(Tensor, self.norm1(self.get_submodule("merge")(out.roll(shift, (1, 2)))))


def _windows(x_NHWC: Tensor, window: tuple[int, int]) -> Tensor:
    """(N, windows, positions, C)"""
    batch, height, width, channels = x_NHWC.shape
    split = x_NHWC.reshape(batch, height // window[0], window[0], width // window[1], window[1], channels)
    return split.transpose(2, 3).reshape(batch, -1, window[0] * window[1], channels)


def _whole(x: Tensor, size: torch.Size, window: tuple[int, int]) -> Tensor:
    """What windows held, as a picture (N, H, W, C)."""
    split = x.reshape(len(x), size[0] // window[0], size[1] // window[1], *window, -1)
    return split.transpose(2, 3).reshape(len(x), *size, -1)


def _apart(size: torch.Size, window: tuple[int, int], shift: tuple[int, int], device: torch.device) -> Tensor:
    """Added to similarities within shifted windows: those at the edges hold opposite ends of the picture, which do not
    see each other. (windows, positions, positions)"""

    def ends(length: int, one: int, moved: int) -> Tensor:
        at = torch.arange(length, device=device)
        return (at >= length - one).int() + (at >= length - moved).int()

    kind = 3 * ends(size[0], window[0], shift[0])[:, None] + ends(size[1], window[1], shift[1])
    kinds = _windows(kind[None, :, :, None], window)[0, :, :, 0]
    return -100.0 * (kinds[:, :, None] != kinds[:, None]).float()


class Propagation(nn.Module):
    """Displacements of similar places of the same picture, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(CHANNELS, CHANNELS), nn.Linear(CHANNELS, CHANNELS)

    def everywhere(self, features: Tensor, flow: Tensor) -> Tensor:
        """Over all places. The keys are made of the queries: the weights were trained so."""
        q = self.q_proj(features.flatten(2).transpose(1, 2))
        out = F.scaled_dot_product_attention(q, self.k_proj(q), flow.flatten(2).transpose(1, 2))
        return out.transpose(1, 2).reshape(flow.shape)

    def around(self, features: Tensor, flow: Tensor) -> Tensor:
        """Over the nine places around; beyond the edge features and displacements are 0."""
        size = features.shape[-2:]
        rows = features.flatten(2).transpose(1, 2)
        keys = self.k_proj(rows).transpose(1, 2).unflatten(2, size)
        near = F.unfold(keys, 3, padding=1).unflatten(1, (CHANNELS, 9))
        share = (torch.einsum("nic,ncji->nji", self.q_proj(rows), near) / math.sqrt(CHANNELS)).softmax(1)
        found = torch.einsum("nji,ndji->ndi", share, F.unfold(flow, 3, padding=1).unflatten(1, (2, 9)))
        return found.reshape(flow.shape)
