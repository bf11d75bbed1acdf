"""Videos of models whose chunks are denoised together, each at its own level: MAGI-1.

What a video begins with lies in its chunks. Whole ones are fed before the first call; what is left over stands at the
beginning of the first new chunk, where it is pinned. Of a clip only new latents are handed out. A picture is made anew
with its chunk, and drifts from itself by the last step, as released.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from diagonal.engine.chunks.denoise import Chunk, Text, run
from diagonal.engine.chunks.protocols import Noise
from diagonal.engine.chunks.rollout import settings_of
from diagonal.engine.pipeline.denoiser import Pipelined, Video
from diagonal.engine.pipeline.texts import SpecialTokens
from diagonal.generation.chunk_session import ChunkSource
from diagonal.planning.denoising.quadratic import Quadratic
from diagonal.planning.passes import DISTILLED
from diagonal.planning.presets import Preset


@dataclass(frozen=True, slots=True)
class Beginning:
    """Latents (1, F, C, rows, cols) that a video begins with; those of a picture are made anew."""

    latents_BFCHW: Tensor | None = None
    picture: bool = False

    def whole(self, chunk: int) -> int:
        """Of these, how many are in whole chunks."""
        return 0 if self.latents_BFCHW is None else self.latents_BFCHW.shape[1] // chunk * chunk

    @property
    def shown(self) -> Tensor | None:
        """What is handed out before the first new latent."""
        return None if self.picture else self.latents_BFCHW


def source(
    model: Any, how: Preset, shape: tuple[Any, ...], noise: Noise, begins: Beginning, special: SpecialTokens | None
) -> ChunkSource:
    """The chunks of a video. `shape` is that of all its latents; None in it: without end."""
    _, frames, _, rows, cols = shape
    size, schedule = how.chunk_frames, how.schedule
    assert size is not None and isinstance(schedule, Quadratic)
    whole = begins.whole(size)
    given = None if not whole or begins.latents_BFCHW is None else begins.latents_BFCHW[:, :whole]
    left = None if begins.latents_BFCHW is None else begins.latents_BFCHW[:, whole:]
    chunks = None if frames is None else (frames - whole) // size
    sizes = schedule.sizes() if how.pipeline == DISTILLED else ()
    video = Video(chunks, schedule.steps, how.sees.reach[0], sizes, special)
    settings = settings_of(how, noise, (rows, cols))
    if left is not None and left.shape[1]:
        settings = replace(settings, pinned={0: left})
    hidden = 0 if left is None or begins.picture else left.shape[1]
    device: torch.device = next(model.parameters()).device

    def made(text: Text) -> Iterator[Chunk]:
        for chunk in run(Pipelined(model, video, device), settings, text, frames, given):
            cut = 0 if chunk.index else hidden
            yield replace(chunk, start=chunk.start + cut, latents=chunk.latents[:, cut:])

    total = None if frames is None else sum(how.calls(frames, whole))
    return ChunkSource(made, total, begins.shown)
