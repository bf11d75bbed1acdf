"""When something happened on a device, without waiting for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment: on a GPU an event in the queue of its current stream, elsewhere the time."""

    at: float
    event: torch.cuda.Event | None = None

    def seconds_since(self, earlier: Mark) -> float:
        """Waits until both have come."""
        if self.event is None or earlier.event is None:
            return self.at - earlier.at
        self.event.synchronize()
        return float(earlier.event.elapsed_time(self.event)) / 1e3


def now(device: torch.device) -> Mark:
    """The moment at which all that was asked of a device so far is done."""
    if device.type != "cuda":
        return Mark(time.perf_counter())
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return Mark(time.perf_counter(), event)


def timed(items: Iterator[T], device: torch.device) -> Iterator[tuple[T, Mark, Mark]]:
    """Each item, with when its making began and ended."""
    began = now(device)
    for item in items:
        yield item, began, now(device)
        began = now(device)
