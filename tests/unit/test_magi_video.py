"""Videos of MAGI-1 through the library: lengths, beginnings, prompts, seeds, and what is refused before loading."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import diagonal
from diagonal.catalog.names import find
from diagonal.engine.pipeline.texts import SpecialTokens
from diagonal.generation import checks
from diagonal.generation.request import Request
from diagonal.generation.video import VideoModel
from diagonal.planning.presets import PRESETS, Preset
from tests.tiny import build

FAST = "quadratic:steps=4,lag=1"
SIZE = (32, 48)


@pytest.fixture(scope="module")
def model() -> VideoModel:
    return diagonal.load("magi/tiny")


def _latents(model: VideoModel, request: Request) -> Tensor:
    return model.generate(request, output_type="latent").latents


def _clip(frames: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(256, size=(frames, *SIZE, 3), dtype=np.uint8)


def _request(**changes: Any) -> Request:
    given: dict[str, Any] = {"prompt": "a red cat", "num_frames": 48, "schedule": FAST}
    return Request(**(given | changes))


@pytest.mark.parametrize("preset", ["magi", "magi-distilled"])
@pytest.mark.parametrize("schedule", ["4", "8", "12", "quadratic:steps=8,lag=8", "quadratic:steps=8,lag=4"])
def test_chunks_come_as_they_are_done_and_calls_are_as_planned(model: VideoModel, preset: str, schedule: str) -> None:
    session = model.stream("a red cat", num_frames=96, preset=preset, schedule=schedule)
    planned, pieces = session.calls, list(session)
    assert [piece.index for piece in pieces] == [0, 24, 48, 72]
    assert all(piece.frames.shape == (24, *SIZE, 3) and not piece.given for piece in pieces)
    assert planned == sum(piece.calls for piece in pieces)
    assert pieces[0].calls >= pieces[1].calls  # the first chunk costs all its steps, each later one a share of them


def test_any_lag_makes_a_video_of_the_planned_calls_and_that_of_all_steps_is_one_by_one(model: VideoModel) -> None:
    found = {}
    for lag in ("none", "0", "1", "3", "8"):
        session = model.stream(_request(num_frames=144, schedule=f"quadratic:steps=8,lag={lag}"))
        planned, pieces = session.calls, list(session)
        assert planned == sum(piece.calls for piece in pieces), lag
        found[lag] = torch.cat([piece.latents for piece in pieces])
    # A finished chunk is shown in a call of its own, or beside the next one: the same but for rounding.
    torch.testing.assert_close(found["none"], found["8"], atol=1e-3, rtol=1e-3)
    assert not torch.allclose(found["3"], found["8"], atol=1e-2)


def test_the_same_seed_gives_the_same_video_and_another_another(model: VideoModel) -> None:
    first = _latents(model, _request(seed=3))
    assert torch.equal(first, _latents(model, _request(seed=3)))
    assert not torch.allclose(first, _latents(model, _request(seed=4)), atol=1e-2)
    start = torch.randn(12, 16, 4, 6, generator=torch.Generator().manual_seed(0))
    given = _latents(model, _request(latents=start))
    assert torch.equal(given, _latents(model, _request(latents=start, seed=9)))
    assert torch.equal(start, torch.randn(12, 16, 4, 6, generator=torch.Generator().manual_seed(0)))


def test_a_longer_video_begins_like_a_shorter_one(model: VideoModel) -> None:
    """Chunks never see later ones, and without special tokens no chunk knows how many follow."""
    short, long = (_latents(model, _request(num_frames=frames)) for frames in (48, 96))
    torch.testing.assert_close(short, long[:12], atol=1e-5, rtol=1e-5)


def test_without_end_it_is_the_same_video_and_memory_does_not_grow(model: VideoModel) -> None:
    whole = _latents(model, _request(num_frames=144))
    session = model.stream(_request(num_frames=None))
    assert session.calls is None and session.frames is None
    pieces = [next(session) for _ in range(6)]
    session.close()
    latents = torch.cat([piece.latents for piece in pieces])
    torch.testing.assert_close(latents, whole, atol=1e-4, rtol=1e-4)


def test_another_prompt_changes_chunks_from_its_own_on(model: VideoModel) -> None:
    """Those that are under way keep theirs."""
    plain = _latents(model, _request(num_frames=72))
    changed = _latents(model, _request(num_frames=72, prompt_at={1: "a blue dog runs"}))
    assert torch.equal(plain[:6], changed[:6])
    assert (plain[6:12] - changed[6:12]).abs().max() > 1e-3


def test_a_picture_begins_its_chunk_and_a_clip_stands_before_it(model: VideoModel) -> None:
    picture = _clip(1)[0]
    session = model.stream(_request(image=picture))
    assert session.frames == 48
    pieces = list(session)
    assert [len(piece.frames) for piece in pieces] == [24, 24] and pieces[0].given == 0
    encoded = model.vae.encode(torch.from_numpy(picture)[None, None].movedim(-1, -3))[0]
    drift = (pieces[0].latents[:1] - encoded).abs().max()
    assert 0 < drift < (pieces[0].latents[1:2] - encoded).abs().max()
    clip = _clip(32)
    session = model.stream(_request(video=clip, num_frames=72))
    assert session.frames == 40
    pieces = list(session)
    assert [(piece.index, len(piece.frames), piece.given) for piece in pieces] == [(0, 48, 32), (48, 24, 0)]
    encoded = model.vae.encode(torch.from_numpy(clip)[None].movedim(-1, -3))[0]
    assert torch.equal(pieces[0].latents[:8], encoded)
    other = _latents(model, _request(video=_clip(32, seed=1), num_frames=72))
    assert (other[8:] - torch.cat([piece.latents for piece in pieces])[8:]).abs().max() > 1e-3


def test_a_clip_of_whole_chunks_is_fed_and_one_of_less_than_a_chunk_is_pinned(model: VideoModel) -> None:
    for frames, first, fed in ((48, 72, 2), (8, 24, 0)):
        session = model.stream(_request(video=_clip(frames), num_frames=frames // 24 * 24 + 48))
        calls, pieces = session.calls, list(session)
        assert len(pieces[0].frames) == first and pieces[0].given == frames
        assert calls == sum(piece.calls for piece in pieces)
        plain = sum(PRESETS["magi-distilled"].with_schedule(FAST).calls(12))
        assert calls == plain + fed


def test_special_tokens_say_how_many_chunks_follow(model: VideoModel) -> None:
    rows = torch.randn(9, 48, generator=torch.Generator().manual_seed(0))
    plain = _latents(model, _request())
    model.special = SpecialTokens(rows[:8], rows[8])
    try:
        short, long = (_latents(model, _request(num_frames=frames)) for frames in (48, 96))
        session = model.stream(_request(prompt=" ".join(["word"] * 15)))
        with pytest.raises(ValueError, match=r"15 rows of a prompt given beside 2 special tokens; 14 fit: shorten it"):
            next(session)
    finally:
        model.special = None
    assert not torch.allclose(plain, short, atol=1e-3) and not torch.allclose(short, long[:12], atol=1e-3)


def test_bfloat16_is_close_and_fp8_runs() -> None:
    exact = _latents(diagonal.load("magi/tiny"), _request())
    rough = diagonal.load("magi/tiny")
    rough.model.to(torch.bfloat16)
    near = _latents(rough, _request())
    assert near.dtype == torch.float32 and (near - exact).abs().mean() < 0.1 * exact.abs().mean()
    rough.quantize("fp8")
    assert (_latents(rough, _request()) - exact).abs().mean() < 0.3 * exact.abs().mean()


def test_it_is_saved_and_loaded(model: VideoModel, tmp_path: Any) -> None:
    model.save_pretrained(tmp_path)
    again = diagonal.load("magi/tiny", tmp_path)
    for key, value in model.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[key], value), key
    torch.testing.assert_close(_latents(again, _request()), _latents(model, _request()), atol=1e-4, rtol=1e-4)


# What is refused, before a large model is loaded

REFUSED = [
    ({"num_frames": 50}, "num_frames=50 given; 6 latent frames of 4 frames .* 48 or 72"),
    ({"num_frames": 12}, "the nearest is 24"),
    ({"height": 40}, "height=40 given; it must be a multiple of 16: 32 or 48"),
    ({"preset": "self-forcing", "schedule": None}, "magi/4.5b runs under magi, magi-24b, magi-distilled"),
    ({"schedule": "4322222"}, "steps=4322222 given"),
    ({"schedule": "10"}, "must be a multiple of 4"),
    ({"schedule": "quadratic:steps=8,lag=2000"}, "the lag must be 0 to 1000 iterations"),
    ({"schedule": "even:steps=4"}, "a pipeline takes a number of steps"),
    ({"guidance_scale": 3.0}, "only the presets .* have guidance"),
    ({"prompt": ["one", "two"]}, "2 prompts given; magi/4.5b makes one video at a time"),
    ({"prompt_at": {2: "later"}}, "this video has the chunks 0 to 1"),
    ({"prompt": None, "prompt_embeds": torch.zeros(801, 4096)}, r"takes \(rows, 4096\) with 1 to 800 rows"),
    ({"prompt": None, "prompt_embeds": torch.zeros(4, 48)}, r"takes \(rows, 4096\)"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=lambda one: str(one)[:40])
def test_what_does_not_fit_is_refused_before_the_load(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checks.check_request(
            "magi/4.5b", find("models", "magi/4.5b"), _request(**({"height": 32, "width": 48} | changes))
        )


def test_beginnings_that_do_not_fit_are_refused() -> None:
    variant = find("models", "magi/tiny")
    for frames, message in ((6, "6 frames given to begin with; 1 or 4n are needed: 4 or 8"), (0, "0 frames given")):
        with pytest.raises(ValueError, match=message):
            checks.check_request("magi/tiny", variant, _request(video=_clip(frames), num_frames=72))
    with pytest.raises(ValueError, match=r"num_frames=24 given; .* after 6 given latent frames: the nearest is 48"):
        checks.check_request("magi/tiny", variant, _request(video=_clip(32), num_frames=24))
    with pytest.raises(ValueError, match="of height 32 and width 48 is needed"):
        checks.check_request("magi/tiny", variant, _request(image=np.zeros((16, 48, 3), np.uint8)))


def test_other_models_refuse_its_presets(model: VideoModel) -> None:
    with pytest.raises(ValueError, match="wan/tiny runs under diagonal-distillation, "):
        checks.check_request(
            "wan/tiny", find("models", "wan/tiny"), Request(prompt="any", num_frames=21, preset="magi")
        )
    with pytest.raises(ValueError, match="magi/tiny runs under magi, magi-24b, magi-distilled"):
        model.stream("any", num_frames=48, preset="wan")


def test_a_pipeline_needs_its_own_schedule() -> None:
    with pytest.raises(ValueError, match="a pipeline takes a number of steps"):
        Preset(PRESETS["self-forcing"].schedule, chunk_frames=6, solver="euler", pipeline="guided")
    with pytest.raises(ValueError, match="pipeline 'other' is not known; known: guided, distilled"):
        Preset(PRESETS["magi"].schedule, chunk_frames=6, pipeline="other")


def test_a_frame_of_one_token_along_a_side_is_refused() -> None:
    module = build(find("models", "magi/tiny").config)
    with pytest.raises(ValueError, match="1x3 tokens given; this model needs 2 along each side"):
        module.rope(torch.arange(6)[None], 1, 3)
