"""Videos of models whose chunks are denoised together, each at its own level: MAGI-1.

What a video begins with lies in its chunks. Whole ones are fed before the first call; what is left over stands at the
beginning of the first new chunk, where it is pinned. Of a clip only new latents are handed out. A picture is made anew
with its chunk, and drifts from itself by the last step, as released.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from diagonal.engine.chunks.denoise import Chunk, Text, run
from diagonal.engine.chunks.protocols import Noise
from diagonal.engine.chunks.rollout import settings_of
from diagonal.engine.pipeline.denoiser import Pipelined, Video
from diagonal.engine.pipeline.protocols import ChunkModel
from diagonal.engine.pipeline.texts import SpecialTokens
from diagonal.generation.chunk_session import ChunkSource
from diagonal.planning.denoising.quadratic import Quadratic
from diagonal.planning.passes import DISTILLED
from diagonal.planning.presets import Preset


@dataclass(frozen=True, slots=True)
class Beginning:
    """Latents (1, F, C, rows, cols) that a video begins with: of a picture, or of a clip."""

    latents_BFCHW: Tensor | None = None
    picture: bool = False

    def whole(self, chunk: int) -> int:
        """How many of them are in whole chunks."""
        return 0 if self.latents_BFCHW is None else self.latents_BFCHW.shape[1] // chunk * chunk

    def parts(self, chunk: int) -> tuple[Tensor | None, Tensor | None]:
        """Those in whole chunks, and those that are left over."""
        if self.latents_BFCHW is None:
            return None, None
        whole = self.whole(chunk)
        before, after = self.latents_BFCHW[:, :whole], self.latents_BFCHW[:, whole:]
        return before if before.shape[1] else None, after if after.shape[1] else None


@dataclass(frozen=True, slots=True)
class Piped:
    """What is made: the preset, latent frames in all (None: without end), height and width of latents, and what stands
    before captions."""

    how: Preset
    frames: int | None
    size: tuple[int, int]
    special: SpecialTokens | None = None


def pipelined(model: ChunkModel, piped: Piped, noise: Noise, begins: Beginning) -> ChunkSource:
    """The chunks of a video."""
    how, frames, schedule = piped.how, piped.frames, piped.how.schedule
    assert how.chunk_frames is not None and isinstance(schedule, Quadratic)
    whole = begins.whole(how.chunk_frames)
    given, left = begins.parts(how.chunk_frames)
    chunks = None if frames is None else (frames - whole) // how.chunk_frames
    sizes = schedule.sizes() if how.pipeline == DISTILLED else ()
    video = Video(chunks, schedule.steps, how.sees.reach[0], sizes, piped.special)
    settings = settings_of(how, noise, piped.size)
    if left is not None:
        settings = replace(settings, pinned={0: left})
    hidden = 0 if left is None or begins.picture else left.shape[1]

    def made(text: Text) -> Iterator[Chunk]:
        for chunk in run(Pipelined(model, video), settings, text, frames, given):
            cut = 0 if chunk.index else hidden
            yield replace(chunk, start=chunk.start + cut, latents=chunk.latents[:, cut:])

    total = None if frames is None else sum(how.calls(frames, whole))
    return ChunkSource(made, total, None if begins.picture else begins.latents_BFCHW)
