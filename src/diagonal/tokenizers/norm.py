"""The norm of convolutional tokenizers: over groups of channels, with SiLU behind it."""

from __future__ import annotations

from torch import Tensor, nn

from diagonal.engine.kernels import select_pixels


class NormSiLU(nn.GroupNorm):
    """silu(group norm): one kernel's work where there is one. Frames are (N, C, H, W), best laid out channels last."""

    def forward(self, x_NCHW: Tensor) -> Tensor:
        return select_pixels.group_norm_silu(x_NCHW, self.weight, self.bias, self.num_groups, self.eps)
