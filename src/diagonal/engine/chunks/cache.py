"""A rolling window of keys and values over latent frames: a ring whose first frames, the sink, stay.

Frame f of the video has the slot f while it is one of the sink, and then sink + (f - sink) mod (frames - sink). So the
newest chunk overwrites the oldest frames, nothing is ever moved, and what is visible is always the first part of the
buffer: attention does not ask for the order of its keys, which are stored rotated. The cache has no position of its
own: `at` says which frames are fed, and feeding them again overwrites them.

While the video grows, the sink stays at its place in time and so falls behind the window. With `relative` it moves
along, adjacent to the window: its keys are turned by the distance, once per chunk (`move_sink`). Positions relative to
the window's start give the same attention, since rotary embedding only knows differences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from diagonal.engine.attention import Plain
from diagonal.engine.heads import LatentHeads, joined
from diagonal.engine.kernels import select, select_latents
from diagonal.engine.protocols import CacheSpec


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """Latent frames that a chunk sees, itself included: the first `sink` of the video and the newest others."""

    frames: int
    sink: int = 0
    relative: bool = False  # the sink moves along with the window
    ahead: int = 0  # frames of later chunks that may be in a call together with it: the cache holds so many more

    def __post_init__(self) -> None:
        if not 0 <= self.sink < self.frames:
            raise ValueError(
                f"a window of {self.frames} frames with a sink of {self.sink} given; the window must be larger than "
                "the sink, and the sink 0 or more"
            )
        if self.ahead and self.relative:
            raise ValueError("chunks that overlap cannot have relative positions: the sink has one place for all")

    @property
    def ring(self) -> int:
        """Frames that the cache holds beside the sink."""
        return self.frames - self.sink + self.ahead


class WindowCache:
    """Keys and values of every layer, (layers, B, tokens, H, D)."""

    def __init__(
        self,
        spec: CacheSpec,
        window: WindowSpec,
        frame_tokens: int,
        batch: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        shape = (spec.layers, batch, (window.sink + window.ring) * frame_tokens, spec.kv_heads, spec.head_dim)
        self.window, self.frame_tokens = window, frame_tokens
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros(shape, device=device, dtype=dtype)
        self.restart(0)

    @property
    def batch(self) -> int:
        return self.k.shape[1]

    def restart(self, origin: int) -> None:
        """Count slots from frame `origin` on, which begins the new sink. Earlier frames are forgotten."""
        self.origin = origin
        self._sink_k: Tensor | None = None  # as first written; only where the sink has moved

    def places(self, start: int, frames: int) -> list[int]:
        """The places of frames [start, start + frames) in the buffer."""
        ring = self.window.ring
        if not 1 <= frames <= ring + (0 if start > self.origin else self.window.sink):
            raise ValueError(
                f"{frames} latent frames fed at once; a window of {self.window.frames} with a sink of "
                f"{self.window.sink} holds 1 to {ring}. Enlarge the window, or take smaller chunks"
            )
        sink, first = self.window.sink, start - self.origin
        return [frame if frame < sink else sink + (frame - sink) % ring for frame in range(first, first + frames)]

    def at(self, start: int, frames: int) -> WindowStep:
        """The cache as frames [start, start + frames) see it: they follow those fed so far, or repeat the last."""
        seen = min(start + frames - self.origin, self.window.frames)
        places, tokens = self.places(start, frames), self.frame_tokens
        # Made on the device: nothing is copied there, so nobody waits for it.
        slots = [torch.arange(place * tokens, (place + 1) * tokens, device=self.k.device) for place in places]
        together = places == list(range(places[0], places[0] + frames))
        return WindowStep(self, torch.cat(slots), seen * tokens, places[0] * tokens if together else None)

    def sink_shift(self, start: int, frames: int) -> int:
        """By how many frames the sink moves from its first place, to be adjacent to the window of these frames."""
        end = start + frames - self.origin
        return max(0, end - self.window.frames) if self.window.relative and self.window.sink else 0

    def move_sink(self, turn: Callable[[Tensor], Tensor]) -> None:
        """Replace the sink's keys by `turn` of those first written; rounding does not add up from move to move."""
        tokens = self.window.sink * self.frame_tokens
        if self._sink_k is None:
            self._sink_k = self.k[:, :, :tokens].clone()
        self.k[:, :, :tokens] = turn(self._sink_k)


@dataclass(frozen=True, slots=True)
class WindowStep:
    """The cache in the calls of one chunk: where its tokens go, and how many of the first places are visible."""

    cache: WindowCache
    slots_S: Tensor
    extent: int
    first: int | None = None  # the slots lie together from here on; None: they are scattered
    past: tuple[Tensor, Tensor] | None = None  # what to read instead of the cache, which may have gone on since

    def layer(self, index: int) -> WindowLayer:
        return WindowLayer(self.cache.k[index], self.cache.v[index], self, index)

    def remembered(self) -> WindowStep:
        """The same with a copy of what is visible now: a call that is repeated later, for gradients, sees it again."""
        return replace(
            self, past=(self.cache.k[:, :, : self.extent].clone(), self.cache.v[:, :, : self.extent].clone())
        )


@dataclass(frozen=True, slots=True)
class WindowLayer(Plain):
    """One layer of the cache: keys and values are (B, tokens, H, D)."""

    k: Tensor
    v: Tensor
    step: WindowStep
    index: int

    def attend(self, q_BHSD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor) -> Tensor:
        past_k, past_v = (self.k, self.v) if self.step.past is None else (part[self.index] for part in self.step.past)
        k, v = self._put(self.k, k_BHSD, past_k), self._put(self.v, v_BHSD, past_v)
        mixed = F.scaled_dot_product_attention(q_BHSD.to(k.dtype), k.transpose(1, 2), v.transpose(1, 2))
        return mixed.to(q_BHSD.dtype)

    def attend_latents(self, heads: LatentHeads) -> Tensor:
        """Where a kernel can, keys and values go straight to their places."""
        first, x = self.step.first, heads.qkv_BSC
        if first is None or self.step.past is not None or not select.serves(x):
            return joined(self.attend(*heads.split()))
        k, v = (part[:, first : first + x.shape[1]] for part in (self.k, self.v))
        seen_k, seen_v = (part[:, : self.step.extent] for part in (self.k, self.v))
        q = select_latents.rope_latents(heads, k, v).to(self.k.dtype)
        q_BHSD, k_BHLD, v_BHLD = (part.transpose(1, 2) for part in (q, seen_k, seen_v))
        return joined(select_latents.latent_attention(q_BHSD, k_BHLD, v_BHLD)).to(x.dtype)

    def _put(self, buffer: Tensor, new_BHSD: Tensor, past: Tensor) -> Tensor:
        """Write the new tokens; what is visible after it. Gradients reach the new tokens, and never the past."""
        new, slots, first = new_BHSD.transpose(1, 2).to(buffer.dtype), self.step.slots_S, self.step.first
        if first is None:
            buffer.index_copy_(1, slots, new.detach())
        else:
            buffer[:, first : first + len(slots)] = new.detach()
        visible = past[:, : self.step.extent]
        copied = new.requires_grad or past is not buffer
        return visible.index_copy(1, slots, new) if copied else visible
