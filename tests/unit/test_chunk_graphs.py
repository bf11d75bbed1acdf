"""Recorded calls without a GPU: a recording here runs again what was recorded, into the same results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import diagonal
from diagonal.engine.chunks.cache import WindowCache, WindowSpec
from diagonal.engine.chunks.graphs import ChunkGraphs

FRAMES, ROWS, COLS = 3, 4, 6  # a chunk of latents; tokens are 2x2 of it


class Again:
    """In place of a CUDA graph."""

    def __init__(self, run: Callable[[], Any], out: Any) -> None:
        self.run, self.out, self.replays = run, out, 0

    def replay(self) -> None:
        self.replays += 1
        for old, new in zip(_tensors(self.out), _tensors(self.run()), strict=True):
            old.copy_(new)


def _tensors(given: Any) -> list[Tensor]:
    return [given] if isinstance(given, Tensor) else [one for part in given for one in _tensors(part)]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChunkGraphs]:
    def recorded(self: ChunkGraphs, run: Callable[[], Any]) -> tuple[Again, Any]:
        out = run()
        return Again(run, out), out

    monkeypatch.setattr(ChunkGraphs, "_recorded", recorded)
    model: Any = diagonal.load("wan/tiny").model
    cache = WindowCache(
        model.cache_spec, WindowSpec(2 * FRAMES), ROWS * COLS // 4, 1, torch.device("cpu"), torch.float32
    )
    with torch.inference_mode():
        yield ChunkGraphs(model, cache)


def _text(rows: int, seed: int, batch: int = 1) -> Tensor:
    return torch.randn(batch, rows, 48, generator=torch.Generator().manual_seed(seed))


def _same(one: Any, other: Any) -> bool:
    return all(torch.equal(*pair) for pair in zip(_tensors(one), _tensors(other), strict=True))


def test_texts_of_any_length_are_made_where_the_one_before_was(made: ChunkGraphs) -> None:
    first = made.embed_text(_text(16, 0))
    for rows, seed in ((16, 0), (3, 1), (9, 2), (1, 3)):
        text = made.embed_text(_text(rows, seed))
        assert text is first and _same(text, made.model.embed_text(_text(rows, seed)))
    assert text[0][2].tolist() == [1]


def test_what_does_not_fit_goes_to_the_model(made: ChunkGraphs) -> None:
    first = made.embed_text(_text(5, 0))
    kept = [one.clone() for one in _tensors(first)]
    several = made.embed_text(_text(5, 1, batch=2))
    assert several is not first and several[0][2].tolist() == [5, 5]
    with pytest.raises(ValueError, match="1 to 16 rows"):
        made.embed_text(_text(17, 2))
    with torch.inference_mode(mode=False):
        assert made.embed_text(_text(5, 3)) is not first
    assert _same(first, kept)


def test_replayed_calls_see_the_text_that_was_made_last(made: ChunkGraphs) -> None:
    """At one place: the first call runs, the second is recorded, the third is replayed; then the text changes."""
    x = torch.randn(1, FRAMES, 16, ROWS, COLS, generator=torch.Generator().manual_seed(0))
    memory = made.cache.at(0, FRAMES)
    rope = made.rope(torch.arange(FRAMES), ROWS // 2, COLS // 2)
    for rows, seed in ((7, 0), (7, 0), (7, 0), (2, 1), (7, 0)):
        found = made(x, 500.0, made.embed_text(_text(rows, seed)), rope, memory)
        wanted = made.model(x, 500.0, made.model.embed_text(_text(rows, seed)), rope, memory)
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)
    ((graph, _),) = [one for one in made._graphs.values() if one is not None]
    assert graph.replays == 4  # the recording itself computes nothing on a GPU


def test_a_text_from_elsewhere_is_copied_to_where_calls_read_it(made: ChunkGraphs) -> None:
    x = torch.randn(1, FRAMES, 16, ROWS, COLS, generator=torch.Generator().manual_seed(0))
    memory, rope = made.cache.at(0, FRAMES), made.rope(torch.arange(FRAMES), ROWS // 2, COLS // 2)
    made.embed_text(_text(3, 0))
    for seed in (1, 2, 3):
        other = made.model.embed_text(_text(8, seed))
        wanted = made.model(x, 500.0, other, rope, memory)
        torch.testing.assert_close(made(x, 500.0, other, rope, memory), wanted, atol=1e-6, rtol=0)
