"""Cosmos models: where a slot lies, what a text does, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal.engine.attention import Causal
from diagonal.engine.heads import frequencies
from diagonal.engine.protocols import CacheSpec
from diagonal.models.cosmos import VARIANTS, Config, Guided, Yarn, rope_3d, split
from diagonal.text.encoders import ENCODERS
from diagonal.worlds import none
from tests.tiny import build

CONFIGS: dict[str, Any] = {name: variant.config for name, variant in VARIANTS.items()}
TEXT, PLAIN = CONFIGS["tiny-text"], CONFIGS["tiny"]


@pytest.fixture(scope="module")
def model() -> Any:
    return build(TEXT)


def _text(batch: int = 1, rows: int = 7, seed: int = 0) -> Tensor:
    return torch.randn(batch, rows, TEXT.text, generator=torch.Generator().manual_seed(seed))


def _tokens(batch: int = 1, size: int = 30) -> Tensor:
    return torch.randint(TEXT.codebook, (batch, size), generator=torch.Generator().manual_seed(1))


def _logits(call: Any, tokens: Tensor) -> Tensor:
    logits: Tensor = call(tokens, torch.arange(tokens.shape[1]), Causal())
    return logits


# Positions


@pytest.mark.parametrize(("config", "prefix"), [(PLAIN, 0), (TEXT, 1)])
@pytest.mark.parametrize(("rows", "cols"), [(4, 6), (3, 5), (1, 1)])
def test_a_slot_is_a_frame_a_row_and_a_column_behind_the_prefix(config: Config, prefix: int, rows: int, cols: int):
    config = replace(config, rows=rows, cols=cols)
    expected = [(0, 0, 0)] * prefix + [(t, i, j) for t in range(3) for i in range(rows) for j in range(cols)]
    places, inside = config.places(torch.arange(len(expected)))
    assert places.T.tolist() == [list(map(float, place)) for place in expected]
    assert inside.tolist() == [False] * prefix + [True] * (len(expected) - prefix)


def test_the_start_token_is_not_turned():
    places, _ = TEXT.places(torch.arange(2))
    cos, sin = rope_3d(places, TEXT)
    assert (cos[0] == 1).all() and (sin[0] == 0).all()


@pytest.mark.parametrize(
    ("width", "parts"), [(128, (44, 42, 42)), (16, (8, 4, 4)), (4096, (1368, 1364, 1364)), (5120, (1708, 1706, 1706))]
)
def test_channels_are_shared_by_time_and_sides(width: int, parts: tuple[int, int, int]):
    assert split(width) == parts and sum(parts) == width


def test_yarn_halves_slow_turns_and_keeps_quick_ones():
    """The published numbers: all of time is halved; of the sides, the first frequencies are less and less kept."""
    yarn = Yarn()
    time, side = (frequencies(width, 500000.0, torch.device("cpu")) for width in (44, 42))
    assert (yarn.stretch(time, yarn.frames) == time / 2).all()
    kept = yarn.stretch(side, yarn.rows) / side
    assert [round(value, 3) for value in kept[:4].tolist()] == [1.0, 0.901, 0.637, 0.5]
    assert (kept[3:] == 0.5).all()


# Text


def test_a_text_of_zeros_is_no_text(model: Any):
    tokens = _tokens()
    assert torch.equal(_logits(model.bind(torch.zeros(1, 5, TEXT.text)), tokens), _logits(model, tokens))
    for k, v in model.context(torch.zeros(1, 5, TEXT.text)):
        assert not k.any() and not v.any()


def test_zero_rows_behind_a_text_may_be_left_out(model: Any):
    text, tokens = _text(), _tokens()
    whole = torch.cat([text, torch.zeros(1, TEXT.text_length - 7, TEXT.text)], dim=1)
    logits = _logits(model.bind(whole), tokens)
    for rows in (7, 8, 100, TEXT.text_length - 1):
        assert torch.equal(_logits(model.bind(whole[:, :rows]), tokens), logits)


def test_the_padding_of_a_text_counts(model: Any):
    """The published models attend to it as well."""
    shorter = build(replace(TEXT, text_length=7))
    assert (_logits(model.bind(_text()), _tokens()) - _logits(shorter.bind(_text()), _tokens())).abs().max() > 1e-3


@pytest.mark.parametrize("name", [name for name, variant in VARIANTS.items() if variant.text])
def test_a_model_takes_the_rows_that_its_encoder_gives(name: str):
    assert CONFIGS[name].text_length == ENCODERS[VARIANTS[name].text].length


def test_another_text_gives_other_logits(model: Any):
    tokens = _tokens()
    first, second, nothing = (_logits(call, tokens) for call in (model.bind(_text()), model.bind(_text(seed=1)), model))
    assert (first - second).abs().max() > 1e-3 and (first - nothing).abs().max() > 1e-3


def test_one_text_serves_a_batch_and_each_sample_may_have_its_own(model: Any):
    tokens, texts = _tokens(3), _text(3)
    shared = _logits(model.bind(texts[:1]), tokens)
    own = _logits(model.bind(texts), tokens)
    for index in range(3):
        alone = tokens[index : index + 1]
        torch.testing.assert_close(shared[index : index + 1], _logits(model.bind(texts[:1]), alone))
        torch.testing.assert_close(own[index : index + 1], _logits(model.bind(texts[index : index + 1]), alone))


def test_a_bound_model_is_what_the_engine_asks_for(model: Any):
    bound = model.bind(_text())
    assert isinstance(bound, Guided)
    assert bound.cache_spec == model.cache_spec == CacheSpec(layers=2, kv_heads=2, head_dim=16, group=2)
    keep = torch.tensor([3, 1])
    kept = bound(_tokens(), torch.arange(30), Causal(), keep)
    torch.testing.assert_close(kept, _logits(bound, _tokens())[:, keep])


def test_texts_are_taken_in_the_dtype_of_the_weights():
    model = build(TEXT).bfloat16()
    context = model.context(_text())
    assert {part.dtype for pair in context for part in pair} == {torch.bfloat16}
    assert _logits(model.bind(_text()), _tokens()).dtype == torch.bfloat16


def test_a_text_trains_every_layer_that_reads_it():
    torch.manual_seed(0)
    model = TEXT.build()
    _logits(model.bind(_text()), _tokens()).square().mean().backward()
    read = {key: parameter for key, parameter in model.named_parameters() if ".text_" in key}
    assert len(read) == TEXT.layers * 6
    for key, parameter in read.items():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, key


# What is refused


def test_a_model_without_text_layers_refuses_a_text():
    with pytest.raises(ValueError, match="takes no text; the Cosmos models that do are 5b and 13b"):
        build(PLAIN).bind(_text())


@pytest.mark.parametrize("shape", [(1, 7, 25), (7, 24), (1, 1, 7, 24)])
def test_a_text_of_another_shape_is_refused(model: Any, shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=r"text embeddings have shape .*; \(batch, rows, 24\) is needed"):
        model.bind(torch.zeros(shape))


@pytest.mark.parametrize("rows", [0, 513])
def test_a_text_of_no_rows_or_too_many_is_refused(model: Any, rows: int):
    text = rf"shape \(1, {rows}, 24\); .* with 1 to 512 rows: shorten the text"
    with pytest.raises(ValueError, match=text):
        model.bind(torch.zeros(1, rows, TEXT.text))


@pytest.mark.parametrize(("rows", "cols"), [(41, 64), (40, 65), (0, 64), (40, 0)])
def test_frames_beyond_the_published_size_are_refused(rows: int, cols: int):
    with pytest.raises(ValueError, match=rf"frames of {rows}x{cols} tokens given; .* 40 rows and 64 columns"):
        replace(CONFIGS["4b"], rows=rows, cols=cols)


def test_heads_that_cannot_be_shared_are_refused():
    with pytest.raises(ValueError, match="4 heads cannot share 3"):
        replace(PLAIN, kv_heads=3)


def test_only_the_text_models_have_a_start_token_and_more_embeddings_than_codes():
    sizes = {name: (config.prefix_ids, config.vocab) for name, config in CONFIGS.items()}
    assert sizes["4b"] == sizes["12b"] == ((), 64000)
    assert sizes["5b"] == sizes["13b"] == ((64000,), 64064)


# A world without actions


def test_a_world_without_actions_has_no_action_tokens():
    assert none.tokens([none.NOOP] * 3, 64000) == [[], [], []]
    assert none.parse(none.SCRIPT) == []
    for call in (none.parse, none.read):
        with pytest.raises(ValueError, match="takes none"):
            call("forward*3")
    with pytest.raises(ValueError, match="no start view 'hall'"):
        none.start("hall")
