"""What the calls of a video compute: which chunks, how many latent frames of each, and how many of them it sees.

for call in calls(find("skyreels"), frames=25):  # 50 levels, of which guidance makes two calls each
    for part in call.parts: part.chunk, part.level, part.frames, part.seen
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diagonal.planning.lag import Part, iterations
from diagonal.planning.presets import Preset
from diagonal.planning.segments import Cut, Segment


@dataclass(frozen=True, slots=True)
class Worked:
    """A chunk in a call. Given latents have negative numbers."""

    chunk: int
    level: float
    frames: int  # latent frames of it
    seen: int  # that it sees, its own included
    step: int | None = None  # of its steps; None: it waits, or is shown for those that see it


@dataclass(frozen=True, slots=True)
class Call:
    """Chunks that go through the model together: once, or with guidance twice."""

    segment: int
    parts: tuple[Worked, ...]
    finished: tuple[int, ...] = ()  # chunks that are handed out after it


def calls(preset: Preset, frames: int, given: int = 0) -> Iterator[Call]:
    """The calls for a video of so many latent frames, so many of which are given, in order."""
    preset = preset.for_frames(frames)
    for index, segment in enumerate(preset.cut.segments(frames, given)):
        yield from _Segment(preset, segment, index).calls()


@dataclass(frozen=True, slots=True)
class _Segment:
    """The calls of one segment."""

    preset: Preset
    segment: Segment
    index: int

    @property
    def size(self) -> int:
        return self.preset.cut.chunk

    def calls(self) -> Iterator[Call]:
        known, whole = self.segment.known, self.preset.sees.whole
        level = self.preset.overlap_level if self.index else 0.0
        sizes = Cut.parts(known, self.size)
        begins = [Worked(place - len(sizes), level, size, 0) for place, size in enumerate(sizes)]
        if not whole:
            end = 0
            for one in begins:
                end += one.frames
                yield Call(self.index, (Worked(one.chunk, level, one.frames, self._seen(end, None)),))
        chunks = ((self.segment.frames or 0) - known) // self.size
        for iteration in iterations(self.preset.schedule, chunks, self.preset.sees):
            parts = tuple(self._part(part) for part in iteration.parts)
            if whole:
                parts = tuple(Worked(one.chunk, level, one.frames, self.segment.frames or 0) for one in begins) + parts
            yield Call(self.index, parts, tuple(self.segment.chunk + chunk for chunk in iteration.finished))

    def _part(self, part: Part) -> Worked:
        end = self.segment.known + (part.chunk + 1) * self.size
        step = part.step if part.moves else None
        return Worked(self.segment.chunk + part.chunk, part.level, self.size, self._seen(end, part.reach), step)

    def _seen(self, end: int, reach: int | None) -> int:
        """Latent frames that a chunk sees that ends there."""
        if self.preset.sees.whole:
            return self.segment.frames or 0
        return min(end, self.preset.window_frames or end, end if reach is None else reach * self.size)
