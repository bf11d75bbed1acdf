"""Streamed = whole, pixels in = tokens in, saved = loaded, batch = singles: the Python interface on a tiny world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diagonal
from diagonal import Order, Raster, Sampling, World
from diagonal.generation.token_session import TokenSession
from diagonal.media.draw import test_card as picture
from diagonal.worlds import vpt


@pytest.fixture(scope="module")
def world() -> World:
    return diagonal.load("mcar/tiny")


ACTIONS = vpt.parse("forward,left+jump,yaw=20")
GREEDY = Sampling(temperature=0)


def test_streamed_frames_are_the_generated_clip(world: World) -> None:
    prompt = picture(*world.size)
    stream = world.stream(prompt, ACTIONS, schedule="diagonal:k=1", seed=5)
    pieces = list(stream)
    clip = world.generate(prompt, ACTIONS, schedule="diagonal:k=1", seed=5)
    assert [piece.index for piece in pieces] == [1, 2, 3]
    np.testing.assert_array_equal(np.concatenate([piece.frames for piece in pieces]), clip.frames)
    assert clip.frames.shape == (3, 224, 384, 3)
    assert clip.frames.dtype == np.uint8
    assert clip.tokens.shape == (3, 14, 24)
    assert stream.calls == clip.calls == sum(piece.calls for piece in pieces) == 3 * (13 + 24)


def test_frames_arrive_while_the_video_is_made(world: World) -> None:
    stream = world.stream(picture(*world.size), ACTIONS, schedule="diagonal:k=2")
    ran: list[int] = []
    stream.on_call = lambda: ran.append(1)
    next(iter(stream))
    assert stream.calls is not None and len(ran) == stream.calls // stream.frames


def test_token_prompts_are_the_encoded_picture(world: World) -> None:
    prompt = picture(*world.size)
    tokens, batched = world.encode(prompt)
    assert not batched
    by_pixels = world.generate(prompt, ACTIONS, sampling=GREEDY)
    by_tokens = world.generate(tokens[0], ACTIONS, sampling=GREEDY)
    assert torch.equal(by_pixels.tokens, by_tokens.tokens)


def test_a_batch_of_prompts_is_each_prompt_alone(world: World) -> None:
    prompts = torch.randint(512, (3, 2, 14, 24), generator=torch.Generator().manual_seed(0))
    actions = [vpt.parse(text) for text in ("noop,forward", "noop,back", "noop,left")]
    together = world.generate(prompts, actions, seed=11)
    assert together.frames.shape == (3, 1, 224, 384, 3)
    for index in range(3):
        alone = world.generate(prompts[index], actions[index], seed=11 + index)
        assert torch.equal(alone.tokens, together.tokens[index])
        np.testing.assert_allclose(alone.frames, together.frames[index], atol=1)


def test_actions_change_the_video(world: World) -> None:
    prompt = picture(*world.size)
    first, second = (world.generate(prompt, vpt.parse(text), sampling=GREEDY) for text in ("forward", "back"))
    assert not torch.equal(first.tokens, second.tokens)


def test_no_actions_means_doing_nothing(world: World) -> None:
    prompt = picture(*world.size)
    still = world.generate(prompt, vpt.parse("noop*2"), sampling=GREEDY)
    assert torch.equal(world.generate(prompt, frames=2, sampling=GREEDY).tokens, still.tokens)


def test_the_default_length_fills_the_window(world: World) -> None:
    assert world.stream(picture(*world.size)).frames == 15


def test_longer_videos_slide_past_the_window(world: World) -> None:
    """17 new frames: one window of 16, then one that keeps 8 and adds 2. The same as continuing by hand."""
    prompt = picture(*world.size)
    actions = vpt.parse("forward*9,left*8")
    stream = world.stream(prompt, actions, sampling=GREEDY)
    assert isinstance(stream, TokenSession)
    assert stream.calls == 17 * 37
    tokens = torch.cat([piece.tokens for piece in stream])
    start, _ = world.encode(prompt)
    first = world.generate(prompt, actions[:15], sampling=GREEDY)
    assert torch.equal(tokens[:15], first.tokens)
    kept = torch.cat([start[0], first.tokens])[-8:]
    rest = world.generate(kept, actions[8:], sampling=GREEDY)
    assert torch.equal(tokens[15:], rest.tokens)


def test_a_saved_world_loads_and_generates_the_same(world: World, tmp_path: Path) -> None:
    folder = world.save_pretrained(tmp_path / "saved")
    for source in (folder, folder / "model.safetensors"):
        loaded = diagonal.load("mcar/tiny", weights=source)
        assert loaded.weights == str(source)
        prompt = picture(*world.size)
        expected = world.generate(prompt, ACTIONS, seed=2)
        again = loaded.generate(prompt, ACTIONS, seed=2)
        assert torch.equal(expected.tokens, again.tokens)
        np.testing.assert_array_equal(expected.frames, again.frames)


def test_random_weights_are_labelled_and_repeat(world: World) -> None:
    assert world.weights == "random"
    again, other = diagonal.load("mcar/tiny"), diagonal.load("mcar/tiny", seed=1)
    assert torch.equal(world.model.head.weight, again.model.head.weight)
    assert not torch.equal(world.model.head.weight, other.model.head.weight)


def test_loading_leaves_the_global_random_state_alone() -> None:
    torch.manual_seed(123)
    expected = torch.rand(3)
    torch.manual_seed(123)
    diagonal.load("mcar/tiny")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"prompt": np.zeros((1, 100, 100, 3), np.uint8)}, "height 224 and width 384"),
        ({"prompt": np.zeros((1, 224, 384, 3), np.float32)}, "uint8"),
        ({"prompt": np.zeros((224, 384), np.uint8)}, "takes uint8 RGB frames"),
        ({"prompt": torch.zeros(1, 13, 24, dtype=torch.long)}, "prompt tokens have shape"),
        ({"prompt": torch.full((1, 14, 24), 512)}, "0 to 511"),
        ({"prompt": torch.zeros(1, 14, 24)}, "whole numbers"),
        ({"prompt": torch.zeros(0, 14, 24, dtype=torch.long)}, "holds no frames"),
        ({"prompt": np.zeros((0, 224, 384, 3), np.uint8)}, "holds no frames"),
        ({"frames": 2}, "3 actions given for a video of 3 frames, which needs 2"),
        ({"frames": 0}, "at least 1"),
        ({"actions": []}, "at least 1"),
        ({"actions": [ACTIONS, ACTIONS]}, "2 lists of actions given for 1 prompts"),
        ({"seed": [1, 2]}, "2 seeds given for 1 prompts"),
        ({"schedule": "spiral"}, "unknown schedule"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(world: World, change: dict[str, Any], word: str) -> None:
    arguments: dict[str, Any] = {"prompt": picture(*world.size), "actions": ACTIONS} | change
    with pytest.raises(ValueError, match=word):
        world.stream(arguments.pop("prompt"), arguments.pop("actions"), **arguments)


def test_a_schedule_may_be_text_an_object_or_a_whole_order(world: World) -> None:
    prompt = picture(*world.size)
    clips = [
        world.generate(prompt, ACTIONS[:1], schedule=schedule, sampling=GREEDY)
        for schedule in ("raster", Raster(), Order(Raster()))
    ]
    assert all(torch.equal(clip.tokens, clips[0].tokens) for clip in clips)


def test_models_without_public_weights_say_where_to_look() -> None:
    with pytest.raises(ValueError, match=r"mcar/700m needs weights.*microsoft/mineworld"):
        diagonal.load("mcar/700m")
