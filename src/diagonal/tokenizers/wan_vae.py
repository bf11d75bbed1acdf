"""The video VAE of Wan2.1 (Wan et al., 2025): 16 channels for each 8x8 pixels of one frame, then of four at a time.

A causal network: 3x3x3 convolutions that see no later frame, attention within frames in the middle. So both directions
stream: what a convolution must know of the past is its own last input frames, which `Past` keeps in the caller's dict.
All frames of a call go through each layer together, and the cuts between calls change nothing but rounding.

A video's first frame passes every layer that halves or doubles time unchanged. When time is halved it is the first of
the frames that the next output sees; when time is doubled no later output sees it: before the second frame are zeros.
Latents are (mu - mean) / std with fixed numbers per channel; encoding gives mu, without noise. Decoded pixels are
clamped to [-1, 1], and v becomes the byte nearest to 127.5 (v + 1).
Names of the layers are those of the published checkpoint (Wan2.1_VAE.pth); diffusers' names are read as well.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.engine.kernels import select_pixels
from diagonal.tokenizers.streaming import (
    RGB,
    Past,
    Steps,
    channels_to_frames,
    check_clip,
    check_latents,
    convolve,
    numbered,
    over_time,
    per_frame,
    pointwise,
    twice_the_sides,
    zeros_before,
)

EPS = 1e-24  # of norms: keeps zeros zeros, and is too small to change anything else


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes. Each stage but the coarsest halves the sides of a frame, and where `time` says so, time too."""

    width: int
    blocks: int  # of a stage of the encoder; the decoder has one more
    multiples: tuple[int, ...] = (1, 2, 4, 4)  # channels of the stages over `width`, from the finest on
    time: tuple[bool, ...] = (False, True, True)
    fold: int = 1  # pixels of squares of this side are the channels of one place (Wan2.2): less work at full size
    # Of each latent channel over many videos.
    mean: tuple[float, ...] = (
        *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
        *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
    )
    std: tuple[float, ...] = (
        *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
        *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
    )

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise ValueError(f"{len(self.mean)} means and {len(self.std)} deviations given; a channel has one of both")
        if len(self.time) != len(self.multiples) - 1:
            raise ValueError(f"{len(self.multiples)} stages given; time={self.time} must have one fewer")

    @property
    def latent(self) -> int:
        return len(self.mean)

    @property
    def channels(self) -> tuple[int, ...]:
        return tuple(self.width * multiple for multiple in self.multiples)

    @property
    def patch(self) -> int:
        return self.fold * int(2 ** len(self.time))

    @property
    def pixels(self) -> int:
        """Numbers of a place: the colours of its pixels."""
        return RGB * self.fold**2

    @property
    def stride(self) -> int:
        return int(2 ** sum(self.time))

    @property
    def first(self) -> int:
        return 1

    def build(self) -> WanVAE:
        return WanVAE(self)


class Norm(nn.Module):
    """x / |x| * sqrt(C) * gamma, with |x| over the channels of one place: an RMS norm."""

    def __init__(self, channels: int, dims: int = 3) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels, *[1] * dims))

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:
        return F.rms_norm(x_BTHWC, x_BTHWC.shape[-1:], self.gamma.flatten(), eps=EPS)


class NormSiLU(Norm):
    """The norm of x + plus, and silu of it: one pass over large pictures."""

    def forward(self, x_BTHWC: Tensor, past: Past, plus: Tensor | None = None) -> Tensor:
        return select_pixels.norm_silu(x_BTHWC, self.gamma.flatten(), EPS, plus)


class Conv(nn.Conv3d):
    """A causal convolution over 3 frames, and 3x3 or 1x1 places: before the first frame it sees are zeros."""

    def __init__(self, inputs: int, outputs: int, side: int = 3) -> None:
        super().__init__(inputs, outputs, (3, side, side), padding=(0, side // 2, side // 2))

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:  # type: ignore[override]  # frames need their past
        return self._over(x_BTHWC, past, self.bias)

    def unbiased(self, x_BTHWC: Tensor, past: Past) -> Tensor:
        """Without the bias, which the next layer adds as it reads: torch would do it in a pass of its own."""
        return self._over(x_BTHWC, past, None)

    def _over(self, x_BTHWC: Tensor, past: Past, bias: Tensor | None) -> Tensor:
        earlier = self.kernel_size[0] - 1
        if past.empty:
            x_BTHWC = zeros_before(x_BTHWC, earlier)
        joined = past.join(x_BTHWC, earlier, dim=1)
        return over_time(lambda clip: convolve(self, clip, bias), joined)


class Residual(nn.Module):
    """Two normalised convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        layers = (NormSiLU(inputs), Conv(inputs, outputs), NormSiLU(outputs), Conv(outputs, outputs))
        self.residual = nn.ModuleDict(dict(zip("0236", layers, strict=True)))  # others have no weights
        self.shortcut = nn.Conv3d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:
        direct = x_BTHWC if self.shortcut is None else pointwise(self.shortcut, x_BTHWC)
        first_norm, first, second_norm, second = cast(Any, self.residual.values())
        past = past / "residual"
        x_BTHWC = first.unbiased(first_norm(x_BTHWC, past), past / "2")
        x_BTHWC = second.unbiased(second_norm(x_BTHWC, past, first.bias), past / "6")
        return select_pixels.add_bias(x_BTHWC, second.bias, direct)


class Attention(nn.Module):
    """One head around a shortcut: every place attends to all places of its frame."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = Norm(channels, dims=2)
        self.to_qkv, self.proj = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:
        qkv_NSC = pointwise(self.to_qkv, self.norm(x_BTHWC, past)).flatten(2, 3).flatten(0, 1)
        q, k, v = qkv_NSC[:, None].chunk(3, dim=-1)
        mixed: Tensor = F.scaled_dot_product_attention(q, k, v).reshape(x_BTHWC.shape)
        return x_BTHWC + pointwise(self.proj, mixed)


class Downsample(nn.Module):
    """Half the sides, and half the frames after a video's first: strided convolutions."""

    def __init__(self, channels: int, time: bool) -> None:
        super().__init__()
        self.resample = nn.ModuleDict({"1": nn.Conv2d(channels, channels, 3, stride=2)})
        self.time_conv = nn.Conv3d(channels, channels, (3, 1, 1), stride=(2, 1, 1)) if time else None

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:
        x_BTHWC = per_frame(self.resample["1"], F.pad(x_BTHWC, (0, 0, 0, 1, 0, 1)))
        if self.time_conv is None:
            return x_BTHWC
        first, joined = x_BTHWC[:, :1], past.join(x_BTHWC, 1, dim=1)
        if past.start:
            return first if joined.shape[1] == 1 else torch.cat([first, over_time(self.time_conv, joined)], dim=1)
        return over_time(self.time_conv, joined)


class Upsample(nn.Module):
    """Twice the frames but for a video's first, by a convolution; then twice the sides, by copies and another."""

    def __init__(self, channels: int, time: bool) -> None:
        super().__init__()
        self.resample = nn.ModuleDict({"1": nn.Conv2d(channels, channels // 2, 3, padding=1)})
        self.time_conv = Conv(channels, 2 * channels, side=1) if time else None

    def forward(self, x_BTHWC: Tensor, past: Past) -> Tensor:
        if self.time_conv is not None:
            first, later = x_BTHWC.tensor_split([1 if past.start else 0], dim=1)
            if later.shape[1]:
                later = channels_to_frames(self.time_conv(later, past / "time_conv"), 2)
            x_BTHWC = torch.cat([first, later], dim=1) if past.start else later
        return per_frame(self.resample["1"], twice_the_sides(x_BTHWC))


def residuals(before: int, after: int, count: int) -> list[nn.Module]:
    """The blocks of a stage, of which the first changes the channels."""
    return [Residual(before, after), *(Residual(after, after) for _ in range(count - 1))]


def middle(channels: int) -> Steps:
    """The coarsest part."""
    return numbered(Residual(channels, channels), Attention(channels), Residual(channels, channels))


def head(inputs: int, outputs: int) -> Steps:
    """The last layers of both networks."""
    return Steps({"0": NormSiLU(inputs), "2": Conv(inputs, outputs)})


def encoder(config: Config) -> Steps:
    """Pixels in [-1, 1] to mu and log variance, from the finest stage to the coarsest."""
    layers: list[nn.Module] = []
    before = config.width
    for index, after in enumerate(config.channels):
        layers += residuals(before, after, config.blocks)
        layers += [Downsample(after, config.time[index])] if index < len(config.time) else []
        before = after
    last = {"middle": middle(before), "head": head(before, 2 * config.latent)}
    return Steps({"conv1": Conv(config.pixels, config.width), "downsamples": numbered(*layers), **last})


def decoder(config: Config) -> Steps:
    """Latents to pixels in about [-1, 1], from the coarsest stage to the finest."""
    layers: list[nn.Module] = []
    coarsest = before = config.channels[-1]
    for index, after in reversed(list(enumerate(config.channels))):
        layers += residuals(before, after, config.blocks + 1)
        layers += [Upsample(after, config.time[index - 1])] if index else []
        before = after // 2
    first = {"conv1": Conv(config.latent, coarsest), "middle": middle(coarsest)}
    return Steps({**first, "upsamples": numbered(*layers), "head": head(config.channels[0], config.pixels)})


def diffusers_keys(config: Config) -> dict[str, tuple[str, ...]]:
    """Our keys to those of diffusers' AutoencoderKLWan."""
    parts = {"residual.0": "norm1", "residual.2": "conv1", "residual.3": "norm2", "residual.6": "conv2"}
    parts |= {"shortcut": "conv_shortcut"}
    keys = {"conv1": "quant_conv", "conv2": "post_quant_conv"}
    blocks = {"encoder.downsamples.{}": "encoder.down_blocks.{}"}
    for half in ("encoder", "decoder"):
        keys |= {f"{half}.conv1": f"{half}.conv_in", f"{half}.middle.1": f"{half}.mid_block.attentions.0"}
        keys |= {f"{half}.head.0": f"{half}.norm_out", f"{half}.head.2": f"{half}.conv_out"}
        blocks |= {f"{half}.middle.{2 * index}": f"{half}.mid_block.resnets.{index}" for index in range(2)}
    each = config.blocks + 2  # layers of a stage of the decoder: residual blocks, then the one that doubles
    for index in range(len(config.channels)):
        theirs = f"decoder.up_blocks.{index}"
        blocks |= {f"decoder.upsamples.{each * index + r}": f"{theirs}.resnets.{r}" for r in range(each - 1)}
        keys[f"decoder.upsamples.{each * index + each - 1}"] = f"{theirs}.upsamplers.0"
    keys |= {f"{our}.{part}": f"{their}.{name}" for our, their in blocks.items() for part, name in parts.items()}
    keys["encoder.downsamples.{}"] = "encoder.down_blocks.{}"  # the ones that halve; last, for it fits all
    return {f"{ours}.{{}}": (f"{theirs}.{{}}",) for ours, theirs in keys.items()}


@lru_cache
def per_channel(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """Numbers on a device, sent there once: each time would wait for the device."""
    with torch.inference_mode(False):
        return torch.tensor(numbers, device=device)


class WanVAE(nn.Module):
    """Clips to latents and back."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder, self.decoder = encoder(config), decoder(config)
        self.conv1 = nn.Conv3d(2 * config.latent, 2 * config.latent, 1)
        self.conv2 = nn.Conv3d(config.latent, config.latent, 1)

    @property
    def weight_map(self) -> WeightMap:
        return WeightMap(prefixes=("tokenizer.", ""), keys=diffusers_keys(self.config))

    @property
    def patch(self) -> int:
        return self.config.patch

    @property
    def stride(self) -> int:
        return self.config.stride

    @property
    def first(self) -> int:
        return self.config.first

    def encode(self, video_BTCHW: Tensor, state: MutableMapping[str, Tensor] | None = None) -> Tensor:
        """Latents (B, F, C, rows, cols) of a clip in one call; with a `state`, empty at first, of its next frames."""
        check_clip(video_BTCHW, self.stride, self.patch, start=not state)
        with torch.inference_mode():
            latents = self.latents(video_BTCHW.float() / 127.5 - 1, state)
        return latents.clone()

    def latents(self, pixels_BTCHW: Tensor, state: MutableMapping[str, Tensor] | None) -> Tensor:
        """Latents (B, F, C, rows, cols) of frames in [-1, 1]."""
        x_BTHWC = self._folded(pixels_BTCHW).to(self.conv1.weight.dtype).contiguous()
        mu_BTHWC = self._moments(x_BTHWC, state)[0]
        mean, std = self._scale(mu_BTHWC.device)
        return ((mu_BTHWC.float() - mean) / std).to(mu_BTHWC.dtype).permute(0, 1, 4, 2, 3)

    def moments(self, pixels_BTCHW: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance of the latents of a whole clip in [-1, 1], as they are before the fixed numbers:
        what training draws from."""
        mu_BTHWC, log_BTHWC = self._moments(self._folded(pixels_BTCHW).contiguous(), None)
        return mu_BTHWC.permute(0, 1, 4, 2, 3), log_BTHWC.permute(0, 1, 4, 2, 3)

    def _moments(self, x_BTHWC: Tensor, state: MutableMapping[str, Tensor] | None) -> tuple[Tensor, Tensor]:
        encoded = pointwise(self.conv1, self.encoder(x_BTHWC, Past(state, start=not state)))
        mu_BTHWC, log_BTHWC = encoded.chunk(2, dim=-1)
        return mu_BTHWC, log_BTHWC

    @torch.no_grad()
    def absorb(self, mean_C: Tensor, std_C: Tensor) -> None:
        """Change the weights so that latents with this mean and deviation get 0 and 1, and decode to the same pixels:
        both are linear, as are the layers that latents pass last and first. The config's numbers stay as they are."""
        channels = self.config.latent
        self.conv1.weight[:channels] /= std_C[:, None, None, None, None]
        self.conv1.bias[:channels] = (self.conv1.bias[:channels] - mean_C) / std_C  # type: ignore[index]
        self.conv1.bias[channels:] -= 2 * std_C.log()  # type: ignore[index]  # the log variance
        matrix = self.conv2.weight.flatten(1)
        self.conv2.bias += matrix @ mean_C  # type: ignore[operator]
        self.conv2.weight *= std_C[None, :, None, None, None]

    def decode(self, latents_BFCHW: Tensor, state: MutableMapping[str, Tensor]) -> Tensor:
        """Each latent gives `stride` frames, but the first of a video one."""
        check_latents(latents_BFCHW, self.config.latent)
        with torch.inference_mode():
            pixels = self.pixels(latents_BFCHW, state)
            bytes_BTCHW = ((pixels.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return bytes_BTCHW.clone()

    def pixels(self, latents_BFCHW: Tensor, state: MutableMapping[str, Tensor] | None) -> Tensor:
        """Decoded frames in about [-1, 1], (B, T, C, height, width); without a state, of a whole video."""
        z_BTHWC = latents_BFCHW.permute(0, 1, 3, 4, 2).float()
        mean, std = self._scale(z_BTHWC.device)
        x_BTHWC = (z_BTHWC * std + mean).to(self.conv2.weight.dtype).contiguous()
        out: Tensor = self.decoder(pointwise(self.conv2, x_BTHWC), Past(state, start=not state))
        return F.pixel_shuffle(out.permute(0, 1, 4, 2, 3), self.config.fold)

    def _folded(self, pixels_BTCHW: Tensor) -> Tensor:
        """Squares of pixels as places (B, T, rows, cols, channels)."""
        return F.pixel_unshuffle(pixels_BTCHW, self.config.fold).permute(0, 1, 3, 4, 2)

    def _scale(self, device: torch.device) -> tuple[Tensor, Tensor]:
        return per_channel(self.config.mean, device), per_channel(self.config.std, device)


def _doom(width: int) -> Config:
    """The same network, small, for frames of Doom: 8 channels for each 8x8 pixels of one frame, then of two. The
    numbers of its channels are absorbed into its weights."""
    rest = {"mean": (0.0,) * 8, "std": (1.0,) * 8}
    return Config(width, blocks=2, multiples=(1, 2, 3), time=(False, True), fold=2, **rest)


VARIANTS = {
    "1": Config(width=96, blocks=2),
    "tiny": Config(width=4, blocks=1),
    "doom": _doom(32),
    "doom-tiny": _doom(4),
}
