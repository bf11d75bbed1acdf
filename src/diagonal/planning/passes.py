"""Which passes of the model a call of MAGI-1's pipeline takes, and how many.

A guided call takes three: with each chunk's text, without it, and of each chunk alone. In the last quarter of a chunk's
steps the one without text counts alone, so a call of such chunks is one pass, and so is one of finished chunks. The
distilled model always takes one.
"""

from __future__ import annotations

from collections.abc import Iterable

from diagonal.planning.denoising import ChunkSchedule
from diagonal.planning.lag import Part, Sees, iterations

GUIDED, DISTILLED = "guided", "distilled"
PIPELINES = (GUIDED, DISTILLED)
QUARTERS = 4


def is_late(step: int, steps: int) -> bool:
    """Whether a step is in the last quarter of so many."""
    return QUARTERS * step >= (QUARTERS - 1) * steps


def passes(pipeline: str, parts: Iterable[Part], steps: int) -> int:
    """Passes of a call with these chunks."""
    early = any(part.moves and not is_late(part.step, steps) for part in parts)
    return 3 if pipeline == GUIDED and early else 1


def pipeline_calls(pipeline: str, schedule: ChunkSchedule, sees: Sees, chunks: int, given: int) -> list[int]:
    """Passes for each of so many new chunks: those after the chunk before it was handed out. A given one takes one."""
    found, since = [0] * chunks, given
    for one in iterations(schedule, chunks, sees):
        since += passes(pipeline, one.parts, len(schedule.levels(0)))
        for chunk in one.finished:
            found[chunk], since = since, 0
    return found


def most_kept(schedule: ChunkSchedule, sees: Sees, chunks: int, given: int = 0) -> int:
    """Finished chunks whose keys and values are in memory at once, at most: those that are read by a chunk in a call or
    by the next one."""
    most = min(given, sees.reach[0] - 1)
    for one in iterations(schedule, chunks, sees):
        live, newest = [part for part in one.parts if part.moves], one.parts[-1].chunk
        reads = [part.chunk + 1 - (part.reach or 1) for part in live]
        if newest < chunks - 1 or not live:
            reads.append(newest + 2 - sees.reach[0])
        most = max(most, (live[0].chunk if live else newest + 1) - max(min(reads), -given))
    return most
