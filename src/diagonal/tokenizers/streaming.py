"""What causal tokenizers share: the memory that carries a video from call to call, the layout of frames between layers,
and the checks of what they are given.

Layers of Cosmos' tokenizer, the Wan VAE and TAEHV hold frames as (B, T, H, W, C), contiguous: what torch calls channels
last. There a norm reads neighbours, and a 1x1 convolution is a matrix product. `per_frame` and `over_time` hand frames
to torch's own convolutions as views.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RGB = 3


@dataclass(frozen=True, slots=True)
class Past:
    """What layers remember between calls; `past / "name"` is the part of a submodule."""

    state: MutableMapping[str, Tensor] | None  # None: no call follows, so nothing is remembered
    start: bool  # the frames of this call begin the video
    path: str = ""

    def __truediv__(self, name: str) -> Past:
        return Past(self.state, self.start, f"{self.path}.{name}" if self.path else name)

    @property
    def empty(self) -> bool:
        """Nothing is remembered here yet."""
        return self.state is None or self.path not in self.state

    def join(self, x: Tensor, count: int, dim: int) -> Tensor:
        """New frames behind the remembered ones (none at first); the newest `count` of all are remembered."""
        if self.state is None:
            return x
        joined = x if self.empty else torch.cat([self.state[self.path], x], dim=dim)
        newest = joined.narrow(dim, max(0, joined.shape[dim] - count), min(count, joined.shape[dim]))
        # A copy: a view would keep all frames in memory.
        self.state[self.path] = newest.clone()
        return joined


class Steps(nn.ModuleDict):
    """Named layers, one after the other."""

    def forward(self, x: Tensor, past: Past) -> Tensor:
        for name, layer in self.items():
            x = layer(x, past / name)
        return x


def numbered(*layers: nn.Module | None) -> Steps:
    """Layers named by their numbers. None has one too: what it stands for is done by the layer before it."""
    return Steps({str(index): layer for index, layer in enumerate(layers) if layer is not None})


def per_frame(layer: Callable[[Tensor], Tensor], x_BTHWC: Tensor) -> Tensor:
    """A layer for pictures, (N, C, H, W), over every frame."""
    out_NHWC = layer(x_BTHWC.flatten(0, 1).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    out: Tensor = out_NHWC.unflatten(0, x_BTHWC.shape[:2])
    return out


def twice_the_sides(x_BTHWC: Tensor) -> Tensor:
    """Every pixel of a frame becomes 2x2."""
    batch, frames, rows, cols, channels = x_BTHWC.shape
    apart = x_BTHWC[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2, -1)
    return apart.reshape(batch, frames, 2 * rows, 2 * cols, channels)


def over_time(layer: Callable[[Tensor], Tensor], x_BTHWC: Tensor) -> Tensor:
    """A layer for clips, (B, C, T, H, W), over the given frames and no others."""
    return layer(x_BTHWC.permute(0, 4, 1, 2, 3)).permute(0, 2, 3, 4, 1)


def convolve(conv: nn.Conv3d, x_BCTHW: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution over a clip, with a bias or without. On a CPU torch leaves those over a few small frames to loops
    of its own, which take six times as long as oneDNN; so oneDNN is called by its name."""
    if x_BCTHW.is_cpu and x_BCTHW.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        sizes = (conv.padding, conv.stride, conv.dilation, conv.groups)
        return torch.mkldnn_convolution(x_BCTHW, conv.weight, bias, *sizes)  # type: ignore[arg-type]
    found: Tensor = conv._conv_forward(x_BCTHW, conv.weight, bias)
    return found


def zeros_before(x_BTHWC: Tensor, count: int) -> Tensor:
    """`count` frames of zeros in front."""
    return F.pad(x_BTHWC, (0, 0, 0, 0, 0, 0, count, 0))


def pointwise(conv: nn.Conv2d | nn.Conv3d, x_BTHWC: Tensor) -> Tensor:
    """A 1x1 convolution: the same matrix at every place."""
    return F.linear(x_BTHWC, conv.weight.flatten(1), conv.bias)


def channels_to_frames(x_BTHWC: Tensor, count: int) -> Tensor:
    """Each frame becomes `count`, which were its channels: the first one's, the second one's, ..."""
    parts: Tensor = x_BTHWC.unflatten(-1, (count, -1))
    return parts.permute(0, 1, 4, 2, 3, 5).flatten(1, 2)


def frames_to_channels(x_BTHWC: Tensor, count: int) -> Tensor:
    """The inverse of `channels_to_frames`."""
    groups: Tensor = x_BTHWC.unflatten(1, (-1, count))
    return groups.permute(0, 1, 3, 4, 2, 5).flatten(-2)


def check_clip(video_BTCHW: Tensor, stride: int, patch: int, start: bool = True) -> None:
    """Refuse what is no video, and frames that do not divide: 1 + stride * n at its start, stride * n further on."""
    shape = tuple(video_BTCHW.shape)
    if video_BTCHW.dtype != torch.uint8 or len(shape) != 5 or shape[2] != RGB:
        form = f"(batch, frames, {RGB}, height, width)"
        raise ValueError(f"a video of {video_BTCHW.dtype} and shape {shape} given; it must be uint8, {form}")
    frames, _, height, width = shape[1:]
    if start and frames % stride != 1 % stride:
        raise ValueError(f"{frames} frames given; a clip must have 1 + {stride}n: 1, {1 + stride}, ...")
    if not start and (frames % stride or not frames):
        raise ValueError(f"{frames} more frames given; a clip goes on by {stride}n: {stride}, {2 * stride}, ...")
    if height % patch or width % patch:
        raise ValueError(f"frames of {height}x{width} given; both sides must be multiples of {patch}")


def check_latents(latents_BFCHW: Tensor, channels: int) -> None:
    """Refuse latents of another form. Numbers are looked at on a CPU only: a look at a GPU's would wait for it."""
    shape = tuple(latents_BFCHW.shape)
    if len(shape) != 5 or shape[2] != channels or 0 in shape:
        raise ValueError(f"latents of shape {shape} given; they must be (batch, frames, {channels}, rows, columns)")
    if not latents_BFCHW.is_floating_point():
        raise ValueError(f"latents of {latents_BFCHW.dtype} given; they must be of floating point")
    if latents_BFCHW.device.type == "cpu" and not latents_BFCHW.isfinite().all():
        raise ValueError("the latents hold NaN or infinite numbers; check the weights that made them, and their dtype")
