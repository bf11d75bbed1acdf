"""Recording as a stage: a game is played until all shards are there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from diagonal.training.stages import Line, Stage
from diagonal.worlds import vizdoom


def recording(part: str, folder: Path, planned: Sequence[vizdoom.Shard], workers: int) -> Stage:
    """Record the shards of a part, `train` or `held-out`, by so many processes; those that are there are kept."""

    def lines(_: None) -> Iterator[Line]:
        done = 0
        for new in vizdoom.record(planned, workers):
            done += new
            yield {"step": done}

    return Stage(f"record {part}", sum(shard.frames for shard in planned), folder, lines)
