"""The pieces of MAGI-1's denoiser: what chunks of a call see, what is kept, and who is told what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal.engine.attention import attend
from diagonal.engine.chunks.protocols import Shown
from diagonal.engine.pipeline.denoiser import Pipelined, Video
from diagonal.engine.pipeline.memory import Call, Finished, Seen
from diagonal.engine.pipeline.texts import SpecialTokens, Texts
from diagonal.planning.lag import Part
from tests.magi import RECORDED, recorded_model
from tests.tiny import build

TOKENS, HEADS, KV, WIDTH = 3, 4, 2, 8


def heads(chunks: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (HEADS, KV, KV)
    q, k, v = (torch.randn(chunks, count, TOKENS, WIDTH, generator=generator) for count in shapes)
    return q, k, v


def filled(chunks: int) -> tuple[Finished, list[tuple[Tensor, Tensor]]]:
    """Finished chunks, each of which saw itself alone."""
    finished, kept = Finished(), []
    for chunk in range(chunks):
        q, k, v = heads(1, seed=10 + chunk)
        Call(finished, (Seen(chunk, chunk),), frozenset({chunk})).layer(0).attend(q, k, v)
        kept.append((k, v))
    return finished, kept


@pytest.mark.parametrize("firsts", [(0, 0, 0), (1, 2, 3), (2, 2, 4), (0, 3, 4)])
def test_every_chunk_sees_its_range_and_nothing_else(firsts: tuple[int, ...]) -> None:
    """Against attention over keys that are put together for each chunk."""
    finished, past = filled(2)
    q, k, v = heads(3)
    seen = tuple(Seen(2 + index, first) for index, first in enumerate(firsts))
    found = Call(finished, seen).layer(0).attend(q, k, v)
    every = [*past, *((k[one : one + 1], v[one : one + 1]) for one in range(3))]
    for index, first in enumerate(firsts):
        keys, values = (torch.cat([one[part] for one in every[first : 3 + index]], dim=2) for part in (0, 1))
        torch.testing.assert_close(found[index : index + 1], attend(q[index : index + 1], keys, values, None))


def test_a_lonely_copy_sees_itself_and_is_seen_by_nobody() -> None:
    q, k, v = heads(3)
    pair = Call(Finished(), (Seen(0, 0), Seen(1, 0))).layer(0).attend(q[:2], k[:2], v[:2])
    both = Call(Finished(), (Seen(0, 0), Seen(1, 0), Seen(0, 0, alone=True))).layer(0).attend(q, k, v)
    torch.testing.assert_close(both[:2], pair)
    torch.testing.assert_close(both[2:], attend(q[2:], k[2:], v[2:], None))


def test_what_was_given_up_or_does_not_follow_is_refused() -> None:
    finished, _ = filled(3)
    finished.drop(2)
    assert sorted(finished.chunks) == [2]
    with pytest.raises(ValueError, match="chunk 1 is to be seen, but it has not been fed or was given up"):
        Call(finished, (Seen(3, 1),))
    with pytest.raises(ValueError, match=r"chunks \[3, 5\] given in one call; they must follow one another"):
        Call(finished, (Seen(3, 2), Seen(5, 2)))


# Texts


@dataclass
class Spoken:
    """A model that keeps what it is to embed."""

    said: list[Tensor] = field(default_factory=list)
    config: Any = RECORDED

    def embed_text(self, text_LC: Tensor) -> Any:
        self.said.append(text_LC)
        return [len(self.said)]

    def no_text(self) -> Any:
        return [0]


def words(count: int) -> Tensor:
    """Embeddings (1, 9, 4) of which the last are padding."""
    rows = torch.zeros(1, 9, 4)
    rows[:, :count] = count
    return rows


def test_each_chunk_is_told_the_newest_caption_without_its_padding() -> None:
    model: Any = Spoken()
    texts: Any = Texts(model, chunks=6, special=None)
    texts.say(0, words(3))
    texts.say(2, words(5))
    assert [texts.of(chunk) for chunk in (0, 1, 2, 3)] == [[1], [1], [2], [2]]
    assert [len(rows) for rows in model.said] == [3, 5]
    texts.keep([2, 3])
    assert texts.of(3) == [2] and len(model.said) == 2


def test_special_tokens_make_a_text_of_their_own_for_each_of_the_last_chunks() -> None:
    model: Any = Spoken()
    special = SpecialTokens(torch.arange(8.0)[:, None].expand(8, 4) + 10, torch.full((4,), 99.0))
    texts: Any = Texts(model, chunks=10, special=special)
    texts.say(0, words(2))
    told = [texts.of(chunk) for chunk in range(10)]
    assert told[0] == told[1] == told[2] and len({one[0] for one in told}) == 8
    assert [rows[0, 0].item() for rows in model.said] == [17, 16, 15, 14, 13, 12, 11, 10]
    assert all(rows[1, 0] == 99 and len(rows) == 4 for rows in model.said)
    endless = Texts(model, chunks=None, special=special)
    endless.say(0, words(2))
    assert endless.of(0) is endless.of(1000)
    assert model.said[-1][0, 0] == 17


def test_prompts_of_a_batch_are_refused() -> None:
    model: Any = Spoken()
    with pytest.raises(ValueError, match="one video is made at a time"):
        Texts(model, 2, None).say(0, torch.zeros(2, 9, 4))


# The denoiser


def shown(chunks: Sequence[int], step: int = 0, steps: int = 4, moves: bool = True) -> list[Shown]:
    generator = torch.Generator().manual_seed(1)
    return [
        Shown(
            Part(chunk, step, 1000 * (1 - step / steps) if moves else 0.0, 5, moves),
            6 * chunk,
            torch.randn(1, 6, 16, 4, 6, generator=generator),
        )
        for chunk in chunks
    ]


def denoiser(sizes: tuple[float, ...] = (), chunks: int | None = 4) -> Pipelined:
    made = Pipelined(recorded_model(), Video(chunks, 4, 5, sizes))
    made.prompt(0, torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(2)))
    return made


@torch.inference_mode()
def test_a_late_chunk_s_velocity_is_that_without_text_even_beside_an_early_one() -> None:
    """And another text then changes only the early ones."""
    late, early = shown([0], step=3)[0], shown([1], step=1)[0]
    one, two = denoiser(), denoiser()
    two.prompt(0, torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(3)))
    first, second = (made.velocities([late, early], False) for made in (one, two))
    assert torch.equal(first[0], second[0])
    assert (first[1] - second[1]).abs().max() > 1e-3
    assert one.calls == 3
    alone = denoiser()
    torch.testing.assert_close(alone.velocities([late], False)[0], first[0], atol=1e-5, rtol=1e-5)
    assert alone.calls == 1


@torch.inference_mode()
def test_a_chunk_that_is_no_chunk_of_the_model_is_refused() -> None:
    made = denoiser()
    odd = Shown(Part(0, 0, 1000.0, 5), 3, torch.zeros(1, 6, 16, 4, 6))
    with pytest.raises(ValueError, match="latent frames 3 to 8 are no chunk of 6"):
        made.velocities([odd], False)


@torch.inference_mode()
@pytest.mark.parametrize("sizes", [(), (2.0,) * 4])
def test_finished_chunks_know_nothing_but_themselves(sizes: tuple[float, ...]) -> None:
    """Their keys are the same whatever else is in the call, of the base model and of the distilled one."""
    together, apart = denoiser(sizes), denoiser(sizes)
    clean = shown([0], step=4, moves=False)
    together.velocities([*clean, *shown([1, 2])], False)
    apart.velocities(clean, False)
    for (k, v), (other_k, other_v) in zip(together.finished.chunks[0], apart.finished.chunks[0], strict=True):
        torch.testing.assert_close((k, v), (other_k, other_v), atol=1e-5, rtol=1e-5)


def test_both_forms_of_the_mlp_and_twice_fed_channels_are_those_of_the_larger_model() -> None:
    """The 24B form in small: SiLU-gated, channels fed twice, latents scaled; written out once more here."""
    model = build(replace(RECORDED, gated=True, copies=2, scale=0.1))
    u = torch.randn(1, 5, 128, generator=torch.Generator().manual_seed(0))
    block = model.blocks[0]
    first, second = (block.up(u))[..., :128], (block.up(u))[..., 128:]
    torch.testing.assert_close(block._mlp(u), block.down(first * torch.sigmoid(first) * second))
    x = torch.randn(1, 6, 16, 4, 6, generator=torch.Generator().manual_seed(1))
    patches = torch.nn.functional.conv3d(
        torch.cat([x, x], 2).transpose(1, 2) * 0.1, model.embed.weight, stride=(1, 2, 2)
    )
    torch.testing.assert_close(model._tokens(x), patches.flatten(2).transpose(1, 2), atol=1e-5, rtol=1e-5)
    out = torch.randn(1, 36, 128, generator=torch.Generator().manual_seed(2))
    cells = model._cells(out, x)
    grid = out.reshape(1, 6, 2, 3, 2, 2, 32)
    assert cells[0, 1, 5, 3, 4] == pytest.approx(float(grid[0, 1, 1, 2, 1, 0, 5]) / 0.1)
