"""Which passes MAGI-1's calls take, and how much of the past is kept."""

from __future__ import annotations

import pytest

from diagonal.planning.denoising.quadratic import Quadratic
from diagonal.planning.lag import Part, Sees
from diagonal.planning.passes import DISTILLED, GUIDED, is_late, most_kept, passes, pipeline_calls
from diagonal.planning.presets import PRESETS

SEES = Sees(reach=(5, 4, 3, 2), context_reach=1)


@pytest.mark.parametrize("steps", [4, 8, 12, 16, 64])
def test_the_last_quarter_of_steps_is_late(steps: int) -> None:
    assert [is_late(step, steps) for step in range(steps)] == [False] * (3 * steps // 4) + [True] * (steps // 4)


def test_a_guided_call_takes_three_passes_while_any_chunk_is_early() -> None:
    late, early, clean = Part(0, 7, 100.0), Part(1, 5, 500.0), Part(0, 8, 0.0, moves=False)
    assert passes(GUIDED, [late, early], 8) == passes(GUIDED, [clean, early], 8) == 3
    assert passes(GUIDED, [late], 8) == passes(GUIDED, [clean, late], 8) == passes(GUIDED, [clean], 8) == 1
    assert passes(DISTILLED, [late, early], 8) == 1


@pytest.mark.parametrize("steps", [4, 8, 12, 16, 32, 64])
@pytest.mark.parametrize("window", [1, 2, 4])
def test_the_first_chunk_costs_its_steps_and_each_later_one_a_share(steps: int, window: int) -> None:
    counts = pipeline_calls(DISTILLED, Quadratic(steps, steps // window), SEES, 6, 0)
    assert counts == [steps] + [steps // window] * 5
    assert (
        pipeline_calls(DISTILLED, Quadratic(steps, steps // window), SEES, 6, 2) == [steps + 2] + [steps // window] * 5
    )


def test_guidance_of_a_window_of_four_costs_three_passes_until_the_last_chunk() -> None:
    """Its last quarter has no newer chunk beside it."""
    assert pipeline_calls(GUIDED, Quadratic(8), SEES, 5, 0) == [24, 6, 6, 6, 2]
    assert sum(PRESETS["magi"].calls(30)) == 3 * 64 + 3 * 3 * 16 + 16


@pytest.mark.parametrize(
    ("window", "chunks", "given", "most"),
    [(4, 1, 0, 0), (4, 9, 0, 1), (4, 9, 6, 4), (4, 1, 2, 2), (2, 9, 0, 3), (1, 9, 0, 4), (1, 3, 0, 2), (1, 2, 9, 4)],
)
def test_as_many_finished_chunks_are_kept_as_are_read(window: int, chunks: int, given: int, most: int) -> None:
    assert most_kept(Quadratic(8, 8 // window), SEES, chunks, given) == most
