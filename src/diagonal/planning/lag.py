"""When every chunk of a video is denoised: step s of chunk c in iteration s + c * lag. An iteration is one call of the
model over all chunks that are under way.

    lag         iterations of four chunks with four steps            calls
    none        0123                                                  16  one after the other, as without a lag
                    0123
                        0123
                            0123
    2           0123                                                  10
                  0123
                    0123
                      0123
    0           0123, four times                                       4

A chunk that is done is shown once more, clean or at its context level, so that the cache holds what later chunks are to
see: in a call of its own where chunks follow one another, and else beside the chunks of the next iteration. The last
chunk of a video is then never shown. Where chunks have different numbers of steps, chunk c begins min(lag, steps) after
the one before, and so late that it is not done before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from diagonal.planning.denoising import ChunkSchedule


@dataclass(frozen=True, slots=True)
class Sees:
    """What a chunk sees: itself, and of the chunks before it all that the window holds, or a number of them.

    `reach` counts chunks, its own included, for equal shares of its steps: (5, 4, 3, 2) are five in the first quarter
    and two in the last. `context_reach` is that of a chunk that is shown for the cache. `whole`: every chunk sees all
    of the video, later ones too, and so nothing can be cached: chunks that wait and chunks that are done are in every
    call.
    """

    reach: tuple[int, ...] = ()  # (): all
    context_reach: int | None = None
    whole: bool = False

    def __post_init__(self) -> None:
        given = [one for one in (*self.reach, self.context_reach) if one is not None]
        if any(one < 1 for one in given):
            raise ValueError(f"a reach of {min(given)} chunks given; a chunk sees at least itself: 1 or more")
        if self.whole and given:
            raise ValueError("a reach given for chunks that see the whole video; give one of the two")

    def chunks(self, step: int, steps: int) -> int | None:
        """How many chunks are seen in a step of so many, its own included; None: all."""
        if step >= steps:
            return self.context_reach
        return self.reach[step * len(self.reach) // steps] if self.reach else None


SEES_ALL = Sees()


@dataclass(frozen=True, slots=True)
class Part:
    """A chunk in an iteration."""

    chunk: int
    step: int  # counted from 0; WAITS before its first, and behind its last one it is done: it is shown for the cache
    level: float  # the timestep at which it is shown; 0.0: clean
    reach: int | None = None  # chunks that it sees, its own included; None: all that are kept
    moves: bool = True  # it is one of its steps: the call takes it to the next level


WAITS = -1


@dataclass(frozen=True, slots=True)
class Iteration:
    """One call of the model: the chunks in it, the oldest first."""

    parts: tuple[Part, ...]
    begins: tuple[int, ...] = ()  # chunks that are in a call for the first time
    finished: tuple[int, ...] = ()  # chunks that can be handed out after it


def iterations(schedule: ChunkSchedule, chunks: int | None, sees: Sees = SEES_ALL) -> Iterator[Iteration]:
    """The calls for so many chunks, in order; None: without end."""
    if sees.whole:
        if chunks is None:
            raise ValueError("a video without end asked for, of chunks that see all of it; give its length")
        return _whole(schedule, chunks)
    if schedule.lag is None:
        return _one_by_one(schedule, chunks, sees)
    if schedule.lag == 0 and chunks is None:
        raise ValueError("a video without end asked for with lag=0, where all chunks begin at once; give its length")
    return _overlapping(schedule, chunks, sees)


def overlaps(schedule: ChunkSchedule) -> bool:
    """Whether chunks are in calls together."""
    return schedule.lag is not None


def most_together(schedule: ChunkSchedule, chunks: int, sees: Sees = SEES_ALL) -> int:
    """The most chunks that are in one call."""
    return max(len(one.parts) for one in iterations(schedule, chunks, sees))


def calls_between(schedule: ChunkSchedule, chunks: int, sees: Sees = SEES_ALL) -> list[int]:
    """Calls for each chunk: those after the chunk before it was handed out, up to its own."""
    found, since = [0] * chunks, 0
    for one in iterations(schedule, chunks, sees):
        since += 1
        for chunk in one.finished:
            found[chunk], since = since, 0
    return found


def _one_by_one(schedule: ChunkSchedule, chunks: int | None, sees: Sees) -> Iterator[Iteration]:
    """A chunk begins when the one before it is done, and shown."""
    for chunk in count() if chunks is None else range(chunks):
        levels, context = schedule.levels(chunk), schedule.context_level(chunk)
        steps = len(levels)
        parts = [Part(chunk, step, level, sees.chunks(step, steps)) for step, level in enumerate(levels)]
        if context is not None:
            parts.append(Part(chunk, steps, context, sees.chunks(steps, steps), moves=False))
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            yield Iteration((part,), (chunk,) if index == 0 else (), (chunk,) if last else ())


def _overlapping(schedule: ChunkSchedule, chunks: int | None, sees: Sees) -> Iterator[Iteration]:
    """Chunks that are under way, and those that were done in the iteration before, for the cache."""
    starts, live, shown = _starts(schedule, chunks), list[_Live](), list[Part]()
    following = next(starts, None)
    for iteration in count():
        begins = []
        while following is not None and following.start == iteration:
            live.append(following)
            begins.append(following.chunk)
            following = next(starts, None)
        if not live:
            return  # what is left to be shown is seen by nobody
        parts = [*shown, *(one.part(iteration, sees) for one in live)]
        done = [one for one in live if one.end == iteration]
        live = [one for one in live if one.end > iteration]
        yield Iteration(tuple(parts), tuple(begins), tuple(one.chunk for one in done))
        shown = [one.shown(context, sees) for one in done if (context := schedule.context_level(one.chunk)) is not None]


def _whole(schedule: ChunkSchedule, chunks: int) -> Iterator[Iteration]:
    """All chunks in every call: waiting ones at the level they begin at, done ones at their context level."""
    every = list(_starts(schedule, chunks))
    for iteration in range(max(one.end for one in every) + 1):
        parts = []
        for one in every:
            if iteration < one.start:
                parts.append(Part(one.chunk, WAITS, one.levels[0], moves=False))
            elif iteration > one.end:
                parts.append(one.shown(schedule.context_level(one.chunk) or 0.0, Sees(whole=True)))
            else:
                parts.append(one.part(iteration, Sees(whole=True)))
        begins = tuple(one.chunk for one in every) if iteration == 0 else ()
        yield Iteration(tuple(parts), begins, tuple(one.chunk for one in every if one.end == iteration))


@dataclass(frozen=True, slots=True)
class _Live:
    """When a chunk is under way: iterations from `start` to `end`."""

    chunk: int
    start: int
    levels: tuple[float, ...]

    @property
    def end(self) -> int:
        return self.start + len(self.levels) - 1

    def part(self, iteration: int, sees: Sees) -> Part:
        step = iteration - self.start
        return Part(self.chunk, step, self.levels[step], sees.chunks(step, len(self.levels)))

    def shown(self, context: float, sees: Sees) -> Part:
        steps = len(self.levels)
        return Part(self.chunk, steps, context, sees.chunks(steps, steps), moves=False)


def _starts(schedule: ChunkSchedule, chunks: int | None) -> Iterator[_Live]:
    before: _Live | None = None
    for chunk in count() if chunks is None else range(chunks):
        levels = schedule.levels(chunk)
        start = 0
        if before is not None:
            lag = len(before.levels) if schedule.lag is None else min(schedule.lag, len(before.levels))
            start = max(before.start + lag, before.end - len(levels) + 1)
        before = _Live(chunk, start, levels)
        yield before
