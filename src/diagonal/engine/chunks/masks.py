"""Which latent frame sees which, when a whole video goes through a causal diffusion model at once: training.

Masks are boolean (frames, frames), True where the row's frame sees the column's; `dense` and `flex` make memories of
them for the tokens of those frames.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from diagonal.engine.attention import Dense, Flex
from diagonal.engine.chunks.cache import WindowSpec


def block_causal(frames: int, chunk: int, window: WindowSpec | None = None) -> Tensor:
    """A frame sees its own chunk and all before it; with a window, only what a `WindowCache` would hold then."""
    index = torch.arange(frames)
    end = ((index // chunk + 1) * chunk)[:, None]
    seen = index < end
    if window is not None:
        seen &= (index < window.sink) | (index >= end - (window.frames - window.sink))
    return seen


def teacher_forcing(frames: int, chunk: int) -> Tensor:
    """For a clean copy of the video followed by a noisy one: clean chunks are block-causal among themselves, and a
    noisy chunk sees the clean ones before it and itself."""
    place = torch.arange(frames) // chunk
    clean = place[:, None] >= place
    before, own = place[:, None] > place, place[:, None] == place
    return torch.cat([torch.cat([clean, torch.zeros_like(clean)], dim=1), torch.cat([before, own], dim=1)])


def dense(mask_FF: Tensor, frame_tokens: int) -> Dense:
    """The mask as a matrix over tokens: for short videos."""
    return Dense(mask_FF.repeat_interleave(frame_tokens, 0).repeat_interleave(frame_tokens, 1))


def flex(mask_FF: Tensor, frame_tokens: int) -> Flex:
    """The mask through FlexAttention, which never makes the matrix over tokens."""

    def visible(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return mask_FF[q // frame_tokens, k // frame_tokens]

    size = len(mask_FF) * frame_tokens
    return Flex(create_block_mask(visible, None, None, size, size, device=str(mask_FF.device)))
