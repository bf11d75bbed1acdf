"""Benchmarks and random weights on a real GPU: events for a clock, memory, the driver."""

from __future__ import annotations

import time

import pytest
import torch

from diagonal.evaluation.speed.world import Case, WorldSettings, measure
from diagonal.generation.clock import Clock
from diagonal.generation.world import load
from diagonal.planning.plan import Order

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
CUDA = torch.device("cuda")


def test_events_and_the_wall_clock_agree() -> None:
    clock = Clock(CUDA)
    square = torch.randn(4096, 4096, device=CUDA)
    for _ in range(2):  # the first sets up cuBLAS
        clock.wait()
        began, marks = time.perf_counter(), [clock.mark()]
        for _ in range(5):
            for _ in range(20):
                square @ square
            marks.append(clock.mark())
        times = clock.milliseconds(marks)
        wall = 1e3 * (time.perf_counter() - began)
    assert len(times) == 5 and sum(times) == pytest.approx(wall, rel=0.1)


def test_an_interval_on_a_gpu_can_be_waited_for_and_lasts_as_long_as_the_work() -> None:
    clock, square = Clock(CUDA), torch.randn(4096, 4096, device=CUDA)
    square @ square
    clock.wait()
    intervals = [interval for _, interval in clock.timed(square @ square for _ in range(3))]
    assert all(isinstance(interval.ready, torch.cuda.Event) for interval in intervals)
    assert all(interval.seconds() > 1e-5 for interval in intervals)
    last = intervals[-1].ready
    assert last is not None and last.query()  # it was waited for


def test_a_case_is_measured_with_memory_and_driver() -> None:
    world = load("cosmos/tiny", "random", device=CUDA, dtype=torch.bfloat16)
    assert {(p.device.type, p.dtype) for p in world.model.parameters()} == {("cuda", torch.bfloat16)}
    again = load("cosmos/tiny", "random", device=CUDA, dtype=torch.bfloat16)
    for one, two in zip(world.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, two)
    (numbers,) = measure([Case(world, Order.of("diagonal:k=2,d=2"))], WorldSettings(frames=16))
    assert numbers["peak_gb"] > 0 and numbers["driver"] and numbers["device"] == torch.cuda.get_device_name(CUDA)
    assert numbers["bandwidth_gbs"] > 100
    assert numbers["fps"] == pytest.approx(1e3 * 16 / (numbers["steps"] * numbers["mean_ms"]))
