"""One clock for CPU and GPU: moments are marked without waiting, and the time between them is read later.

clock = Clock(device)
for chunk, interval in clock.timed(chunks): ...
interval.seconds()
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch

# Of a GPU an event in its queue, of any other device the host's seconds: there the work runs within Python.
Moment = float | torch.cuda.Event
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Elapsed:
    """From one moment to another."""

    began: Moment
    ended: Moment

    @property
    def ready(self) -> torch.cuda.Event | None:
        """What another stream of the GPU waits for before it uses what was made; None: it is there."""
        return self.ended if isinstance(self.ended, torch.cuda.Event) else None

    def seconds(self) -> float:
        """Its length; waits for its end."""
        if isinstance(self.began, torch.cuda.Event) and isinstance(self.ended, torch.cuda.Event):
            self.ended.synchronize()
            return float(self.began.elapsed_time(self.ended)) / 1e3
        assert not isinstance(self.began, torch.cuda.Event) and not isinstance(self.ended, torch.cuda.Event)
        return self.ended - self.began


class Clock:
    """Moments of a device. Work that was queued on a GPU goes on while they are marked."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def cuda(self) -> bool:
        """Whether the work runs beside Python, not in it."""
        return self.device.type == "cuda"

    def mark(self) -> Moment:
        """The moment at which all that was asked for so far is done, by the stream that is used now."""
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait(self) -> None:
        """Let the device finish."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def milliseconds(self, marks: Sequence[Moment]) -> list[float]:
        """The time from each moment to the next; waits for the last one."""
        return [1e3 * Elapsed(first, second).seconds() for first, second in pairwise(marks)]

    def timed(self, items: Iterable[T]) -> Iterator[tuple[T, Elapsed]]:
        """Each item with the time that it took to make it; what its user does is not counted."""
        began = self.mark()
        for item in items:
            yield item, Elapsed(began, self.mark())
            began = self.mark()
