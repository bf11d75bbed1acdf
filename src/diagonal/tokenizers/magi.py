"""The video autoencoder of MAGI-1: two vision transformers, 8x8 pixels and 4 frames to a latent.

It is not causal, and the first latent is four frames like all others. A clip is cut into tiles that are encoded and
decoded on their own: a few frames long without overlap, and with a quarter of overlap in space, over which neighbours
are blended. As released, encoding blends a tile with neighbours that are blended already, decoding with raw ones.

The trap: a tile of one latent is decoded as a picture, to one frame instead of four. Cut in threes, four latents are 13
frames. So latents should come in whole tiles; chunks of MAGI-1 are two.

Names of the layers are those of the checkpoint. The published sizes were inferred from names and shapes of its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.engine.heads import joined
from diagonal.tokenizers.streaming import RGB, check_latents

SCALE = 0.18215  # latents are multiplied by it, for the denoiser
OVERLAP = 0.25  # of neighbouring tiles in space
EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of the autoencoder, and of the clips whose positions it learned."""

    width: int
    depth: int
    heads: int
    side: int  # pixels of a learned clip along each side, and of a tile
    frames: int  # of a learned clip
    tile_frames: int
    patch: int = 8
    stride: int = 4
    latent: int = 16
    mlp: int = 4  # hidden width, in widths

    def __post_init__(self) -> None:
        cell = self.stride * self.patch**2
        if self.width % self.heads or self.width % cell:
            raise ValueError(f"width={self.width} given; it must divide into {self.heads} heads and {cell} pixels")
        if self.tile_frames % self.stride or self.side % int(self.patch / OVERLAP):
            raise ValueError(
                f"tiles of {self.tile_frames} frames of {self.side} pixels given; they and a quarter of a side must be "
                f"whole latents, of {self.stride} frames and {self.patch} pixels"
            )

    @property
    def first(self) -> int:
        """Frames of the first latent."""
        return self.stride

    @property
    def grid(self) -> tuple[int, int, int]:
        """Learned positions."""
        side = self.side // self.patch
        return self.frames // self.stride, side, side

    def build(self) -> MagiVAE:
        return MagiVAE(self)


class Attention(nn.Module):
    """Attention whose queries, keys and values are each normed over their head, by (x - mean) / (deviation + eps)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.proj = nn.Linear(config.width, config.width)

    def forward(self, x_BSC: Tensor) -> Tensor:
        heads = self.qkv(x_BSC).unflatten(-1, (3, self.heads, -1))
        normed = (heads - heads.mean(-1, keepdim=True)) / (heads.std(-1, correction=0, keepdim=True) + EPS)
        q, k, v = normed.permute(2, 0, 3, 1, 4)
        out: Tensor = self.proj(joined(F.scaled_dot_product_attention(q, k, v)))
        return out


class Mlp(nn.Module):
    """Two layers with a GELU between them."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.width, config.mlp * config.width)
        self.fc2 = nn.Linear(config.mlp * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return out


class Block(nn.Module):
    """Attention without a norm in front, then an MLP with one."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attn = Attention(config)
        self.norm2 = nn.LayerNorm(config.width, EPS)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Trunk(nn.Module):
    """A vision transformer over a grid of tokens, with a class token in front."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.grid = config.grid
        count = self.grid[0] * self.grid[1] * self.grid[2]
        self.cls_token = nn.Parameter(torch.randn(1, 1, config.width) / config.width**0.5)
        self.pos_embed = nn.Parameter(torch.randn(1, 1 + count, config.width) / config.width**0.5)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width, EPS)

    def run(self, x_BTHWC: Tensor) -> Tensor:
        """The same grid of tokens, after the blocks."""
        size = x_BTHWC.shape[1:4]
        tokens = torch.cat([self.cls_token.expand(len(x_BTHWC), -1, -1), x_BTHWC.flatten(1, 3)], dim=1)
        tokens = tokens + self._positions(size)
        for block in cast(Iterable[Block], self.blocks):
            tokens = block(tokens)
        out: Tensor = self.norm(tokens)[:, 1:].unflatten(1, size)
        return out

    def _positions(self, size: tuple[int, ...]) -> Tensor:
        """The learned table, resized where the grid is another."""
        if tuple(size) == self.grid:
            return self.pos_embed
        table = self.pos_embed[:, 1:].unflatten(1, self.grid).permute(0, 4, 1, 2, 3)
        resized = F.interpolate(table.float(), size=tuple(size), mode="trilinear").to(table.dtype)
        return torch.cat([self.pos_embed[:, :1], resized.flatten(2).transpose(1, 2)], dim=1)


class PatchEmbed(nn.Module):
    """Cells of a clip as tokens."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        cell = (config.stride, config.patch, config.patch)
        self.proj = nn.Conv3d(RGB, config.width, cell, cell)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        out: Tensor = self.proj(x_BCTHW)
        return out.permute(0, 2, 3, 4, 1)


class Encoder(Trunk):
    """Clips to the mean and the deviation of latents."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.patch_embed = PatchEmbed(config)
        self.last_layer = nn.Linear(config.width, 2 * config.latent)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        moments: Tensor = self.last_layer(self.run(self.patch_embed(x_BCTHW)))
        return moments.permute(0, 4, 1, 2, 3)


class Decoder(Trunk):
    """Latents to clips."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.cell = (config.stride, config.patch, config.patch)
        cell = config.stride * config.patch**2
        self.proj_in = nn.Linear(config.latent, config.width)
        self.last_layer = nn.Conv3d(config.width // cell, RGB, 3, padding=1)

    def forward(self, z_BCTHW: Tensor) -> Tensor:
        made = self.run(self.proj_in(z_BCTHW.permute(0, 2, 3, 4, 1)))
        cells = made.unflatten(-1, (*self.cell, -1))  # B T H W p q r C
        batch, (rows_T, rows_H, rows_W) = len(cells), cells.shape[1:4]
        p, q, r = self.cell
        clip = cells.permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(batch, -1, rows_T * p, rows_H * q, rows_W * r)
        out: Tensor = self.last_layer(clip)
        return out


class MagiVAE(nn.Module):
    """Clips to latents and back."""

    weight_map = WeightMap(prefixes=("tokenizer.", "model.", ""))

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder, self.decoder = Encoder(config), Decoder(config)

    @property
    def patch(self) -> int:
        return self.config.patch

    @property
    def stride(self) -> int:
        return self.config.stride

    @property
    def first(self) -> int:
        return self.config.first

    @property
    def dtype(self) -> torch.dtype:
        return self.encoder.cls_token.dtype

    def encode(self, video_BTCHW: Tensor) -> Tensor:
        """Latents (B, F, C, rows, cols) of a clip of 4n frames, or of one frame, which is repeated."""
        config, shape = self.config, tuple(video_BTCHW.shape)
        if video_BTCHW.dtype != torch.uint8 or len(shape) != 5 or shape[2] != RGB:
            form = f"(batch, frames, {RGB}, height, width)"
            raise ValueError(f"a video of {video_BTCHW.dtype} and shape {shape} given; it must be uint8, {form}")
        if not shape[1] or (shape[1] > 1 and shape[1] % config.stride):
            raise ValueError(f"{shape[1]} frames given; a clip must have {config.stride}n, or be one picture")
        if shape[3] % config.patch or shape[4] % config.patch:
            raise ValueError(f"frames of {shape[3]}x{shape[4]} given; both sides must be multiples of {config.patch}")
        with torch.inference_mode():
            pixels = video_BTCHW.transpose(1, 2).to(self.dtype) / 127.5 - 1
            latents = self.means(pixels).transpose(1, 2) * SCALE
        return latents.clone()

    def decode(self, latents_BFCHW: Tensor, state: MutableMapping[str, Tensor]) -> Tensor:
        """Frames of whole tiles, which remember nothing. A last tile of one latent gives one frame."""
        check_latents(latents_BFCHW, self.config.latent)
        with torch.inference_mode():
            pixels = self.pixels(latents_BFCHW.transpose(1, 2).to(self.dtype) / SCALE).transpose(1, 2)
            bytes_BTCHW = (pixels.float() * 127.5 + 127.5).clamp(0, 255).to(torch.uint8)
        return bytes_BTCHW.clone()

    def means(self, pixels_BCTHW: Tensor) -> Tensor:
        """Means of the latents of pixels in [-1, 1], (B, C, F, rows, cols), not scaled."""
        if pixels_BCTHW.shape[2] == 1:
            pixels_BCTHW = pixels_BCTHW.expand(-1, -1, self.config.stride, -1, -1)
        tile = _Tiles(self.config.side, self.config.side // self.config.patch, follow=True)
        parts = pixels_BCTHW.split(self.config.tile_frames, dim=2)
        return torch.cat([tile(self._encoded, part) for part in parts], dim=2)

    def pixels(self, latents_BCFHW: Tensor) -> Tensor:
        """Pixels in about [-1, 1], (B, C, T, height, width), of latents that are not scaled."""
        tile = _Tiles(self.config.side // self.config.patch, self.config.side, follow=False)
        parts = latents_BCFHW.split(self.config.tile_frames // self.config.stride, dim=2)
        return torch.cat([tile(self._decoded, part) for part in parts], dim=2)

    def _encoded(self, part_BCTHW: Tensor) -> Tensor:
        moments: Tensor = self.encoder(part_BCTHW)
        return moments[:, : self.config.latent]

    def _decoded(self, part_BCFHW: Tensor) -> Tensor:
        clip: Tensor = self.decoder(part_BCFHW)
        return clip[:, :, :1] if part_BCFHW.shape[2] == 1 else clip


@dataclass(frozen=True, slots=True)
class _Tiles:
    """How a clip is cut in space: tiles of `side` that become `made`. `follow`: neighbours are blended already when
    they are blended with."""

    side: int
    made: int
    follow: bool

    def __call__(self, run: Callable[[Tensor], Tensor], x_BCTHW: Tensor) -> Tensor:
        """What `run` makes of the tiles, put together."""
        if max(x_BCTHW.shape[-2:]) <= self.side:
            return run(x_BCTHW)
        step, blend = int(self.side * (1 - OVERLAP)), int(self.made * OVERLAP)
        rows, cols = (range(0, size, step) for size in x_BCTHW.shape[-2:])
        raw = [[run(x_BCTHW[..., top : top + self.side, left : left + self.side]) for left in cols] for top in rows]
        made = [list(row) for row in raw] if not self.follow else raw
        for i, row in enumerate(raw):
            for j, one in enumerate(row):
                whole = _blended(raw[i - 1][j], one, -2, blend) if i else one
                made[i][j] = _blended(raw[i][j - 1], whole, -1, blend) if j else whole
        kept = self.made - blend
        strips = [torch.cat([one[..., :kept, :kept] for one in row], dim=-1) for row in made]
        return torch.cat(strips, dim=-2)


def _blended(before: Tensor, after: Tensor, dim: int, count: int) -> Tensor:
    """`after`, whose beginning goes over linearly from the end of `before`."""
    count = min(count, before.shape[dim], after.shape[dim])
    shape = [1] * after.ndim
    shape[dim] = count
    share = (torch.arange(count, device=after.device) / count).to(after.dtype).reshape(shape)
    old = before.narrow(dim, before.shape[dim] - count, count)
    new, rest = after.split((count, after.shape[dim] - count), dim=dim)
    return torch.cat([old * (1 - share) + new * share, rest], dim=dim)


VARIANTS = {
    "vae": Config(width=1024, depth=24, heads=16, side=256, frames=16, tile_frames=12),
    "tiny": Config(width=512, depth=1, heads=4, side=32, frames=8, tile_frames=12, mlp=1),
}
