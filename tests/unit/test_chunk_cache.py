"""The ring of keys and values against lists that are joined anew in every call."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diagonal.engine.attention import Full
from diagonal.engine.chunks.cache import WindowCache, WindowSpec
from diagonal.engine.chunks.masks import block_causal, dense, flex, teacher_forcing
from diagonal.engine.heads import rotate_pairs as rotate
from diagonal.engine.kernels import select_latents
from diagonal.engine.kernels.cudnn import even_splits, splits_for
from diagonal.engine.protocols import CacheSpec
from diagonal.models.wan import VARIANTS
from tests.tiny import build

HEADS, WIDTH, TOKENS = 2, 24, 3  # a head is as wide as the tiny model's
MODEL: Any = build(VARIANTS["tiny"].config)


def make(window: WindowSpec, batch: int = 1) -> WindowCache:
    return WindowCache(CacheSpec(2, HEADS, WIDTH, 1), window, TOKENS, batch, torch.device("cpu"), torch.float32)


def draw(frames: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    shape = (3, 1, HEADS, frames * TOKENS, WIDTH)
    q, k, v = torch.randn(shape, generator=generator).unbind(0)
    return q, k, v


def turn(x_BHSD: Tensor, frames: list[int]) -> Tensor:
    return rotate(x_BHSD.transpose(1, 2), MODEL.rope(torch.tensor(frames), 1, TOKENS)).transpose(1, 2)


def visible(window: WindowSpec, end: int) -> list[int]:
    """The first frames and the newest ones."""
    return [one for one in range(end) if one < window.sink or one >= end - (window.frames - window.sink)]


def naive(q: Tensor, past: dict[int, tuple[Tensor, Tensor]], seen: list[int]) -> Tensor:
    k, v = (torch.cat([past[one][part] for one in seen], 2) for part in (0, 1))
    return F.scaled_dot_product_attention(q, k, v)


windows = st.builds(
    lambda sink, ring, relative: WindowSpec(sink + ring, sink, relative),
    st.integers(0, 4),
    st.integers(3, 8),
    st.booleans(),
)


@settings(max_examples=60)
@given(window=windows, chunks=st.lists(st.integers(1, 3), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_the_ring_is_a_list_that_is_joined(window: WindowSpec, chunks: list[int], seed: int) -> None:
    """Any window, sink and chunks; every chunk is fed twice. With `relative` the list is rotated by places in it."""
    generator, cache, start = torch.Generator().manual_seed(seed), make(window), 0
    past: dict[int, tuple[Tensor, Tensor]] = {}
    for count in chunks:
        frames = list(range(start, start + count))
        memory, shift = cache.at(start, count), cache.sink_shift(start, count)
        if shift:
            cache.move_sink(partial(rotate, rope=MODEL.rope(torch.tensor([shift]), 1, 1)))
        for _ in range(2):
            q, k, v = draw(count, generator)
            past |= {
                frame: (k[:, :, i * TOKENS : (i + 1) * TOKENS], v[:, :, i * TOKENS : (i + 1) * TOKENS])
                for i, frame in enumerate(frames)
            }
            seen = visible(window, start + count)
            places = list(range(len(seen))) if window.relative else seen
            turned = {
                frame: (turn(past[frame][0], [place]), past[frame][1])
                for frame, place in zip(seen, places, strict=True)
            }
            expected = naive(turn(q, places[-count:]), turned, seen)
            ours = memory.layer(1).attend(turn(q, frames), turn(k, frames), v)
            torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
        start += count
    assert not cache.k[0].any() and not cache.v[0].any()  # the other layer is another layer's


def test_nothing_is_allocated_while_the_window_rolls() -> None:
    cache, generator = make(WindowSpec(4, sink=1)), torch.Generator().manual_seed(0)
    before = (cache.k.data_ptr(), cache.v.data_ptr())
    for start in range(50):
        memory = cache.at(start, 1)
        memory.layer(0).attend(*draw(1, generator))
        assert memory.extent == min(start + 1, 4) * TOKENS
    assert (cache.k.data_ptr(), cache.v.data_ptr()) == before


def test_places_have_no_limit() -> None:
    """Attention knows differences of places only, ten million frames on as well as at the start."""
    q, k, v = draw(3, torch.Generator().manual_seed(0))
    here, there = (
        Full().attend(turn(q, frames), turn(k, frames), v) for frames in ([0, 1, 2], [10**7, 10**7 + 1, 10**7 + 2])
    )
    torch.testing.assert_close(here, there, atol=1e-5, rtol=1e-5)


def test_a_restart_forgets_and_begins_a_new_sink() -> None:
    cache, generator = make(WindowSpec(4, sink=2, relative=True)), torch.Generator().manual_seed(0)
    for start in range(6):
        cache.at(start, 1).layer(0).attend(*draw(1, generator))
    assert cache.sink_shift(5, 1) == 2
    cache.restart(5)
    q, k, v = draw(1, generator)
    torch.testing.assert_close(cache.at(5, 1).layer(0).attend(q, k, v), Full().attend(q, k, v))
    assert cache.sink_shift(5, 1) == 0 and cache.at(6, 1).extent == 2 * TOKENS


def test_gradients_reach_the_new_tokens_and_never_the_past() -> None:
    cache, generator = make(WindowSpec(2)), torch.Generator().manual_seed(0)
    old, new = ([part.requires_grad_() for part in draw(1, generator)] for _ in range(2))
    cache.at(0, 1).layer(0).attend(*old)
    cache.at(1, 1).layer(0).attend(*new).sum().backward()
    assert all(part.grad is not None and part.grad.any() for part in new[::2])  # a sum of values: q may cancel
    assert all(part.grad is None for part in old)
    assert not cache.k.requires_grad and not cache.v.requires_grad


@pytest.mark.parametrize(("frames", "sink"), [(3, 3), (0, 0), (4, -1), (2, 5)])
def test_a_window_that_holds_no_chunk_is_refused(frames: int, sink: int) -> None:
    with pytest.raises(ValueError, match=f"window of {frames} frames with a sink of {sink}"):
        WindowSpec(frames, sink)


def test_a_chunk_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="3 latent frames fed at once; a window of 4 with a sink of 2 holds 1 to 2"):
        make(WindowSpec(4, sink=2)).at(3, 3)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("mask", [block_causal(6, 2), block_causal(6, 1, WindowSpec(3, 1)), teacher_forcing(3, 1)])
def test_flex_attention_has_the_same_mask(mask: Tensor) -> None:
    q, k, v = draw(6, torch.Generator().manual_seed(0))
    ours = flex(mask, TOKENS).attend(q, k, v)
    torch.testing.assert_close(ours, dense(mask, TOKENS).attend(q, k, v), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("window", "chunk"), [(None, 3), (WindowSpec(5, 2), 3), (WindowSpec(4), 1), (WindowSpec(6, 3), 3)]
)
def test_a_training_mask_is_what_the_cache_holds(window: WindowSpec | None, chunk: int) -> None:
    mask = block_causal(12, chunk, window)
    for frame in range(12):
        end = (frame // chunk + 1) * chunk
        assert mask[frame].nonzero().flatten().tolist() == visible(window or WindowSpec(12), end)


def test_keys_are_split_where_the_work_comes_out_more_even() -> None:
    assert [even_splits(4680, 12, keys, 132) for keys in (4680, 18720, 18721)] == [2, 2, 1]
    assert even_splits(4224, 12, 4224, 132) == 1  # 396 thread blocks are three waves as they are
    assert even_splits(128, 12, 4096, 132) == 4  # few thread blocks: more of them


def test_keys_are_split_only_where_that_is_known_to_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def splits(
        batch: int = 1, queries: int = 4680, width: int = 128, dtype: Any = torch.bfloat16, major: int = 9
    ) -> int:
        gpu = SimpleNamespace(major=major, multi_processor_count=132)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
        q, keys = (torch.empty(batch, 12, size, width, dtype=dtype, device="meta") for size in (queries, 9360))
        return splits_for(q, keys)

    assert splits() == splits(dtype=torch.float16) == 2
    few = [splits(batch=2), splits(queries=1000), splits(width=24), splits(dtype=torch.float32), splits(major=8)]
    assert few == [1] * 5


def test_keys_that_are_not_split_are_attended_to_at_once() -> None:
    q, k, v = (torch.randn(1, 2, size, 8) for size in (5, 9, 9))
    assert torch.equal(select_latents.latent_attention(q, k, v), Full().attend(q, k, v))
