"""Several chunks in one call over the cache of finished ones: what each of them sees is data.

    memory = together(cache, [Span(10, 15), Span(15, 20, reach=10)])

All write their keys and values first. Then every chunk attends to the places of its own frames, of the chunks before
it in the call, and of what the window holds: a range of the buffer as a rule, for which no mask is made. Later chunks
are never seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from diagonal.engine.attention import Plain
from diagonal.engine.chunks.cache import WindowCache

Places = slice | Tensor  # of the buffer: a range, or one by one


@dataclass(frozen=True, slots=True)
class Span:
    """Latent frames [start, end) of a chunk, and how many frames it sees at most, its own included. None: all that
    the window holds, the sink too."""

    start: int
    end: int
    reach: int | None = None


def together(cache: WindowCache, spans: Sequence[Span]) -> OverlapStep:
    """The cache as these chunks see it, which follow one another without a gap."""
    first, last, device = spans[0].start, spans[-1].end, cache.k.device
    written = _range(cache.places(first, last - first), cache.frame_tokens, device)
    seen = tuple(_range(_seen(cache, span), cache.frame_tokens, device) for span in spans)
    return OverlapStep(cache, written, tuple((span.end - span.start) * cache.frame_tokens for span in spans), seen)


def _seen(cache: WindowCache, span: Span) -> list[int]:
    """The places of the frames that a chunk sees, in the order of the buffer."""
    window, end = cache.window, span.end - cache.origin
    ring = window.frames - window.sink
    if span.reach is not None:
        frames = list(range(max(0, end - span.reach, end - ring - window.sink), end))
    else:
        frames = [*range(min(window.sink, end)), *range(max(window.sink, end - ring), end)]
    return sorted(place for frame in frames for place in cache.places(frame + cache.origin, 1))


def _range(places: Sequence[int], tokens: int, device: torch.device) -> Places:
    """Tokens of frames at these places."""
    if list(places) == list(range(places[0], places[0] + len(places))):
        return slice(places[0] * tokens, (places[-1] + 1) * tokens)
    return torch.cat([torch.arange(place * tokens, (place + 1) * tokens, device=device) for place in places])


@dataclass(frozen=True, slots=True)
class OverlapStep:
    """The cache in a call of several chunks: where their tokens go, how many each has, and what each sees."""

    cache: WindowCache
    written: Places
    tokens: tuple[int, ...]
    seen: tuple[Places, ...]

    def layer(self, index: int) -> OverlapLayer:
        return OverlapLayer(self.cache.k[index], self.cache.v[index], self)


@dataclass(frozen=True, slots=True)
class OverlapLayer(Plain):
    """One layer of the cache: keys and values are (B, tokens, H, D)."""

    k: Tensor
    v: Tensor
    step: OverlapStep

    def attend(self, q_BHSD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor) -> Tensor:
        for buffer, new_BHSD in ((self.k, k_BHSD), (self.v, v_BHSD)):
            _put(buffer, self.step.written, new_BHSD.transpose(1, 2))
        mixed = []
        for q, places in zip(q_BHSD.split(self.step.tokens, 2), self.step.seen, strict=True):
            k, v = (buffer[:, places].transpose(1, 2) for buffer in (self.k, self.v))
            mixed.append(F.scaled_dot_product_attention(q.to(k.dtype), k, v))
        return torch.cat(mixed, dim=2).to(q_BHSD.dtype)


def _put(buffer: Tensor, places: Places, new_BSHD: Tensor) -> None:
    if isinstance(places, slice):
        buffer[:, places] = new_BSHD.detach()
    else:
        buffer.index_copy_(1, places, new_BSHD.detach().to(buffer.dtype))
