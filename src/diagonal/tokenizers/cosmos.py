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
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.engine.kernels import select_pixels
from diagonal.tokenizers.radix import digits, number
from diagonal.tokenizers.streaming import Past, Steps, check_clip, numbered, per_frame, pointwise, twice_the_sides

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


def repeat_first(x_BTHWC: Tensor, count: int) -> Tensor:
    """`count` more copies of the first frame in front."""
    return torch.cat([x_BTHWC[:, :1].expand(-1, count, -1, -1, -1), x_BTHWC], dim=1)


class Conv(nn.Module):
    """A convolution over a frame, `kernel` = (1, s), or over time, (t, 1); before a video stand copies of its start.

    Both are torch's convolutions of pictures, which are its fastest: over time, a clip is a picture whose rows are
    frames and whose columns are the places of a frame.
    """

    def __init__(self, inputs: int, outputs: int, kernel: tuple[int, int], stride: int = 1, padding: int = 0) -> None:
        super().__init__()
        time, side = kernel
        strides = (stride, 1, 1) if time > 1 else (1, stride, stride)
        self.earlier = time - strides[0] if time > 1 else 0  # frames needed from before the first new one
        self.conv3d = nn.Conv3d(inputs, outputs, (time, side, side), strides, (0, padding, padding))
        # So that activations keep their size (He et al., 2015). As torch initialises them, they shrink from layer to
        # layer until biases are all that is left, and every clip has the same ids.
        nn.init.kaiming_normal_(self.conv3d.weight)
        nn.init.zeros_(cast(Tensor, self.conv3d.bias))

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:
        conv = self.conv3d
        if conv.kernel_size == (1, 1, 1):
            return pointwise(conv, x_BTHWC)
        if conv.kernel_size[0] == 1:
            weight, stride, padding = conv.weight[:, :, 0], conv.stride[1:], conv.padding[1:]
            return per_frame(lambda x: F.conv2d(x, weight, conv.bias, stride, padding), x_BTHWC)
        x_BTHWC = repeat_first(x_BTHWC, self.earlier) if past.start else x_BTHWC
        x_BTHWC = past.join(x_BTHWC, self.earlier, dim=1)
        x_BCTN = x_BTHWC.flatten(2, 3).permute(0, 3, 1, 2)
        out_BCTN = F.conv2d(x_BCTN, conv.weight[..., 0], conv.bias, (conv.stride[0], 1))
        out: Tensor = out_BCTN.permute(0, 2, 3, 1).unflatten(2, x_BTHWC.shape[2:4])
        return out


def pair(inputs: int, outputs: int) -> Steps:
    """A 3x3x3 convolution in two factors: 3x3 over a frame, then 3 over time."""
    return numbered(Conv(inputs, outputs, (1, 3), padding=1), Conv(outputs, outputs, (3, 1)))


class FrameNorm(nn.Module):
    """Group norm with one group, each frame by itself; with SiLU behind it where that is asked for."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, channels, eps=1e-6)

    def forward(self, x_BTHWC: Tensor, silu: bool = False) -> Tensor:
        return select_pixels.frame_norm(x_BTHWC, self.norm.weight, self.norm.bias, self.norm.eps, silu)


class Residual(nn.Module):
    """Two normalised convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = FrameNorm(inputs), pair(inputs, outputs)
        self.norm2, self.conv2 = FrameNorm(outputs), pair(outputs, outputs)
        self.nin_shortcut = Conv(inputs, outputs, (1, 1)) if inputs != outputs else None

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:
        h = self.conv1(self.norm1(x_BTHWC, silu=True), past / "conv1")
        h = self.conv2(self.norm2(h, silu=True), past / "conv2")
        out: Tensor = h + (x_BTHWC if self.nin_shortcut is None else self.nin_shortcut(x_BTHWC, past))
        return out


class Attention(nn.Module):
    """One head around a shortcut: over the places of a frame, or over the newest `window` frames of a place."""

    def __init__(self, channels: int, window: int | None = None) -> None:
        super().__init__()
        self.window = window
        self.norm = FrameNorm(channels)
        self.q, self.k, self.v, self.proj_out = (Conv(channels, channels, (1, 1)) for _ in range(4))

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:
        h = self.norm(x_BTHWC)
        q, k, v = (layer(h, past).flatten(2, 3) for layer in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v) if self.window is None else self._over_time(q, k, v, past)
        out: Tensor = x_BTHWC + self.proj_out(mixed.unflatten(2, x_BTHWC.shape[2:4]), past)
        return out

    def _over_time(self, q_BTNC: Tensor, k_BTNC: Tensor, v_BTNC: Tensor, past: Past) -> Tensor:
        """Every place attends to itself in the newest `window` frames up to its own."""
        assert self.window is not None
        keys, values = ((past / n).join(x, self.window - 1, dim=1) for n, x in (("k", k_BTNC), ("v", v_BTNC)))
        q, k, v = (part.transpose(1, 2) for part in (q_BTNC, keys, values))
        frame = torch.arange(k.shape[2], device=k.device)
        back = frame[k.shape[2] - q.shape[2] :, None] - frame  # frames from query back to key
        seen = (back >= 0) & (back < self.window)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2)


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

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:
        mean = x_BTHWC.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).mean((3, 5))
        x_BTHWC = self.conv1(F.pad(x_BTHWC, (0, 0, 0, 1, 0, 1)), past) + mean
        if self.conv2 is not None:
            x_BTHWC = repeat_first(x_BTHWC, 1) if past.start else x_BTHWC
            x_BTHWC = self.conv2(x_BTHWC, past / "conv2") + x_BTHWC.unflatten(1, (-1, 2)).mean(2)
        out: Tensor = self.conv3(x_BTHWC, past)
        return out


class Upsample(nn.Module):
    """Twice the frames but for a video's first, and twice the sides: copies plus a convolution, for each."""

    def __init__(self, channels: int, time: bool) -> None:
        super().__init__()
        self.conv1 = Conv(channels, channels, (3, 1)) if time else None
        self.conv2 = Conv(channels, channels, (1, 3), padding=1)
        self.conv3 = Conv(channels, channels, (1, 1))

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:
        if self.conv1 is not None:
            x_BTHWC = x_BTHWC.repeat_interleave(2, dim=1)[:, 1 if past.start else 0 :]
            x_BTHWC = x_BTHWC + self.conv1(x_BTHWC, past / "conv1")
        x_BTHWC = twice_the_sides(x_BTHWC)
        out: Tensor = self.conv3(x_BTHWC + self.conv2(x_BTHWC, past), past)
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

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:
        x_BTHWC = repeat_first(x_BTHWC, 2**HAAR - 1) if past.start else x_BTHWC
        for _ in range(HAAR):
            x_BTHWC = haar(x_BTHWC)
        h = self.mid(self.down(self.conv_in(x_BTHWC, past / "conv_in"), past / "down"), past / "mid")
        out: Tensor = self.conv_out(self.norm_out(h, silu=True), past / "conv_out")
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

    def forward(self, z_BTHWC: Tensor, past: Past) -> Tensor:
        h = self.up(self.mid(self.conv_in(z_BTHWC, past / "conv_in"), past / "mid"), past / "up")
        h = self.conv_out(self.norm_out(h, silu=True), past / "conv_out")
        for _ in range(HAAR):
            h = unhaar(h)
        pixels: Tensor = h[:, 2**HAAR - 1 if past.start else 0 :]
        return pixels


def haar(x_BTHWC: Tensor) -> Tensor:
    """Means and half differences of neighbours along time, height and width: 8 bands of C channels, all halved."""
    x: Tensor = x_BTHWC.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).unflatten(1, (-1, 2))
    for axis in (2, 4, 6):
        x = _sum_and_difference(x, axis)
    return x.permute(0, 1, 3, 5, 2, 4, 6, 7).flatten(4) / 8


def unhaar(x_BTHWC: Tensor) -> Tensor:
    """The inverse of `haar`."""
    x: Tensor = x_BTHWC.unflatten(4, (2, 2, 2, -1))
    for axis in (4, 5, 6):
        x = _sum_and_difference(x, axis)
    return x.permute(0, 1, 4, 2, 5, 3, 6, 7).flatten(5, 6).flatten(3, 4).flatten(1, 2)


def _sum_and_difference(x: Tensor, axis: int) -> Tensor:
    first, second = x.unbind(axis)
    return torch.stack([first + second, first - second], dim=axis)


class CosmosTokenizer(nn.Module):
    """Clips to ids and back."""

    whole = False
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
        x_BTHWC = video_BTCHW.permute(0, 1, 3, 4, 2).contiguous().to(self.quant_conv.conv3d.weight.dtype) / 127.5 - 1
        past = Past(None, start=True)
        latents_BTHWC: Tensor = self.quant_conv(self.encoder(x_BTHWC, past), past)
        return latents_BTHWC.permute(0, 4, 1, 2, 3)

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
        codes_BTHWC = self.codes(tokens_BTHW).permute(0, 2, 3, 4, 1)
        frames_BTHWC: Tensor = self.decoder(self.post_quant_conv(codes_BTHWC, past), past)
        return frames_BTHWC.permute(0, 1, 4, 2, 3)


VARIANTS = {
    "dv8x16x16": Config(levels=(8, 8, 8, 5, 5, 5), width=128),
    "tiny": Config(levels=(4, 4, 4), width=8, multiples=(1, 2, 2), blocks=1, latent=8),
}
