"""Cosmos' discrete video tokenizer DV8x16x16: the first frame alone, then eight frames per token frame.

A causal network: a Haar transform, factorised convolutions, attention in the middle, finite scalar quantisation. No
output depends on a later frame, so decoding streams. What a layer must know of the past is a few of its own earlier
input frames; `Past` keeps them in the caller's dict, under the layer's name. Every layer takes frames and the past.
Names and order of the layers are those of the published checkpoint (nvidia/Cosmos-Tokenize1-DV8x16x16-720p).
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from math import atanh, prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.engine.protocols import WeightMap
from diagonal.tokenizers.radix import digits, number
from diagonal.tokenizers.streaming import Past, Steps, check_clip, numbered

HAAR = 2  # levels of the Haar transform: each halves time and both sides of a frame
PIXEL = 3 * 8**HAAR  # channels after it


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes. Each stage but the coarsest halves the sides of a frame, and the finest halves time too."""

    levels: tuple[int, ...]  # of the quantiser, one number per channel
    width: int
    multiples: tuple[int, ...] = (2, 4, 4)  # channels of the stages over `width`, from the finest on
    blocks: int = 2
    latent: int = 16
    # Token frames that attention over time looks back on, its own included. Published clips have five, so this changes
    # nothing for them; it bounds memory for longer videos.
    window: int = 5

    @property
    def channels(self) -> tuple[int, ...]:
        return tuple(self.width * multiple for multiple in self.multiples)

    @property
    def patch(self) -> int:
        return int(2 ** (HAAR + len(self.multiples) - 1))

    @property
    def stride(self) -> int:
        return int(2 ** (HAAR + 1))

    @property
    def codebook(self) -> int:
        return prod(self.levels)

    def build(self) -> CosmosTokenizer:
        return CosmosTokenizer(self)


def repeat_first(x_BCTHW: Tensor, count: int) -> Tensor:
    """`count` more copies of the first frame in front."""
    return torch.cat([x_BCTHW[:, :, :1].expand(-1, -1, count, -1, -1), x_BCTHW], dim=2)


class Conv(nn.Module):
    """A convolution over a frame, `kernel` = (1, s), or over time, (t, 1); before a video stand copies of its start."""

    def __init__(self, inputs: int, outputs: int, kernel: tuple[int, int], stride: int = 1, padding: int = 0) -> None:
        super().__init__()
        time, side = kernel
        strides = (stride, 1, 1) if time > 1 else (1, stride, stride)
        self.earlier = time - strides[0] if time > 1 else 0  # frames needed from before the first new one
        self.conv3d = nn.Conv3d(inputs, outputs, (time, side, side), strides, (0, padding, padding))

    def forward(self, x_BCTHW: Tensor, past: Past) -> Tensor:
        if self.earlier:
            x_BCTHW = repeat_first(x_BCTHW, self.earlier) if past.start else x_BCTHW
            x_BCTHW = past.join(x_BCTHW, self.earlier, dim=2)
        out: Tensor = self.conv3d(x_BCTHW)
        return out


def pair(inputs: int, outputs: int) -> Steps:
    """A 3x3x3 convolution in two factors: 3x3 over a frame, then 3 over time."""
    return numbered(Conv(inputs, outputs, (1, 3), padding=1), Conv(outputs, outputs, (3, 1)))


class FrameNorm(nn.Module):
    """Group norm with one group, each frame by itself."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, channels, eps=1e-6)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        x_BTCHW = x_BCTHW.transpose(1, 2)
        normed: Tensor = self.norm(x_BTCHW.flatten(0, 1)).unflatten(0, x_BTCHW.shape[:2])
        return normed.transpose(1, 2)


class Residual(nn.Module):
    """Two normalised convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = FrameNorm(inputs), pair(inputs, outputs)
        self.norm2, self.conv2 = FrameNorm(outputs), pair(outputs, outputs)
        self.nin_shortcut = Conv(inputs, outputs, (1, 1)) if inputs != outputs else None

    def forward(self, x_BCTHW: Tensor, past: Past) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x_BCTHW)), past / "conv1")
        h = self.conv2(F.silu(self.norm2(h)), past / "conv2")
        out: Tensor = h + (x_BCTHW if self.nin_shortcut is None else self.nin_shortcut(x_BCTHW, past))
        return out


class Attention(nn.Module):
    """One head around a shortcut: over the places of a frame, or over the newest `window` frames of a place."""

    def __init__(self, channels: int, window: int | None = None) -> None:
        super().__init__()
        self.window = window
        self.norm = FrameNorm(channels)
        self.q, self.k, self.v, self.proj_out = (Conv(channels, channels, (1, 1)) for _ in range(4))

    def forward(self, x_BCTHW: Tensor, past: Past) -> Tensor:
        h = self.norm(x_BCTHW)
        q, k, v = self.q(h, past), self.k(h, past), self.v(h, past)
        mixed = _in_frames(q, k, v) if self.window is None else _over_time(q, k, v, past, self.window)
        out: Tensor = x_BCTHW + self.proj_out(mixed, past)
        return out


def _in_frames(q_BCTHW: Tensor, k_BCTHW: Tensor, v_BCTHW: Tensor) -> Tensor:
    """Every place attends to all places of its frame."""
    q, k, v = (part.permute(0, 2, 3, 4, 1).flatten(2, 3) for part in (q_BCTHW, k_BCTHW, v_BCTHW))
    mixed: Tensor = F.scaled_dot_product_attention(q, k, v).unflatten(2, q_BCTHW.shape[3:])
    return mixed.permute(0, 4, 1, 2, 3)


def _over_time(q_BCTHW: Tensor, k_BCTHW: Tensor, v_BCTHW: Tensor, past: Past, window: int) -> Tensor:
    """Every place attends to itself in the newest `window` frames up to its own."""
    keys, values = ((past / n).join(x, window - 1, dim=2) for n, x in (("k", k_BCTHW), ("v", v_BCTHW)))
    q, k, v = (part.permute(0, 3, 4, 2, 1).flatten(1, 2) for part in (q_BCTHW, keys, values))
    frame = torch.arange(k.shape[2], device=k.device)
    back = frame[k.shape[2] - q.shape[2] :, None] - frame  # frames from query back to key
    seen = (back >= 0) & (back < window)
    mixed: Tensor = F.scaled_dot_product_attention(q, k, v, attn_mask=seen).unflatten(1, q_BCTHW.shape[3:])
    return mixed.permute(0, 4, 3, 1, 2)


def middle(channels: int, window: int) -> Steps:
    """The coarsest part: convolutions, attention in frames and over time, convolutions."""
    attention = numbered(Attention(channels), Attention(channels, window))
    return Steps(
        {"block_1": Residual(channels, channels), "attn_1": attention, "block_2": Residual(channels, channels)}
    )


class Downsample(nn.Module):
    """Half the sides, and half the frames after the first: a strided convolution plus a mean, for each."""

    def __init__(self, channels: int, time: bool) -> None:
        super().__init__()
        self.conv1 = Conv(channels, channels, (1, 3), stride=2)
        self.conv2 = Conv(channels, channels, (3, 1), stride=2) if time else None
        self.conv3 = Conv(channels, channels, (1, 1))

    def forward(self, x_BCTHW: Tensor, past: Past) -> Tensor:
        mean = x_BCTHW.unflatten(4, (-1, 2)).unflatten(3, (-1, 2)).mean((4, 6))
        x_BCTHW = self.conv1(F.pad(x_BCTHW, (0, 1, 0, 1)), past) + mean
        if self.conv2 is not None:
            x_BCTHW = repeat_first(x_BCTHW, 1) if past.start else x_BCTHW
            x_BCTHW = self.conv2(x_BCTHW, past / "conv2") + x_BCTHW.unflatten(2, (-1, 2)).mean(3)
        out: Tensor = self.conv3(x_BCTHW, past)
        return out


class Upsample(nn.Module):
    """Twice the frames but for a video's first, and twice the sides: copies plus a convolution, for each."""

    def __init__(self, channels: int, time: bool) -> None:
        super().__init__()
        self.conv1 = Conv(channels, channels, (3, 1)) if time else None
        self.conv2 = Conv(channels, channels, (1, 3), padding=1)
        self.conv3 = Conv(channels, channels, (1, 1))

    def forward(self, x_BCTHW: Tensor, past: Past) -> Tensor:
        if self.conv1 is not None:
            x_BCTHW = x_BCTHW.repeat_interleave(2, dim=2)[:, :, 1 if past.start else 0 :]
            x_BCTHW = x_BCTHW + self.conv1(x_BCTHW, past / "conv1")
        x_BCTHW = x_BCTHW.repeat_interleave(2, dim=3).repeat_interleave(2, dim=4)
        out: Tensor = self.conv3(x_BCTHW + self.conv2(x_BCTHW, past), past)
        return out


def stage(before: int, after: int, blocks: int, then: dict[str, nn.Module]) -> Steps:
    """Residual blocks, of which the first changes the channels, and what comes behind them."""
    first = Residual(before, after)
    return Steps({"block": numbered(first, *(Residual(after, after) for _ in range(blocks - 1)))} | then)


class Encoder(nn.Module):
    """Pixels in [-1, 1] to latents, from the finest stage to the coarsest."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        channels, blocks = config.channels, config.blocks
        *finer, coarsest = zip((config.width, *channels), channels, strict=False)
        down = [
            stage(before, after, blocks, {"downsample": Downsample(after, time=index == 0)})
            for index, (before, after) in enumerate(finer)
        ]
        self.conv_in, self.down = pair(PIXEL, config.width), numbered(*down, stage(*coarsest, blocks, {}))
        self.mid = middle(channels[-1], config.window)
        self.norm_out, self.conv_out = FrameNorm(channels[-1]), pair(channels[-1], config.latent)

    def forward(self, x_BCTHW: Tensor, past: Past) -> Tensor:
        x_BCTHW = repeat_first(x_BCTHW, 2**HAAR - 1) if past.start else x_BCTHW
        for _ in range(HAAR):
            x_BCTHW = haar(x_BCTHW)
        h = self.mid(self.down(self.conv_in(x_BCTHW, past / "conv_in"), past / "down"), past / "mid")
        out: Tensor = self.conv_out(F.silu(self.norm_out(h)), past / "conv_out")
        return out


class Decoder(nn.Module):
    """Latents to pixels in about [-1, 1], from the coarsest stage, which has the highest number, to the finest."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        channels, blocks = config.channels, config.blocks + 1
        self.conv_in, self.mid = pair(config.latent, channels[-1]), middle(channels[-1], config.window)
        self.up = Steps()
        before = channels[-1]
        for index, after in reversed(list(enumerate(channels))):
            larger: dict[str, nn.Module] = {"upsample": Upsample(after, time=index == 1)} if index else {}
            self.up[str(index)] = stage(before, after, blocks, larger)
            before = after
        self.norm_out, self.conv_out = FrameNorm(channels[0]), pair(channels[0], PIXEL)

    def forward(self, z_BCTHW: Tensor, past: Past) -> Tensor:
        h = self.up(self.mid(self.conv_in(z_BCTHW, past / "conv_in"), past / "mid"), past / "up")
        h = self.conv_out(F.silu(self.norm_out(h)), past / "conv_out")
        for _ in range(HAAR):
            h = unhaar(h)
        pixels: Tensor = h[:, :, 2**HAAR - 1 if past.start else 0 :]
        return pixels


def haar(x_BCTHW: Tensor) -> Tensor:
    """Means and half differences of neighbours along time, height and width: 8 bands of C channels, all halved."""
    x: Tensor = x_BCTHW.unflatten(4, (-1, 2)).unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
    for axis in (3, 5, 7):
        x = _sum_and_difference(x, axis)
    return x.permute(0, 3, 5, 7, 1, 2, 4, 6).flatten(1, 4) / 8


def unhaar(x_BCTHW: Tensor) -> Tensor:
    """The inverse of `haar`."""
    x: Tensor = x_BCTHW.unflatten(1, (2, 2, 2, -1))
    for axis in (1, 2, 3):
        x = _sum_and_difference(x, axis)
    return x.permute(0, 4, 5, 1, 6, 2, 7, 3).flatten(6, 7).flatten(4, 5).flatten(2, 3)


def _sum_and_difference(x: Tensor, axis: int) -> Tensor:
    first, second = x.unbind(axis)
    return torch.stack([first + second, first - second], dim=axis)


class CosmosTokenizer(nn.Module):
    """Clips to ids and back."""

    weight_map = WeightMap(
        prefixes=("tokenizer.", "model.", ""),
        # Tables of the published traces: Haar filters and the quantiser's numbers. Ours are computed.
        ignore=(
            *("encoder.patcher3d.{}", "decoder.unpatcher3d.{}", "quantizer.{}", "inv_quant.quantizer.{}"),
            "{}_extra_state",
        ),
    )

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        self.quant_conv = Conv(config.latent, len(config.levels), (1, 1))
        self.post_quant_conv = Conv(len(config.levels), config.latent, (1, 1))

    @property
    def patch(self) -> int:
        return self.config.patch

    @property
    def stride(self) -> int:
        return self.config.stride

    def encode(self, video_BTCHW: Tensor) -> Tensor:
        check_clip(video_BTCHW, self.stride, self.patch)
        with torch.inference_mode():
            ids_BTHW = self.ids(self.latents(video_BTCHW))
        return ids_BTHW.clone()

    def latents(self, video_BTCHW: Tensor) -> Tensor:
        """What is quantised, (B, C, token frames, rows, cols), of a whole clip."""
        x_BCTHW = video_BTCHW.transpose(1, 2).to(self.quant_conv.conv3d.weight.dtype) / 127.5 - 1
        past = Past(None, start=True)
        latents: Tensor = self.quant_conv(self.encoder(x_BCTHW, past), past)
        return latents

    def ids(self, latents_BCTHW: Tensor) -> Tensor:
        """Squash each channel to its levels, round, and number the result."""
        found = []
        for z, count in zip(latents_BCTHW.float().unbind(1), self.config.levels, strict=True):
            half = (count - 1) * 1.001 / 2
            offset = 0.0 if count % 2 else 0.5  # an even number of levels has no middle one
            found.append(((z + atanh(offset / half)).tanh() * half - offset).round() + count // 2)
        return number(torch.stack(found, dim=1).long(), self.config.levels)

    def codes(self, ids_BTHW: Tensor) -> Tensor:
        """What the decoder takes, (B, C, T, H, W): each channel from -1 on, in steps of 1 / (levels // 2)."""
        halves = torch.tensor([count // 2 for count in self.config.levels], device=ids_BTHW.device)
        levels = digits(ids_BTHW, self.config.levels)
        return (levels / halves[:, None, None, None] - 1).to(self.quant_conv.conv3d.weight.dtype)

    def decode(self, tokens_BTHW: Tensor, state: MutableMapping[str, Tensor]) -> Tensor:
        """Each token frame gives `stride` frames, but the first of a video one. The state stays small: see `window`."""
        with torch.inference_mode():
            pixels = self.pixels(tokens_BTHW, state)
            bytes_BTCHW = ((pixels.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return bytes_BTCHW.clone()

    def pixels(self, tokens_BTHW: Tensor, state: MutableMapping[str, Tensor]) -> Tensor:
        """Decoded frames in about [-1, 1], (B, T, C, height, width)."""
        past = Past(state, start=not state)
        latents = self.post_quant_conv(self.codes(tokens_BTHW), past)
        frames_BCTHW: Tensor = self.decoder(latents, past)
        return frames_BCTHW.transpose(1, 2)


VARIANTS = {
    "dv8x16x16": Config(levels=(8, 8, 8, 5, 5, 5), width=128),
    "tiny": Config(levels=(4, 4, 4), width=8, multiples=(1, 2, 2), blocks=1, latent=8),
}
