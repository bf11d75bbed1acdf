"""The clock of a CPU: what is counted, and what is not. tests/gpu/test_speed.py has that of a GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from diagonal.generation.clock import Clock, Elapsed

CPU = torch.device("cpu")


def test_the_times_between_moments_are_those_of_the_host() -> None:
    clock = Clock(CPU)
    clock.wait()
    marks = [clock.mark()]
    for pause in (0.02, 0.0):
        time.sleep(pause)
        marks.append(clock.mark())
    first, second = clock.milliseconds(marks)
    assert first >= 20 > second >= 0
    assert clock.milliseconds(marks[:1]) == clock.milliseconds([]) == []


def test_what_is_made_is_timed_and_what_is_done_with_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def items() -> Iterator[str]:
        for name, seconds in (("a", 3.0), ("b", 5.0)):
            now[0] += seconds
            yield name

    found = []
    for name, interval in Clock(CPU).timed(items()):
        found.append((name, interval.seconds(), interval.ready))
        now[0] += 100
    assert found == [("a", 3.0, None), ("b", 5.0, None)]


def test_a_device_that_works_within_python_has_the_hosts_clock() -> None:
    clock = Clock(torch.device("mps"))
    assert not clock.cuda
    assert Elapsed(clock.mark(), clock.mark()).seconds() >= 0
