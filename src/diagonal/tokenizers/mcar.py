"""MC-AR's image tokenizer: diffusers' `VQModel`, one frame at a time, 16x16 pixels per token.

MineWorld does not publish the config; `vq` is that of aMUSEd's VQ-VAE (Patil et al., 2024), which the paper
names and whose shapes its code implies. Pixels are mapped to [-1, 1] and back with truncation, as it does.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diagonal.catalog.variants import WeightMap
from diagonal.tokenizers.norm import NormSiLU

COMMITMENT = 0.25  # how much the encoder's vectors are drawn to the codes, beside the codes to them


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of a VQ-VAE of that architecture."""

    channels: tuple[int, ...]
    groups: int
    codebook: int
    latent: int = 64
    layers: int = 2

    @property
    def patch(self) -> int:
        return int(2 ** (len(self.channels) - 1))

    def build(self) -> VQTokenizer:
        return VQTokenizer(self)


class VQTokenizer(nn.Module):
    """Frames to codebook indices and back."""

    whole = False
    weight_map = WeightMap(prefixes=("tokenizer.model.", "tokenizer.", "model.", ""), keys={"vq.{}": ("{}",)})

    def __init__(self, config: Config) -> None:
        super().__init__()
        # Imported here: the rest of the library works without diffusers.
        from diffusers import VQModel

        self.config = config
        depth = len(config.channels)
        make: Any = VQModel  # diffusers is not typed
        self.vq: Any = make(
            block_out_channels=config.channels,
            down_block_types=("DownEncoderBlock2D",) * depth,
            up_block_types=("UpDecoderBlock2D",) * depth,
            layers_per_block=config.layers,
            latent_channels=config.latent,
            num_vq_embeddings=config.codebook,
            norm_num_groups=config.groups,
            norm_type="group",
            mid_block_add_attention=False,
            lookup_from_codebook=True,
            force_upcast=True,
        )
        for part in list(self.vq.modules()):
            _norm_with_silu(part)

    @property
    def patch(self) -> int:
        return self.config.patch

    @property
    def stride(self) -> int:
        return 1

    def encode(self, video_BTCHW: Tensor) -> Tensor:
        batch, frames = video_BTCHW.shape[:2]
        dtype = self.vq.quantize.embedding.weight.dtype
        pixels = (video_BTCHW.flatten(0, 1).to(dtype) / 255 - 0.5) / 0.5
        with torch.inference_mode():
            ids_NHW = self.nearest(self.vq.quant_conv(self.vq.encoder(pixels)))
        return ids_NHW.reshape(batch, frames, *ids_NHW.shape[1:]).clone()

    def forward(self, pixels_NCHW: Tensor) -> tuple[Tensor, Tensor]:
        """Frames in [-1, 1] to their reconstructions, and what the codebook asks for: with z the encoder's vectors and
        e the nearest codes, |sg(z) - e|^2 + 0.25 |z - sg(e)|^2. Gradients pass from the codes to z as they are."""
        z_NCHW = self.vq.quant_conv(self.vq.encoder(pixels_NCHW)).float()
        with torch.no_grad():
            ids_NHW = self.nearest(z_NCHW)
        codes = self.vq.quantize.embedding(ids_NHW).permute(0, 3, 1, 2)
        asked = F.mse_loss(codes, z_NCHW.detach()) + COMMITMENT * F.mse_loss(z_NCHW, codes.detach())
        passed = z_NCHW + (codes - z_NCHW).detach()
        made: Tensor = self.vq.decoder(self.vq.post_quant_conv(passed))
        return made, asked

    def nearest(self, latents_NCHW: Tensor) -> Tensor:
        """Index of the closest codebook vector at each place, (N, rows, cols)."""
        vectors = latents_NCHW.permute(0, 2, 3, 1)
        ids = torch.cdist(vectors.flatten(0, 2), self.vq.quantize.embedding.weight).argmin(-1)
        return ids.reshape(vectors.shape[:3])

    def decode(self, tokens_BTHW: Tensor, state: MutableMapping[str, Tensor]) -> Tensor:
        """Every frame stands alone: `state` stays empty."""
        with torch.inference_mode():
            pixels = self.pixels(tokens_BTHW.flatten(0, 1))
            # uint8 by truncation, as the reference does
            bytes_NCHW = ((pixels.float().clamp(-1, 1) + 1) / 2 * 255).to(torch.uint8)
        return bytes_NCHW.reshape(*tokens_BTHW.shape[:2], *bytes_NCHW.shape[1:]).clone()

    def pixels(self, tokens_NHW: Tensor) -> Tensor:
        """Decoded frames in about [-1, 1], (N, C, height, width)."""
        latents = self.vq.quantize.embedding(tokens_NHW).permute(0, 3, 1, 2)
        decoded: Tensor = self.vq.decoder(self.vq.post_quant_conv(latents))
        return decoded


def _norm_with_silu(part: Any) -> None:
    """In a part of diffusers' VQModel that has norms with SiLU behind them, make each pair one layer. Weights keep
    their names."""
    children = dict(part.named_children())
    for norms, act in ((("norm1", "norm2"), "nonlinearity"), (("conv_norm_out",), "conv_act")):
        if isinstance(children.get(act), nn.SiLU):
            for name in norms:
                norm = children[name]
                made = NormSiLU(norm.num_groups, norm.num_channels, norm.eps)
                made.weight, made.bias = norm.weight, norm.bias
                setattr(part, name, made)
            setattr(part, act, nn.Identity())


VARIANTS = {
    "vq": Config(channels=(128, 256, 256, 512, 768), groups=32, codebook=8192),
    "tiny": Config(channels=(8, 8, 8, 16, 16), groups=4, codebook=512),
}
