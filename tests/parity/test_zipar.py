"""The window schedule against ZipAR's own scheduler, forward by forward (tests/golden/zipar)."""

from __future__ import annotations

import pytest

from diagonal import Grid, Layout, Window, make_plan
from tests.conftest import golden_json

CASES = golden_json("zipar/trace.json")["cases"]
# A window as wide as the row, and a window of 1, fail in the reference itself.
SOUND = {name: case for name, case in CASES.items() if case.get("final_ids_match_raster")}


@pytest.mark.parametrize("name", SOUND)
def test_forwards_and_positions_are_zipars(name: str) -> None:
    size, window = name.split("_w")
    rows, cols = (int(side) for side in size.split("x"))
    plan = make_plan(Layout(Grid(1, rows, cols), prefix=1), Window(int(window)))
    assert len(plan.steps) == SOUND[name]["forwards"]
    if "trace" in SOUND[name]:
        # Re-feeding included: the true end of a row is fed in the forward after it is decoded.
        assert [step.slot.tolist() for step in plan.steps] == [forward["pos"] for forward in SOUND[name]["trace"]]
