"""SkyReels-V2 as a model by name: sessions, long videos, what it begins with, what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

import diagonal
from diagonal import Request
from diagonal.catalog.names import find
from diagonal.generation.video import VideoModel
from diagonal.planning import presets
from diagonal.planning.denoising import parse

PLAIN = Request(
    prompt="a red cat", num_frames=57, height=32, width=32, schedule="forcing:steps=4,lag=2", decoder="none"
)
MODES = ["skyreels", "skyreels-full"]


@pytest.fixture(scope="module")
def model() -> VideoModel:
    return diagonal.load("skyreels/tiny")


def latents(model: VideoModel, request: Request) -> Any:
    return model.generate(request, output_type="latent").latents


def test_a_name_brings_its_own_preset_licence_and_size() -> None:
    for name, source in (("1.3b", "Skywork/SkyReels-V2-DF-1.3B-540P"), ("14b", "Skywork/SkyReels-V2-DF-14B-540P")):
        variant = find("models", f"skyreels/{name}")
        assert variant.licence == "Skywork Community License" and variant.source == source
        assert (variant.size, variant.frames, variant.fps, variant.preset) == ((544, 960), 97, 24, "skyreels-full")
    with torch.device("meta"):
        counts = [
            sum(p.numel() for p in find("models", f"skyreels/{n}").config.build().parameters()) for n in ("1.3b", "14b")
        ]
    # The frame rate's 16.5 M of the 1.3B are folded into a bias.
    assert [round(count / 1e6) for count in counts] == [1419, 14288]


def test_without_a_preset_a_model_is_run_as_its_own(model: VideoModel) -> None:
    own, named = (latents(model, replace(PLAIN, preset=preset)) for preset in (None, "skyreels-full"))
    assert torch.equal(own, named)
    assert diagonal.load("wan/tiny").stream(replace(PLAIN, num_frames=33, schedule=None)).calls == 9  # 4 + 3 + 2


@pytest.mark.parametrize("preset", MODES)
def test_chunks_stream_as_they_finish_and_a_seed_gives_the_same_video(model: VideoModel, preset: str) -> None:
    session = model.stream(replace(PLAIN, preset=preset, decoder="vae"))
    pieces = list(session)
    assert [(piece.index, len(piece.frames), piece.calls) for piece in pieces] == [(0, 17, 8), (17, 20, 4), (37, 20, 4)]
    assert session.calls == sum(piece.calls for piece in pieces) == 16
    again = latents(model, replace(PLAIN, preset=preset))
    assert torch.equal(torch.cat([piece.latents for piece in pieces]), again)
    assert not torch.equal(again, latents(model, replace(PLAIN, preset=preset, seed=1)))


@pytest.mark.parametrize("preset", MODES)
def test_samples_of_a_batch_do_not_know_of_each_other(model: VideoModel, preset: str) -> None:
    both = latents(model, replace(PLAIN, preset=preset, prompt=["a red cat", "a blue dog"], seed=[3, 4]))
    alone = latents(model, replace(PLAIN, preset=preset, prompt="a blue dog", seed=4))
    torch.testing.assert_close(both[1], alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("preset", MODES)
def test_a_long_video_begins_as_a_shorter_one_and_needs_no_end(model: VideoModel, preset: str) -> None:
    short = latents(model, replace(PLAIN, preset=preset, num_frames=97))
    session = model.stream(replace(PLAIN, preset=preset, num_frames=137))
    pieces = list(session)
    long = torch.cat([piece.latents for piece in pieces])
    assert torch.equal(long[:25], short) and len(long) == 35 and session.calls == sum(p.calls for p in pieces)
    again = latents(model, replace(PLAIN, preset=preset, num_frames=137))
    assert torch.equal(long, again)  # what is shown of the overlap is noised, with noise of the seed
    if preset == "skyreels":
        endless = islice(model.stream(replace(PLAIN, preset=preset, num_frames=None)), 6)
        assert torch.equal(torch.cat([piece.latents for piece in endless]), long[:30])


def test_the_noise_over_an_overlap_counts(model: VideoModel) -> None:
    own = presets.find("skyreels").with_schedule(str(PLAIN.schedule))
    some, none = (
        latents(model, replace(PLAIN, preset=replace(own, overlap_level=level), schedule=None, num_frames=117))
        for level in (20.0, 0.0)
    )
    assert torch.equal(some[:25], none[:25]) and not torch.equal(some[25:], none[25:])


@pytest.mark.parametrize("preset", MODES)
def test_a_picture_or_a_clip_is_what_it_begins_with(model: VideoModel, preset: str) -> None:
    picture = np.full((32, 32, 3), 200, np.uint8)
    session = model.stream(replace(PLAIN, preset=preset, image=picture, num_frames=41, decoder="vae"))
    pieces = list(session)
    assert (pieces[0].given, len(pieces[0].frames), session.frames) == (1, 21, 40)
    assert session.calls == sum(piece.calls for piece in pieces)
    dark = latents(model, replace(PLAIN, preset=preset, image=picture // 4, num_frames=41))
    light = torch.cat([piece.latents for piece in pieces])
    assert (dark[1:] - light[1:]).abs().max() > 1e-5


def test_a_prompt_may_change_over_the_cache_and_not_where_all_is_seen(model: VideoModel) -> None:
    session = model.stream(replace(PLAIN, preset="skyreels", prompt_at={2: "a blue dog"}))
    pieces = list(session)
    assert session.calls == sum(piece.calls for piece in pieces) == 18  # one more, with the prompt and without
    assert [change.applied_at for change in session.changes] == [2]
    with pytest.raises(ValueError, match="prompt_at given"):
        model.stream(replace(PLAIN, prompt_at={2: "a blue dog"}))
    with pytest.raises(ValueError, match="the prompt cannot change"):
        model.stream(PLAIN).update("a blue dog")


def test_guidance_of_one_is_no_guidance(model: VideoModel) -> None:
    one = model.generate(replace(PLAIN, guidance_scale=1.0), output_type="latent")
    assert one.calls == 8 and not torch.equal(one.latents, latents(model, PLAIN))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_frames": 121}, "num_frames=121 given; 5 latent frames .* the nearest is 117 or 137"),
        ({"num_frames": 97, "image": np.zeros((32, 32, 3), np.uint8)}, "the nearest is 81 or 101"),
        ({"schedule": "4322222"}, None),
        ({"schedule": "diagonal"}, "presets with a solver take a number of steps"),
        ({"schedule": "forcing:lag=-1"}, "the lag must be 0 to 1000"),
        ({"schedule": "forcing:steps=0"}, "steps=0 given; it must be 1 to 1000"),
        ({"num_frames": None}, "num_frames is needed: all frames are in every call"),
        ({"preset": "skyreels-sync", "image": np.zeros((32, 32, 3), np.uint8)}, "all frames at once cannot have it"),
    ],
)
def test_requests_that_leave_noise_or_cannot_be_met_are_refused(
    model: VideoModel, change: dict[str, Any], message: str | None
) -> None:
    with pytest.raises(ValueError, match=message or r"steps=4322222 given"):
        model.stream(replace(PLAIN, **change))


def test_other_models_may_overlap_too() -> None:
    """Four steps of Self-Forcing, each chunk two steps behind the one before: 10 calls, not 20."""
    wan = diagonal.load("wan/tiny")
    request = Request(prompt="a", num_frames=45, height=32, width=32, preset="self-forcing", decoder="none")
    session = wan.stream(replace(request, schedule="even:steps=4,lag=2"))
    assert [piece.calls for piece in session] == [4, 2, 2, 2] and session.calls == 10
    window = replace(presets.find("diagonal-distillation"), schedule=parse("diagonal:lag=1"))
    endless = wan.stream(replace(request, num_frames=None, preset=window))
    assert [piece.calls for piece in islice(endless, 7)] == [4, 0, 0, 1, 1, 1, 1]
