"""Sessions of token worlds and of diffusion models: one protocol, one result, the same words for the same things."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import diagonal
from diagonal import Clip, Piece, Request, Session
from diagonal.engine.warm import Warm

REQUEST = Request(prompt="a red cat", num_frames=33, height=32, width=48)


def _tokens(name: str, batch: int | None, frames: int) -> tuple[Any, Any]:
    world = diagonal.load(name)
    config: Any = world.variant.config
    shape = (2, config.rows, config.cols) if batch is None else (batch, 2, config.rows, config.cols)
    prompt = torch.randint(config.codebook, shape, generator=torch.Generator().manual_seed(0))

    def begin() -> Session:
        return world.stream(prompt, frames=frames)

    return begin, lambda: world.generate(prompt, frames=frames)


def _latents(batch: int | None) -> tuple[Any, Any]:
    model = diagonal.load("wan/tiny")
    request = REQUEST if batch is None else replace(REQUEST, prompt=["a red cat", "a blue dog"])

    def begin() -> Session:
        return model.stream(request)

    return begin, lambda: model.generate(request)


CASES = {
    "doom-like": lambda batch: _tokens("mcar/tiny", batch, 3),
    "frames of eight": lambda batch: _tokens("cosmos/tiny", batch, 16),
    "diffusion": _latents,
}


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("case", CASES)
def test_every_session_says_what_will_come_and_yields_it(case: str, batch: int | None) -> None:
    begin, generate = CASES[case](batch)
    session, clip = begin(), generate()
    frames, calls = session.frames, session.calls
    pieces = list(session)
    assert all(isinstance(piece, Piece) for piece in pieces) and isinstance(clip, Clip)
    assert [piece.index + piece.given + piece.new for piece in pieces[:-1]] == [piece.index for piece in pieces[1:]]
    assert sum(piece.new for piece in pieces) == frames
    assert sum(piece.calls for piece in pieces) == calls == clip.calls
    assert all(piece.model_seconds > 0 and piece.decode_seconds > 0 for piece in pieces)
    joined = np.concatenate([piece.frames for piece in pieces], axis=-4)
    assert joined.shape == clip.frames.shape and joined.ndim == (4 if batch is None else 5)
    assert np.array_equal(joined, clip.frames)
    kind, other = ("latents", "tokens") if case == "diffusion" else ("tokens", "latents")
    dim = 0 if batch is None else 1
    whole = torch.cat([code_of(piece, kind) for piece in pieces], dim=dim)
    assert torch.equal(whole, code_of(clip, kind))
    with pytest.raises(ValueError, match="this was"):
        code_of(clip, other)


def code_of(made: Piece | Clip, kind: str) -> torch.Tensor:
    return made.tokens if kind == "tokens" else made.latents


@pytest.mark.parametrize("case", CASES)
def test_a_session_that_is_closed_yields_nothing_more(case: str) -> None:
    begin, _ = CASES[case](None)
    session = begin()
    first = next(session)
    session.close()
    assert list(session) == [] and first.new > 0
    never = begin()
    never.close()
    assert list(never) == []


def test_what_is_warm_is_used_by_the_next_of_its_kind_and_by_no_other() -> None:
    warm, made = Warm[object](), []

    def make() -> object:
        made.append(object())
        return made[-1]

    first = warm.take("a", make)
    second = warm.take("a", make)  # the first is out: videos may be interleaved
    assert first is not second
    warm.give("a", first)
    assert warm.take("a", make) is first and len(made) == 2
    warm.give("a", first)
    assert warm.take("b", make) is made[2]
    assert warm.take("a", make) is made[3]  # what did not fit was let go
    warm.give("a", first)
    warm.clear()
    assert warm.take("a", make) is made[4]
