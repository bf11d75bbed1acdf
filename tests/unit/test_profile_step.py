"""What `benchmarks/profile_step.py` makes of a trace."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.profile_step import summary


def _event(name: str, start: float, took: float, kind: str = "kernel", grid: tuple[int, ...] = (4, 1, 1)) -> Any:
    return {"name": name, "cat": kind, "ts": start, "dur": took, "args": {"grid": list(grid)}}


def test_kernels_are_summed_by_name_and_grid_and_gaps_are_idle() -> None:
    """What runs beside another is counted once: a kernel adds what is between the end of all before it and its own."""
    events = [
        _event("product", 30, 10),  # not in the order of time
        _event("product", 0, 10),
        _event("product", 12, 4, grid=(8, 1, 1)),
        {"name": "cudaGraphLaunch", "cat": "cuda_runtime", "ts": 0, "dur": 500, "args": {}},
        {"name": "Memset", "cat": "gpu_memset", "ts": 15, "dur": 3, "args": {}},  # runs beside the product in part
    ]
    found = summary(events, steps=2)
    names = ("name", "grid", "a_step", "us", "adds", "sum")
    assert [tuple(one[name] for name in names) for one in found["kernels"]] == [
        ("product", "4x1x1", 1, 10, 10, 10),
        ("product", "8x1x1", 0.5, 4, 4, 2),
        ("Memset", "", 0.5, 3, 2, 1),
    ]
    assert found["busy"] == 13
    assert found["idle"] == (2 + 12) / 2
    assert found["steps"] == 2


def test_a_trace_without_a_gpu_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing ran on a GPU"):
        summary([{"name": "aten::mm", "cat": "cpu_op", "ts": 0, "dur": 1, "args": {}}], steps=1)
