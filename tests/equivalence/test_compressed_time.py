"""A tokenizer that makes several frames of one token frame, sizes and texts: Cosmos through the Python interface."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import diagonal
from diagonal import Sampling, World
from diagonal.media.draw import test_card as picture
from diagonal.text import encoders as text

GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def world() -> World:
    return diagonal.load("cosmos/tiny")


def _clip(world: World, frames: int, seed: int = 0) -> np.ndarray:
    """A picture that is shifted from frame to frame."""
    card = picture(*world.size)[0]
    return np.stack([np.roll(card, seed + 3 * index, axis=1) for index in range(frames)])


@pytest.mark.parametrize("spec", ["raster", "diagonal:k=1", "diagonal:k=1,d=2", "diagonal:k=2,d=1"])
def test_streamed_frames_are_the_whole_clip_decoded_at_once(world: World, spec: str) -> None:
    """No seam behind the prompt, and none between token frames."""
    prompt = _clip(world, 9)
    pieces = list(world.stream(prompt, schedule=spec, frames=24, seed=3))
    assert [(piece.index, piece.new) for piece in pieces] == [(9, 8), (17, 8), (25, 8)]
    known, _ = world.encode(prompt)
    tokens = torch.cat([known[0], *(piece.tokens for piece in pieces)])
    whole = world.tokenizer.decode(tokens[None], {})[0, 9:].permute(0, 2, 3, 1).numpy()
    assert np.abs(np.concatenate([piece.frames for piece in pieces]).astype(int) - whole).max() <= 1


@pytest.mark.parametrize(("known", "default"), [(1, 32), (9, 24)])
def test_the_window_holds_33_frames(world: World, known: int, default: int) -> None:
    clip = world.generate(_clip(world, known))
    assert clip.frames.shape == (default, *world.size, 3) and len(clip.tokens) == default // 8
    assert world.stream(_clip(world, known)).frames == default


def test_longer_videos_slide_on_tokens(world: World) -> None:
    """48 frames after 9: a window of five token frames, then windows that keep two; never encoded again."""
    prompt = _clip(world, 9)
    clip = world.generate(prompt, frames=48, sampling=GREEDY)
    assert len(clip.frames) == 48 and len(clip.tokens) == 6
    first = world.generate(prompt, frames=24, sampling=GREEDY)
    assert torch.equal(clip.tokens[:3], first.tokens)
    rest = world.generate(first.tokens[-2:], frames=24, sampling=GREEDY)
    assert torch.equal(clip.tokens[3:], rest.tokens)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_frames_overlap_by_any_delay_up_to_a_whole_frame(world: World, k: int) -> None:
    """The paper's k and d: (frames - 1) d + (rows - 1) k + columns steps; row starts read the prompt's last frame."""
    prompts = torch.randint(64, (2, 2, 4, 6), generator=torch.Generator().manual_seed(0))
    whole = 3 * k + 6
    for d in range(1, whole + 1):
        clip = world.generate(prompts, frames=24, schedule=f"diagonal:k={k},d={d}", sampling=GREEDY)
        assert clip.calls == 2 * d + whole and clip.tokens.shape == (2, 3, 4, 6)
        assert not torch.equal(clip.tokens[0], clip.tokens[1])
    apart = world.generate(prompts, frames=24, schedule=f"diagonal:k={k}", sampling=GREEDY)
    assert torch.equal(apart.tokens, clip.tokens)


def test_frame_counts_that_do_not_fit_say_which_do(world: World) -> None:
    with pytest.raises(ValueError, match=r"12 new frames asked for; cosmos/tiny makes 8 at a time"):
        world.stream(_clip(world, 9), frames=12)
    with pytest.raises(ValueError, match=r"8 prompt frames given; cosmos/tiny takes 1 \+ 8n: 1 or 9"):
        world.stream(_clip(world, 8))


def test_other_sizes_have_the_same_weights(world: World) -> None:
    small = world.at(32, 48)
    assert small.size == (32, 48) and world.size == (64, 96)
    assert small.model.head.weight.data_ptr() == world.model.head.weight.data_ptr()
    assert small.generate(_clip(small, 9), frames=8).frames.shape == (8, 32, 48, 3)
    again = small.at(*world.size)
    prompt = _clip(world, 1)
    ours, theirs = (one.generate(prompt, frames=8, sampling=GREEDY) for one in (again, world))
    assert torch.equal(ours.tokens, theirs.tokens)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        ((30, 48), "frames of 30x48 asked for; both sides must be multiples of 16"),
        ((0, 48), "both sides must be multiples of 16"),
        ((1024, 640), "frames of 64x40 tokens given; Cosmos knows positions of up to 40 rows and 64 columns"),
    ],
)
def test_sizes_that_no_position_allows_are_refused(world: World, size: tuple[int, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        world.at(*size)


def test_learned_positions_have_one_size() -> None:
    with pytest.raises(ValueError, match=r"wham/tiny has learned positions of its own frames, \(90, 150\): no others"):
        diagonal.load("wham/tiny").at(100, 100)


def test_a_text_guides_and_no_text_is_a_text_of_zeros() -> None:
    world = diagonal.load("cosmos/tiny-text")
    prompt, rows = _clip(world, 9), torch.randn(10, 24, generator=torch.Generator().manual_seed(0))
    plain, zeros, guided, batch = (
        one.generate(prompt, frames=8, sampling=GREEDY).tokens
        for one in (world, world.guided(torch.zeros(10, 24)), world.guided(9 * rows), world.guided(9 * rows[None]))
    )
    assert torch.equal(plain, zeros) and torch.equal(guided, batch)
    assert not torch.equal(plain, guided)
    with pytest.raises(ValueError, match="cosmos/tiny takes no text"):
        diagonal.load("cosmos/tiny").guided(rows)
    with pytest.raises(ValueError, match=r"text embeddings have shape \(1, 10, 7\)"):
        world.guided(torch.randn(10, 7))
    with pytest.raises(ValueError, match=r"\(1, 600, 24\); .* with 1 to 512 rows"):
        world.guided(torch.randn(600, 24))


def test_zero_rows_behind_a_text_change_no_token() -> None:
    world = diagonal.load("cosmos/tiny-text")
    rows = torch.cat([9 * torch.randn(10, 24, generator=torch.Generator().manual_seed(0)), torch.zeros(3, 24)])
    padded, cut = (one.generate(_clip(world, 9), frames=8).tokens for one in map(world.guided, (rows, rows[:10])))
    assert torch.equal(padded, cut)


def test_a_text_is_encoded_by_the_models_own_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    world = diagonal.load("cosmos/tiny-text")
    rows = torch.randn(1, 5, 24, generator=torch.Generator().manual_seed(1))
    asked = []

    def embed(texts: list[str], encoder: text.Encoder, device: torch.device) -> torch.Tensor:
        asked.append((texts, encoder.source))
        return rows

    monkeypatch.setattr(text, "embed", embed)
    prompt = _clip(world, 9)
    ours, theirs = (one.generate(prompt, frames=8, seed=1).tokens for one in (world.guided("rain"), world.guided(rows)))
    assert torch.equal(ours, theirs) and asked == [(["rain"], "google-t5/t5-11b")]


def test_a_saved_world_loads_and_generates_the_same(tmp_path: Path) -> None:
    for name in ("cosmos/tiny", "cosmos/tiny-text", "wham/tiny"):
        world = diagonal.load(name, seed=4)
        loaded = diagonal.load(name, weights=world.save_pretrained(tmp_path / name.replace("/", "-")))
        prompt = picture(*world.size)
        one, two = (w.generate(prompt, frames=w.tokenizer.stride, sampling=GREEDY) for w in (world, loaded))
        assert torch.equal(one.tokens, two.tokens)
        np.testing.assert_array_equal(one.frames, two.frames)
