"""Cosmos' video tokenizer: streaming is exact, its state bounded, ids are numbers of levels, bad clips are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal.tokenizers.cosmos import VARIANTS, Config, CosmosTokenizer, haar, unhaar
from tests.tiny import build

TINY = VARIANTS["tiny"]


@pytest.fixture(scope="module")
def coder() -> CosmosTokenizer:
    return loud(TINY)


def loud(config: Config) -> CosmosTokenizer:
    """Random weights as large as a trained network's: the default ones hardly let the past through."""
    made: CosmosTokenizer = build(config)
    for parameter in made.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    return made


def _ids(config: Config = TINY, frames: int = 9, batch: int = 2, seed: int = 0) -> Tensor:
    return torch.randint(config.codebook, (batch, frames, 2, 3), generator=torch.Generator().manual_seed(seed))


def _video(frames: int = 9, height: int = 32, width: int = 48) -> Tensor:
    return torch.randint(256, (1, frames, 3, height, width), generator=torch.Generator().manual_seed(0)).byte()


# Streaming


@pytest.mark.parametrize("cuts", [[1] * 9, [9], [2, 3, 4], [1, 8], [5, 1, 3]])
def test_any_cuts_give_the_whole_clip(coder: CosmosTokenizer, cuts: list[int]):
    ids, state = _ids(), dict[str, Tensor]()
    whole = coder.pixels(ids, {})
    parts = [coder.pixels(part, state) for part in ids.split(cuts, dim=1)]
    assert whole.shape == (2, 65, 3, 32, 48)
    assert [part.shape[1] for part in parts] == [8 * cuts[0] - 7, *(8 * cut for cut in cuts[1:])]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-4, rtol=0)


def test_streamed_bytes_are_those_of_the_whole_clip(coder: CosmosTokenizer):
    ids, state = _ids(), dict[str, Tensor]()
    streamed = torch.cat([coder.decode(frame, state) for frame in ids.split(1, dim=1)], dim=1)
    assert (streamed.int() - coder.decode(ids, {}).int()).abs().max() <= 1


def test_the_past_matters_and_the_future_does_not(coder: CosmosTokenizer):
    """Were the state dropped, or a later frame seen, streaming would be another video."""
    ids = _ids(frames=4)
    other = ids.clone()
    other[:, 3] = (other[:, 3] + 1) % TINY.codebook
    whole, changed = coder.pixels(ids, {}), coder.pixels(other, {})
    torch.testing.assert_close(changed[:, :17], whole[:, :17], atol=1e-4, rtol=0)
    assert (changed[:, 17:] - whole[:, 17:]).abs().max() > 0.01
    state: dict[str, Tensor] = {}
    coder.pixels(_ids(frames=3, seed=1), state)
    assert (coder.pixels(ids[:, 3:], state) - whole[:, 17:]).abs().max() > 0.01


def test_encoding_a_clips_start_gives_the_start_of_its_ids(coder: CosmosTokenizer):
    video = _video(33)
    whole = coder.latents(video)
    for frames in (1, 9, 17):
        torch.testing.assert_close(
            coder.latents(video[:, :frames]), whole[:, :, : (frames + 7) // 8], atol=1e-4, rtol=0
        )


def test_the_state_does_not_grow_with_the_video(coder: CosmosTokenizer):
    state: dict[str, Tensor] = {}
    sizes = []
    for frame in _ids(frames=9).split(1, dim=1):
        coder.pixels(frame, state)
        sizes.append(sum(value.numel() for value in state.values()))
    assert sizes[0] < sizes[3] == sizes[8]
    assert state["mid.attn_1.1.k"].shape[1] == TINY.window - 1
    assert all(value.shape[1] == 2 for name, value in state.items() if "attn" not in name)


def test_the_window_bounds_attention_and_leaves_published_lengths_alone():
    """Five token frames see all of their past; with a longer window, only what comes later changes."""
    short, long = (loud(replace(TINY, window=window)) for window in (5, 9))
    ids = _ids()
    near, far = short.pixels(ids, {}), long.pixels(ids, {})
    torch.testing.assert_close(near[:, :33], far[:, :33], atol=1e-4, rtol=0)
    assert (near[:, 33:] - far[:, 33:]).abs().max() > 1e-3


# Numbers


@pytest.mark.parametrize("name", ["tiny", "dv8x16x16"])
def test_all_ids_come_back_from_their_codes(name: str):
    config = VARIANTS[name]
    coder: Any = build(replace(config, width=8))
    ids = torch.arange(config.codebook).reshape(1, -1, 8, 8)
    codes = coder.codes(ids)
    assert codes.min() == -1 and codes.max() <= 1
    counts = torch.tensor(config.levels)[:, None, None, None]
    half, offset = (counts - 1) * 1.001 / 2, (counts % 2 == 0) / 2
    latents = ((codes * (counts // 2) + offset) / half).atanh() - (offset / half).atanh()
    assert torch.equal(coder.ids(latents), ids)


def test_extreme_latents_stay_in_the_codebook(coder: CosmosTokenizer):
    latents = torch.full((1, 3, 1, 1, 1), 1e9)
    assert coder.ids(latents).item() == TINY.codebook - 1
    assert coder.ids(-latents).item() == 0


def test_the_haar_transform_comes_back_and_its_first_band_is_the_mean():
    video = torch.randn(2, 4, 6, 8, 3, generator=torch.Generator().manual_seed(0))
    bands = haar(video)
    assert bands.shape == (2, 2, 3, 4, 24)
    torch.testing.assert_close(unhaar(bands), video)
    means = torch.nn.functional.avg_pool3d(video.permute(0, 4, 1, 2, 3), 2)
    torch.testing.assert_close(bands[..., :3], means.permute(0, 2, 3, 4, 1))


def test_a_clip_has_one_token_frame_and_one_for_each_eight_frames(coder: CosmosTokenizer):
    assert (coder.patch, coder.stride) == (16, 8)
    for frames in (1, 9, 17):
        ids = coder.encode(_video(frames))
        assert ids.shape == (1, 1 + frames // 8, 2, 3) and ids.dtype == torch.int64
        assert ids.min() >= 0 and ids.max() < TINY.codebook


def test_results_can_be_used_in_training(coder: CosmosTokenizer):
    """Tensors made under inference mode could not be saved for a backward pass."""
    ids = coder.encode(_video())
    assert not ids.is_inference() and not coder.decode(ids, {}).is_inference()


def test_weights_of_less_precision_are_computed_with():
    coder = loud(TINY).bfloat16()
    ids, state = _ids(frames=3), dict[str, Tensor]()
    streamed = torch.cat([coder.decode(frame, state) for frame in ids.split(1, dim=1)], dim=1)
    assert streamed.shape == (2, 17, 3, 32, 48) and streamed.dtype == torch.uint8
    assert coder.encode(streamed).shape == ids.shape


# What is refused


@pytest.mark.parametrize("frames", [2, 8, 10, 16])
def test_a_clip_of_another_length_is_refused(coder: CosmosTokenizer, frames: int):
    with pytest.raises(ValueError, match=rf"{frames} frames given; a clip must have 1 \+ 8n: 1, 9"):
        coder.encode(_video(frames))


@pytest.mark.parametrize(("height", "width"), [(33, 48), (32, 40)])
def test_frames_that_are_no_whole_tokens_are_refused(coder: CosmosTokenizer, height: int, width: int):
    with pytest.raises(ValueError, match=rf"frames of {height}x{width} given; both sides must be multiples of 16"):
        coder.encode(_video(1, height, width))
