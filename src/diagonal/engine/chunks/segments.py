"""Long videos in segments (`planning.segments`), each a run of the denoising loop with empty caches.

What a segment knows of the one before may be shown with a little noise: then the seam is copied less sharply. That
noise is drawn once for each segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from diagonal.engine.chunks.denoise import Chunk, DenoiseSettings, Text, run
from diagonal.engine.chunks.protocols import Denoiser, Noise
from diagonal.planning.segments import Segment


def segmented(
    begin: Callable[[], Denoiser],
    settings: DenoiseSettings,
    text: Text,
    plan: Iterable[Segment],
    overlap_level: float,
    given_BFCHW: Tensor | None = None,
) -> Iterator[Chunk]:
    """Yield chunk after chunk of a video in segments. `begin` gives the model with empty caches; `overlap_level` is the
    timestep at which a segment is shown what it knows of the one before, 0.0: clean."""
    asked = _Asked(text)
    known = given_BFCHW
    for segment in plan:
        before, now = asked.last, asked(segment.chunk)
        level = overlap_level if segment.chunk else settings.given_level
        own = replace(settings, noise=_behind(settings.noise, segment.chunk), given_level=level)
        held = None if known is None else known[:, known.shape[1] - segment.known :]
        made = run(begin(), own, _later(asked, segment.chunk, now), segment.frames, held)
        latents = [] if held is None else [held]
        for chunk in made:
            latents.append(chunk.latents)
            changed = chunk.changed or (not chunk.index and before is not None and now is not before)
            yield replace(chunk, index=segment.chunk + chunk.index, start=segment.start + chunk.start, changed=changed)
        known = torch.cat(latents, 1)


@dataclass(slots=True)
class _Asked:
    """Texts by chunk, of which the last that was asked for is kept."""

    text: Text
    last: Tensor | None = None

    def __call__(self, chunk: int) -> Tensor:
        self.last = self.text(chunk)
        return self.last


def _later(asked: Text, first: int, now: Tensor) -> Text:
    """The texts of chunks that are counted from `first`, whose own is known."""
    return lambda chunk: asked(first + chunk) if chunk else now


def _behind(noise: Noise, first: int) -> Noise:
    """The noise of chunks that are counted from `first`."""
    return lambda chunk, step, shape: noise(first + chunk, step, shape)
