"""What every model and tokenizer must keep, found by name: a new family is tested by being there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from diagonal.catalog.names import families, find, listing
from diagonal.catalog.variants import DiffusionVariant
from diagonal.engine.attention import Dense, Full
from diagonal.generation.load import load
from diagonal.media import draw
from diagonal.text.encoders import ENCODERS
from tests.tiny import ALL_TINY, GREEDY, PLAIN, TINY, TOKENS, build, tiny_config

DIFFUSION = [name for name in listing("models") if isinstance(find("models", name), DiffusionVariant)]
TINY_DIFFUSION = [name for name in DIFFUSION if "tiny" in name]


def test_every_family_has_a_tiny_variant() -> None:
    assert {name.partition("/")[0] for name in (*ALL_TINY, *TINY_DIFFUSION)} == set(families("models"))


@pytest.mark.parametrize("name", TOKENS)
def test_a_variant_says_all_that_its_surroundings_need(name: str) -> None:
    variant = find("models", name)
    config = variant.config
    assert variant.licence and variant.source and variant.fps > 0
    assert len(config.valid_ids()) == config.rows * config.cols + config.suffix
    assert all(0 <= low < high for low, high in config.valid_ids())
    assert 1 <= config.reference_frames < config.frames
    with torch.device("meta"):
        model, tokenizer = config.build(), find("tokenizers", variant.tokenizer).build()
    assert set(model.weight_map.prefixes) and tokenizer.patch >= 1 and tokenizer.stride >= 1
    assert tokenizer.config == find("tokenizers", variant.tokenizer)
    assert not list(model.buffers())  # what is not a weight is computed, so that meta loading needs nothing else


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", TINY)
def test_an_untrained_model_sees_its_prompt(name: str, seed: int) -> None:
    """Its tokenizer has many ids for a picture and others for another, and what follows is another video: with random
    weights too a test can tell whether a prompt arrives."""
    world = load(name, "random", seed=seed)
    card = draw.test_card(*world.size)
    noise = np.random.default_rng(0).integers(256, size=card.shape, dtype=np.uint8)
    shifted = np.roll(card, world.tokenizer.patch // 2, axis=2)
    ids, others, after = (world.encode(prompt)[0] for prompt in (card, noise, shifted))
    assert min(len(some.unique()) for some in (ids, others, after)) >= 8
    assert (ids != others).float().mean() > 0.5 and (ids != after).float().mean() > 0.1
    one, two = (world.generate(prompt, frames=world.tokenizer.stride, sampling=GREEDY) for prompt in (card, noise))
    assert not torch.equal(one.tokens, two.tokens) and not np.array_equal(one.frames, two.frames)


@pytest.mark.parametrize("name", PLAIN)
def test_the_order_of_inputs_in_a_call_does_not_matter(name: str) -> None:
    """A model sees positions, not places in the call: scattered inputs give the logits of the sorted ones."""
    config = tiny_config(name)
    model: Any = build(config)
    size = 20
    tokens = torch.randint(config.codebook, (2, size), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(size, size, dtype=torch.bool).tril()
    shuffled = torch.randperm(size, generator=torch.Generator().manual_seed(1))
    sorted_logits = model(tokens, torch.arange(size), Dense(mask))
    logits = model(tokens[:, shuffled], shuffled, Dense(mask[shuffled][:, shuffled]))
    torch.testing.assert_close(logits, sorted_logits[:, shuffled], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", PLAIN)
def test_keep_computes_the_logits_of_the_kept_inputs_only(name: str) -> None:
    config = tiny_config(name)
    model: Any = build(config)
    tokens, mask = torch.arange(9)[None] % config.codebook, Dense(torch.ones(9, 9, dtype=torch.bool).tril())
    keep = torch.tensor([8, 2])
    every = model(tokens, torch.arange(9), mask)
    torch.testing.assert_close(model(tokens, torch.arange(9), mask, keep), every[:, keep], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", TINY)
def test_a_tokenizer_maps_frames_to_its_models_grid_and_streams(name: str) -> None:
    """The first token frame is one frame, each later one `stride`; decoded one by one they are the whole clip."""
    variant = find("models", name)
    tokenizer: Any = build(find("tokenizers", variant.tokenizer))
    rows, cols, patch, stride = variant.config.rows, variant.config.cols, tokenizer.patch, tokenizer.stride
    video = torch.randint(256, (2, 1 + 2 * stride, 3, rows * patch, cols * patch), dtype=torch.uint8)
    tokens = tokenizer.encode(video)
    assert tokens.shape == (2, 3, rows, cols) and tokens.dtype == torch.int64
    whole = tokenizer.decode(tokens, {})
    assert whole.shape == video.shape and whole.dtype == torch.uint8
    state: dict[str, torch.Tensor] = {}
    frames = [tokenizer.decode(tokens[:, index : index + 1], state) for index in range(3)]
    assert [part.shape[1] for part in frames] == [1, stride, stride]
    streamed = torch.cat(frames, dim=1)
    assert (streamed.int() - whole.int()).abs().max() <= 1


def test_a_tokenizer_of_whole_clips_maps_them_to_its_models_grid() -> None:
    """Of whole clips n token frames are n strides, and each call of `decode` is a clip."""
    variant = find("models", "videogpt/tiny")
    tokenizer: Any = build(find("tokenizers", variant.tokenizer))
    rows, cols, patch, stride = variant.config.rows, variant.config.cols, tokenizer.patch, tokenizer.stride
    video = torch.randint(256, (2, 3 * stride, 3, rows * patch, cols * patch), dtype=torch.uint8)
    tokens = tokenizer.encode(video)
    assert tokenizer.whole and tokens.shape == (2, 3, rows, cols) and tokens.dtype == torch.int64
    pixels = tokenizer.decode(tokens, {})
    assert pixels.shape == video.shape and pixels.dtype == torch.uint8


@pytest.mark.parametrize("name", DIFFUSION)
def test_a_diffusion_variant_says_all_that_its_surroundings_need(name: str) -> None:
    variant = find("models", name)
    assert variant.licence and variant.source and variant.fps > 0
    if variant.text:
        encoder = ENCODERS[variant.text]
        assert (encoder.length, encoder.width) == (variant.config.text_length, variant.config.text_dim)
    with torch.device("meta"):
        model = variant.config.build()
    assert model.weight_map.prefixes and not list(model.buffers())


@pytest.mark.parametrize("name", [name for name in TINY_DIFFUSION if find("models", name).pipelined])
def test_a_pipelined_model_gives_each_chunk_its_own_time_and_text(name: str) -> None:
    """Chunks that do not see each other are what each of them is alone."""
    model: Any = build(find("models", name).config)
    config, side = model.config, model.config.patch
    x = torch.randn(3, 2, config.channels, 2 * side, 3 * side, generator=torch.Generator().manual_seed(0))
    words = torch.randn(7, config.text_dim, generator=torch.Generator().manual_seed(1)).split((4, 3))
    texts = [*map(model.embed_text, words), model.no_text()]
    rope = model.rope(torch.arange(6).view(3, 2), 2, 3)
    condition = model.condition(torch.tensor([0.0, 0.5, 0.9]), dropped=False)
    whole = model(x, condition, texts, rope, Full())
    assert whole.shape == x.shape and whole.dtype == torch.float32
    for one in range(3):
        here = slice(one, one + 1)
        alone = model(x[here], condition[here], texts[here], (rope[0][here], rope[1][here]), Full())
        torch.testing.assert_close(whole[here], alone, atol=1e-5, rtol=1e-5)
        other = model(x[here], condition[here], [texts[one - 1]], (rope[0][here], rope[1][here]), Full())
        assert not torch.allclose(other, alone, atol=1e-3)
    for changed in (model.condition(torch.tensor([0.0, 0.5, 0.9]), dropped=True), condition.flip(0)):
        assert not torch.allclose(model(x, changed, texts, rope, Full()), whole, atol=1e-3)


@pytest.mark.parametrize("name", [name for name in TINY_DIFFUSION if not find("models", name).pipelined])
def test_a_diffusion_model_gives_each_sample_and_frame_its_own_level(name: str) -> None:
    """A level for all, one per sample and one per frame: the same numbers give the same velocity."""
    model: Any = build(find("models", name).config)
    config, side = model.config, model.config.patch
    x = torch.randn(2, 3, config.channels, 2 * side, 3 * side, generator=torch.Generator().manual_seed(0))
    text, rope = model.embed_text(torch.randn(1, 4, config.text_dim)), model.rope(torch.arange(3), 2, 3)
    velocity = model(x, 500.0, text, rope, Full())
    assert velocity.shape == x.shape
    torch.testing.assert_close(model(x, torch.full((2, 3), 500.0), text, rope, Full()), velocity)
    for sample, level in enumerate((500.0, 20.0)):
        mixed = model(x, torch.tensor([[500.0], [20.0]]), text, rope, Full())[sample]
        torch.testing.assert_close(mixed, model(x, level, text, rope, Full())[sample])


@pytest.mark.parametrize("name", TINY)
def test_the_decoder_of_a_tokenizer_can_be_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found, and it is what makes pixels: a compiler is not called here."""
    world, compiled = load(name, "random"), []
    monkeypatch.setattr(nn.Module, "compile", lambda module, dynamic: compiled.append((module, dynamic)))
    world.compile_tokenizer()
    ((decoder, dynamic),) = compiled
    calls: list[object] = []
    decoder.register_forward_hook(lambda *_: calls.append(1))
    config = world.variant.config
    world.tokenizer.decode(torch.zeros(1, 1, config.rows, config.cols, dtype=torch.long), {})
    assert len(calls) == 1 and not dynamic
