"""Which implementation serves an operation of diffusion transformers: the other half of `select`."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from diagonal.engine.heads import LatentHeads
from diagonal.engine.kernels import cudnn, reference
from diagonal.engine.kernels.device import serves
from diagonal.engine.kernels.record import chosen
from diagonal.engine.kernels.select import HALVES, SDPA, TORCH, TRITON, by_triton

# x, delta and gate of x + gate * delta, which is still to be added.
OpenSum = tuple[Tensor, Tensor | None, Tensor | None]


def add_norm(total: OpenSum, gain: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + gate * delta, and its LayerNorm * gain + shift."""
    if not by_triton("gated sum + layer norm", total[0]):
        return reference.add_norm(*total, gain, shift, eps)
    from diagonal.engine.kernels.triton import latents

    return latents.add_norm(*total, gain, shift, eps)


def open_sum(x: Tensor, delta: Tensor, gate: Tensor) -> OpenSum:
    """x + gate * delta, left open where the kernel of the next norm adds it too."""
    chosen("gated sum", "in the kernel of the next norm" if serves(x) else TORCH)
    return (x, delta, gate) if serves(x) else (reference.add_gated(x, delta, gate), None, None)


def text_attention(q_BHSD: Tensor, k_BHLD: Tensor, v_BHLD: Tensor, rows_B: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over all rows of a text, of which those from `rows` on are padding, all alike."""
    dtype = q_BHSD.dtype
    if dtype in HALVES and dtype == k_BHLD.dtype == v_BHLD.dtype and serves(q_BHSD):
        from diagonal.engine.kernels.triton import split_kv, text_attention

        if q_BHSD.shape[3] in split_kv.HEAD_DIMS:
            chosen("text attention", TRITON)
            return text_attention.attend_text(q_BHSD, k_BHLD, v_BHLD, rows_B)
    chosen("text attention", TORCH)
    return F.scaled_dot_product_attention(q_BHSD, k_BHLD, v_BHLD)


def rope_latents(heads: LatentHeads, k_out_BSHD: Tensor, v_out_BSHD: Tensor) -> Tensor:
    """Queries (B, S, H, D), normed and rotated; keys, also those, and values are written to the outputs. Only for
    tensors that kernels serve: plain torch has gradients to keep."""
    from diagonal.engine.kernels.triton import latents

    chosen("latent RoPE and cache write", TRITON)
    return latents.rope(heads, k_out_BSHD, v_out_BSHD)


def latent_attention(q_BHSD: Tensor, k_BHLD: Tensor, v_BHLD: Tensor) -> Tensor:
    """Attention of the queries of a call to all keys, (B, H, S, D); their keys may be split."""
    splits = cudnn.splits_for(q_BHSD, k_BHLD) if serves(q_BHSD) else 1
    chosen("latent attention", SDPA if splits == 1 else f"cuDNN, {splits} splits reduced by Triton")
    if splits == 1:
        return F.scaled_dot_product_attention(q_BHSD, k_BHLD, v_BHLD)
    return cudnn.attend(q_BHSD, k_BHLD, v_BHLD, splits)
