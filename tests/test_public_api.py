"""The public names: a change here is a change for everybody who uses the library."""

from __future__ import annotations

import subprocess
import sys

import diagonal

NAMES = {
    # planning: numpy alone
    "Diagonal",
    "Grid",
    "Layout",
    "Order",
    "Plan",
    "Raster",
    "Sampling",
    "StandIn",
    "Step",
    "Window",
    "make_plan",
    # models
    "VideoModel",
    "Weights",
    "World",
    "load",
    # what is asked for, and what comes
    "Clip",
    "Free",
    "Piece",
    "Request",
    "Session",
    # worlds that are played
    "Arena",
    "LiveSession",
    "Snapshot",
}


def test_these_are_the_public_names() -> None:
    assert set(diagonal.__all__) == NAMES
    for name in NAMES:
        assert diagonal.__getattr__(name).__name__ == name


def test_plans_need_no_torch() -> None:
    code = """
import sys
sys.modules["torch"] = None
import diagonal
layout = diagonal.Layout(diagonal.Grid(2, 3, 4))
plan = diagonal.make_plan(layout, diagonal.Order.of("diagonal:k=1"), known=1)
print(len(plan.steps), diagonal.Sampling().temperature)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["6", "1.0"]
