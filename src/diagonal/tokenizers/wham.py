"""WHAM's image tokenizer: a ViT-VQGAN (Yu et al., 2022), one frame at a time, 10x10 pixels per token.

Two bidirectional transformers with a codebook between them. What the encoder gives and the codebook's vectors are
scaled to length 1, so the nearest vector is the one with the largest dot product. Bytes come out by truncation.

The release does not say its sizes. `Config.fit` takes them from a checkpoint; `vit` has 12 layers of width 1024 for
each side, which fits the published file sizes, a latent of 32 and heads of 64, which are guesses until then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap

# ImageNet's, per channel
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of a ViT-VQGAN. A picture that is no multiple of the patch is padded at the right and at the bottom."""

    width: int  # of both transformers
    layers: int  # of each
    head_size: int
    latent: int
    codebook: int
    patch: int = 10
    size: tuple[int, int] = (180, 300)  # height and width of a frame in pixels

    def __post_init__(self) -> None:
        if self.width % self.head_size:
            raise ValueError(f"width={self.width} is no multiple of head_size={self.head_size}")

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tokens, the padded ones included."""
        height, width = self.size
        return -(-height // self.patch), -(-width // self.patch)

    def fit(self, state: Mapping[str, Tensor], settings: Mapping[str, Any] | None = None) -> Config:
        """The config of a checkpoint: sizes as its shapes say; those that no shape tells from its `settings`.

        `settings` are hyper-parameters by their path, as `pickles.read` gives them: the head size and the picture's.
        """
        start = re.compile(r"^(context_encoders\.images\.|tokenizer\.)")
        shapes = {start.sub("", key).replace("vq_vae._embedding", "codebook"): v.shape for key, v in state.items()}
        square = [key for key in shapes if key.startswith("vq_model.")]
        if square:
            raise ValueError(
                f"the checkpoint's image tokenizer is the convolutional one of square pictures ({len(square)} keys "
                f"such as {square[0]}), which is not supported; supported is the ViT-VQGAN of 300x180 pictures"
            )
        if not shapes.keys() >= {"encoder.proj1.weight", "encoder.output_proj.weight", "codebook.weight"}:
            return self  # no tokenizer of this kind: loading it will say what is missing
        height, width = self.size
        return replace(
            self,
            width=shapes["encoder.proj1.weight"][0],
            layers=sum(re.fullmatch(r"encoder\.vit\.\d+\.attn\.c_attn\.weight", key) is not None for key in shapes),
            latent=shapes["encoder.output_proj.weight"][0],
            codebook=shapes["codebook.weight"][0],
            patch=isqrt(shapes["encoder.proj1.weight"][1] // len(MEAN)),
            head_size=_setting(settings or {}, "head_size", self.head_size),
            size=(
                _setting(settings or {}, "image_size_per_y_axis", height),
                _setting(settings or {}, "image_size_per_x_axis", width),
            ),
        )

    def build(self) -> ViTTokenizer:
        return ViTTokenizer(self)


def _setting(settings: Mapping[str, Any], name: str, default: int) -> int:
    """The hyper-parameter of that name, wherever it lies, or the default where there is none."""
    found = {value for path, value in settings.items() if path.split(".")[-1] == name and isinstance(value, int)}
    if len(found) > 1:
        raise ValueError(f"the checkpoint's hyper-parameters give {name} as {sorted(found)}; one value is needed")
    return found.pop() if found else default


class Block(nn.Module):
    """Pre-norm attention among all patches, then pre-norm feed-forward with tanh GELU; no biases."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        self.head_size = config.head_size
        self.ln_1, self.ln_2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.attn = nn.ModuleDict(
            {"c_attn": nn.Linear(width, 3 * width, bias=False), "c_proj": nn.Linear(width, width, bias=False)}
        )
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(width, 4 * width, bias=False), "c_proj": nn.Linear(4 * width, width, bias=False)}
        )

    def forward(self, x_NSM: Tensor) -> Tensor:
        heads = self.attn["c_attn"](self.ln_1(x_NSM)).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
        mixed_NHSD = F.scaled_dot_product_attention(*heads.chunk(3, dim=1))
        x_NSM = x_NSM + self.attn["c_proj"](mixed_NHSD.transpose(1, 2).flatten(-2))
        hidden = F.gelu(self.mlp["c_fc"](self.ln_2(x_NSM)), approximate="tanh")
        out: Tensor = x_NSM + self.mlp["c_proj"](hidden)
        return out


class ViT(nn.Module):
    """Vectors of the patches to vectors of the patches, with learned positions."""

    def __init__(self, inputs: int, outputs: int, config: Config) -> None:
        super().__init__()
        rows, cols = config.grid
        self.proj1 = nn.Linear(inputs, config.width)
        self.pos_embeds = nn.Embedding(rows * cols, config.width)
        self.vit = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.output_ln = nn.LayerNorm(config.width)
        self.output_proj = nn.Linear(config.width, outputs)

    def forward(self, x_NSI: Tensor) -> Tensor:
        x_NSM = self.proj1(x_NSI) + self.pos_embeds.weight
        for block in self.vit:
            x_NSM = block(x_NSM)
        out: Tensor = self.output_proj(self.output_ln(x_NSM))
        return out


class ViTTokenizer(nn.Module):
    """Frames to codebook indices and back. Frames are independent."""

    whole = False
    weight_map = WeightMap(
        prefixes=("context_encoders.images.", "tokenizer.", ""),
        keys={"codebook.weight": ("vq_vae._embedding.weight",)},
        # A mask of ones, and what only training needed.
        ignore=("{}.attn_mask", "patch_gan.{}", "target_patchgan.{}", "lpips_model.{}"),
    )

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        pixels = len(MEAN) * config.patch**2
        self.encoder = ViT(pixels, config.latent, config)
        self.codebook = nn.Embedding(config.codebook, config.latent)
        self.decoder = ViT(config.latent, pixels, config)

    @property
    def patch(self) -> int:
        return self.config.patch

    @property
    def stride(self) -> int:
        """Frames per token frame."""
        return 1

    def encode(self, video_BTCHW: Tensor) -> Tensor:
        if tuple(video_BTCHW.shape[-2:]) != self.config.size:
            given, wanted = ("x".join(map(str, side)) for side in (video_BTCHW.shape[-2:], self.config.size))
            raise ValueError(f"frames of {given} pixels given; this tokenizer takes {wanted} (height x width)")
        with torch.inference_mode():
            ids_NS = self.nearest(self.latents(self.scale(video_BTCHW.flatten(0, 1))))
        return ids_NS.reshape(*video_BTCHW.shape[:2], *self.config.grid).clone()

    def decode(self, tokens_BTHW: Tensor, state: MutableMapping[str, Tensor]) -> Tensor:
        """Every frame stands alone: `state` stays empty."""
        with torch.inference_mode():
            pixels_NCHW = self.pixels(tokens_BTHW.flatten(0, 1).flatten(1)).float()
            mean, std = self._statistics()
            # uint8 by truncation, as the reference does
            bytes_NCHW = ((pixels_NCHW * std + mean).clamp(0, 1) * 255).to(torch.uint8)
        return bytes_NCHW.reshape(*tokens_BTHW.shape[:2], *bytes_NCHW.shape[1:]).clone()

    def scale(self, bytes_NCHW: Tensor) -> Tensor:
        """uint8 to what the encoder takes: mean 0 and deviation 1 over ImageNet, per channel."""
        mean, std = self._statistics()
        return ((bytes_NCHW.float() / 255 - mean) / std).to(self.codebook.weight.dtype)

    def latents(self, pixels_NCHW: Tensor) -> Tensor:
        """The encoder's vector of every patch, of length 1, (N, S, latent)."""
        (rows, cols), (height, width), patch = self.config.grid, self.config.size, self.patch
        padded = F.pad(pixels_NCHW, (0, cols * patch - width, 0, rows * patch - height))
        patches_NSI = F.unfold(padded, patch, stride=patch).transpose(1, 2)  # each patch by channel, row, column
        return F.normalize(self.encoder(patches_NSI).float(), dim=-1)

    def nearest(self, latents_NSL: Tensor) -> Tensor:
        """Index of the closest codebook vector, (N, S)."""
        return (latents_NSL @ F.normalize(self.codebook.weight.float(), dim=-1).T).argmax(-1)

    def pixels(self, ids_NS: Tensor) -> Tensor:
        """Decoded frames as `scale` gives them, the padding cut off."""
        (rows, cols), (height, width), patch = self.config.grid, self.config.size, self.patch
        patches_NSI = self.decoder(F.normalize(self.codebook(ids_NS), dim=-1))
        whole = F.fold(patches_NSI.transpose(1, 2), (rows * patch, cols * patch), patch, stride=patch)
        return whole[..., :height, :width]

    def _statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of the channels, made where they are needed: a loaded module has no buffers of its own."""
        device = self.codebook.weight.device
        return torch.tensor(MEAN, device=device)[:, None, None], torch.tensor(STD, device=device)[:, None, None]


VARIANTS = {
    "vit": Config(width=1024, layers=12, head_size=64, latent=32, codebook=16384),
    "tiny": Config(width=32, layers=2, head_size=16, latent=8, codebook=256, size=(90, 150)),
}
