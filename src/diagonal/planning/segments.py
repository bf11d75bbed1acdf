"""Long videos in segments: each is a video of its own that begins with the last latent frames of the one before.

    segment     1234567890
    the next           8901234567        10 frames each, 3 of which are known from the one before

Positions begin at 0 in every segment, and nothing else is remembered, so that a video may be longer than a model was
trained for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diagonal.planning.denoising import ChunkSchedule
from diagonal.planning.lag import Sees, calls_between


@dataclass(frozen=True, slots=True)
class Segment:
    """Latent frames [start, end) of a video, the first of which are known. An end of None: without end."""

    start: int
    known: int
    end: int | None
    chunk: int  # its first chunk, counted in the whole video

    @property
    def frames(self) -> int | None:
        """Latent frames of it, known ones included."""
        return None if self.end is None else self.end - self.start


@dataclass(frozen=True, slots=True)
class Cut:
    """How a video is cut: latent frames of a chunk, of a segment at most (None: all in one), and of what a segment
    knows of the one before."""

    chunk: int
    frames: int | None = None
    overlap: int = 0

    def segments(self, frames: int | None, given: int = 0) -> Iterator[Segment]:
        """The segments of a video of so many latent frames, so many of which are given; None: without end."""
        if self.frames is None:
            yield Segment(0, given, frames, 0)
            return
        made, known, chunk = given, given, 0
        while frames is None or made < frames:
            if known > self.frames - self.chunk:
                known = self.overlap
            new = (self.frames - known) // self.chunk * self.chunk
            new = new if frames is None else min(new, frames - made)
            yield Segment(made - known, known, made + new, chunk)
            made, known, chunk = made + new, self.overlap, chunk + new // self.chunk

    @staticmethod
    def parts(known: int, chunk: int) -> list[int]:
        """The chunks in which known latent frames are shown: a shorter one first, where they do not divide."""
        first = known % chunk
        return [first] * bool(first) + [chunk] * (known // chunk)

    def calls(self, schedule: ChunkSchedule, sees: Sees, frames: int, given: int = 0) -> list[int]:
        """Calls for each chunk of a video: those after the chunk before it was handed out. What a segment knows is
        shown in chunks too, but where all is seen in every call."""
        found = []
        for one in self.segments(frames, given):
            assert one.frames is not None
            counts = calls_between(schedule, (one.frames - one.known) // self.chunk, sees)
            counts[0] += 0 if sees.whole else len(self.parts(one.known, self.chunk))
            found += counts
        return found
