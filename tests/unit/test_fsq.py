"""Finite scalar quantisation: ids are numbers of levels, frames stand alone, rounding lets gradients through."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal.catalog.names import find
from diagonal.tokenizers.fsq import Config, FSQTokenizer

CONFIGS = {
    "tiny": find("tokenizers", "fsq/tiny"),
    "mixed": Config(levels=(8, 5, 3), channels=(8, 8), encoder_blocks=1, decoder_blocks=1),
    "doom levels": Config(levels=(8, 5, 5, 5), channels=(8,), encoder_blocks=0, decoder_blocks=0),
}


def build(config: Any, seed: int = 0) -> FSQTokenizer:
    torch.manual_seed(seed)
    made: FSQTokenizer = config.build().eval()
    for parameter in made.parameters():  # shortcuts start at zero; a trained network's do not
        if parameter.ndim > 1 and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
    return made


@pytest.fixture(params=CONFIGS, scope="module")
def tokenizer(request: Any) -> FSQTokenizer:
    return build(CONFIGS[request.param])


def videos(tokenizer: FSQTokenizer, batch: int = 2, frames: int = 3, seed: int = 0) -> Tensor:
    side = 4 * tokenizer.patch
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (batch, frames, 3, side, side + tokenizer.patch), generator=generator).byte()


def all_ids(tokenizer: FSQTokenizer) -> Tensor:
    return torch.arange(tokenizer.config.codebook)[:, None, None]


# Numbers


def test_all_ids_come_back_from_their_codes(tokenizer):
    ids = all_ids(tokenizer)
    codes = tokenizer.codes(ids)
    assert codes.shape == (len(ids), len(tokenizer.config.levels), 1, 1)
    assert codes.min() == -1 and codes.max() == 1
    # A latent whose squashed value is the code is rounded to it; the outermost levels lie at infinity.
    assert torch.equal(tokenizer.ids(tokenizer.levels(codes.atanh())), ids)


def test_every_id_is_another_code(tokenizer):
    codes = tokenizer.codes(all_ids(tokenizer)).flatten(1)
    assert len(codes.unique(dim=0)) == tokenizer.config.codebook


def test_the_first_channel_is_the_lowest_digit():
    tokenizer = build(CONFIGS["mixed"])
    expected = [a + 8 * b + 40 * c for c, b, a in itertools.product(range(3), range(5), range(8))]
    levels = torch.tensor([(a, b, c) for c, b, a in itertools.product(range(3), range(5), range(8))])
    assert tokenizer.ids(levels[:, :, None, None]).flatten().tolist() == expected == list(range(120))


def test_every_level_is_reached_and_none_beyond(tokenizer):
    latents = torch.linspace(-8, 8, 4001)[:, None].expand(-1, len(tokenizer.config.levels))[:, :, None, None]
    levels = tokenizer.levels(latents)
    for channel, count in enumerate(tokenizer.config.levels):
        assert levels[:, channel].unique().tolist() == list(range(count))
    extreme = torch.full((1, len(tokenizer.config.levels), 1, 1), 1e9)
    assert tokenizer.levels(extreme).flatten().tolist() == [count - 1 for count in tokenizer.config.levels]
    assert not tokenizer.levels(-extreme).any()


def test_a_patch_halves_once_per_stage(tokenizer):
    patch = 2 ** len(tokenizer.config.channels)
    assert tokenizer.patch == tokenizer.config.patch == patch
    ids = tokenizer.encode(videos(tokenizer))
    assert ids.shape == (2, 3, 4, 5)
    assert tokenizer.decode(ids, {}).shape == videos(tokenizer).shape


def test_the_doom_variant_has_the_codes_of_its_world_and_patches_of_eight_pixels():
    config = find("tokenizers", "fsq/doom")
    assert (config.codebook, config.patch) == (find("models", "doom").config.codebook, 8)


# Pictures


def test_ids_are_whole_numbers_of_the_codebook_also_for_pictures_it_made_itself(tokenizer):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(tokenizer.config.codebook, (2, 2, 4, 5), generator=generator)
    pixels = tokenizer.decode(tokens, {})
    assert pixels.dtype == torch.uint8
    ids = tokenizer.encode(pixels)
    assert ids.shape == tokens.shape
    assert not ids.is_floating_point()
    assert ids.min() >= 0 and ids.max() < tokenizer.config.codebook


def test_a_batch_gives_what_its_videos_give_alone(tokenizer):
    batch = videos(tokenizer, batch=3)
    together = tokenizer.encode(batch)
    for index in range(3):
        assert torch.equal(tokenizer.encode(batch[index : index + 1]), together[index : index + 1])
    other = batch.clone()
    other[1:] = 255 - other[1:]
    assert torch.equal(tokenizer.encode(other)[0], together[0])
    assert not torch.equal(tokenizer.encode(other)[1], together[1])


def test_frames_decoded_one_by_one_are_the_whole_clip(tokenizer):
    tokens = tokenizer.encode(videos(tokenizer))
    whole, state = tokenizer.decode(tokens, {}), dict[str, Tensor]()
    frames = [tokenizer.decode(tokens[:, index : index + 1], state) for index in range(3)]
    # The same sums in another order may fall on the other side of a half.
    assert (torch.cat(frames, dim=1).int() - whole.int()).abs().max() <= 1
    assert not state


def test_what_training_sees_is_what_the_ids_decode_to(tokenizer):
    batch = videos(tokenizer)
    with torch.no_grad():
        made = tokenizer(tokenizer.scale(batch.flatten(0, 1)))
    as_bytes = ((made.clamp(-1, 1) + 1) * 127.5).round()
    decoded = tokenizer.decode(tokenizer.encode(batch), {}).flatten(0, 1)
    assert (as_bytes - decoded.float()).abs().max() <= 1


def test_results_can_be_used_in_training(tokenizer):
    """Tensors made under inference mode could not be saved for a backward pass."""
    ids = tokenizer.encode(videos(tokenizer))
    assert not ids.is_inference()
    assert not tokenizer.decode(ids, {}).is_inference()


def test_bytes_are_scaled_to_the_range_of_the_decoder(tokenizer):
    assert tokenizer.scale(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [-1.0, 1.0]


# Gradients


def test_rounding_passes_gradients_straight_through():
    """With identities around it the quantiser's gradient is that of the squash: as if nothing were rounded."""
    tokenizer = build(CONFIGS["mixed"])
    tokenizer.encoder = torch.nn.Sequential()
    tokenizer.decoder = torch.nn.Sequential()
    latents = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    made = tokenizer(latents)
    counts = torch.tensor((8, 5, 3))[:, None, None] - 1
    grid = ((made.detach() + 1) / 2 * counts).detach()
    torch.testing.assert_close(grid, grid.round(), atol=1e-5, rtol=0)  # forward: on the levels
    made.sum().backward()
    torch.testing.assert_close(latents.grad, 1 - latents.detach().tanh().square())


def test_every_parameter_of_the_encoder_and_the_decoder_learns(tokenizer):
    tokenizer.requires_grad_(True).zero_grad()
    pixels = tokenizer.scale(videos(tokenizer).flatten(0, 1))
    (tokenizer(pixels) - pixels).square().mean().backward()
    for name, parameter in tokenizer.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name
