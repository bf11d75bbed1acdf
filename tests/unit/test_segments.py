"""How long videos are cut, and what the calls of any video compute: the plan is what the engine then does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagonal.planning.denoising import parse
from diagonal.planning.presets import PRESETS, Preset, find
from diagonal.planning.segments import Cut, Segment
from diagonal.planning.work import calls

SKYREELS = Cut(5, 25, 5)


def test_the_windows_of_skyreels_are_its_published_ones() -> None:
    """257 frames are 65 latents in 3 windows, 737 are 185 in 9."""
    assert list(SKYREELS.segments(65)) == [Segment(0, 0, 25, 0), Segment(20, 5, 45, 5), Segment(40, 5, 65, 9)]
    assert len(list(SKYREELS.segments(185))) == 9
    assert list(SKYREELS.segments(25)) == [Segment(0, 0, 25, 0)] and next(SKYREELS.segments(15)).end == 15


@given(st.integers(1, 4), st.integers(0, 3), st.integers(1, 5), st.integers(1, 30), st.integers(0, 40))
def test_segments_make_every_chunk_once_and_know_only_what_is_made(
    chunk: int, more: int, overlap: int, chunks: int, known: int
) -> None:
    most = overlap + chunk * (1 + more)
    cut = Cut(chunk, most, overlap)
    frames, made, first = known + chunk * chunks, known, 0
    for one in cut.segments(frames, known):
        assert one.end is not None and one.frames is not None
        assert one.start + one.known == made and one.start >= 0 and one.chunk == first
        assert one.frames <= most and (one.frames - one.known) % chunk == 0 and one.end > made
        made, first = one.end, first + (one.frames - one.known) // chunk
    assert (made, first) == (frames, chunks)


def test_without_segments_all_is_one() -> None:
    assert list(Cut(3).segments(21, 3)) == [Segment(0, 3, 21, 0)]
    (endless,) = Cut(3).segments(None)
    assert endless.frames is None
    segments = SKYREELS.segments(None, 1)
    assert [next(segments) for _ in range(2)] == [Segment(0, 1, 21, 0), Segment(16, 5, 41, 4)]


@pytest.mark.parametrize("name", [name for name, one in PRESETS.items() if not one.pipeline])
@pytest.mark.parametrize("known", [0, 1, 7])
def test_the_calls_of_a_preset_are_counted_as_they_are_made(name: str, known: int) -> None:
    """Of pipelines of their own, which make several passes of some calls: tests/unit/test_pipeline.py."""
    preset = PRESETS[name]
    frames = known + 30 if preset.chunk_frames else 30
    known = known if preset.chunk_frames else 0
    worked = list(calls(preset, frames, known))
    assert sum(preset.calls(frames, known)) == (1 + preset.guided) * len(worked)
    finished = [chunk for call in worked for chunk in call.finished]
    assert finished == list(range(len(preset.calls(frames, known))))
    moves = sum(part.step is not None for call in worked for part in call.parts)
    assert moves == sum(len(preset.schedule.levels(chunk)) for chunk in finished)
    assert all(1 <= part.frames <= part.seen <= frames for call in worked for part in call.parts)


def test_the_cached_wave_computes_154_chunks_where_all_in_every_call_are_250() -> None:
    parts = {name: sum(len(call.parts) for call in calls(find(name), 25)) for name in ("skyreels", "skyreels-full")}
    assert parts == {"skyreels": 154, "skyreels-full": 250}
    assert sum(find("skyreels").calls(25)) == sum(find("skyreels-full").calls(25)) == 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"segment_frames": 24}, "segments of 24 latent frames that begin with 5"),
        ({"segment_frames": 5}, "segments of 5 latent frames that begin with 5"),
        ({"overlap_frames": 4}, "segments of 25 latent frames that begin with 4"),
        ({"overlap_frames": 0}, "begin with 0 of the one before"),
        ({"overlap_level": 1000.0}, "an overlap at timestep 1000"),
        ({"solver": "heun"}, "solver 'heun' is not known; known: renoise, unipc"),
        ({"schedule": parse("4322222")}, "presets with a solver take a number of steps"),
        ({"window_frames": 10, "relative_rope": True}, "a lag given with relative positions"),
    ],
)
def test_presets_that_cannot_be_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(find("skyreels"), **change)


def test_digits_and_named_schedules_keep_the_solver() -> None:
    preset = find("skyreels").with_schedule("50")
    assert isinstance(preset, Preset) and preset.schedule == parse("forcing:steps=50,lag=5")
    assert sum(preset.calls(25)) == 140
    assert find("skyreels").with_schedule("forcing:steps=8,lag=2").solver == "unipc-in-place"
    with pytest.raises(ValueError, match="has no other than its own"):
        find("skyreels").with_context("100")
