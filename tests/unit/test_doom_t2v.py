"""The text-to-video world of Doom without its training: words, the codec's numbers, sizes, weights that are shipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diagonal
from diagonal import checkpoints
from diagonal.catalog.names import find
from diagonal.generation.components import Weights
from diagonal.generation.load import load_video_model
from diagonal.models import doom_t2v
from diagonal.text import bag_of_words as words
from diagonal.text.encoders import ENCODERS, embed
from diagonal.worlds.captions import PHASES, PLACES, VOCABULARY, Facts, caption
from tests.tiny import build

SAID = "walking through a brick corridor, then turning left"


def test_a_words_row_marks_the_word_and_its_motion() -> None:
    rows = words.rows(SAID)
    assert rows.shape == (8, len(VOCABULARY) + PHASES) and bool((rows.sum(1) == 2).all())
    marked = [[int(place) for place in row.nonzero().flatten()] for row in rows]
    assert [VOCABULARY[word] for word, _ in marked] == SAID.replace(",", "").split()
    assert [phase - len(VOCABULARY) for _, phase in marked] == [0] * 5 + [1] * 3


def test_capitals_and_punctuation_say_nothing() -> None:
    assert torch.equal(words.rows("Walking, through: a brick corridor. THEN turning left!"), words.rows(SAID))


def test_unknown_words_are_refused_with_the_nearest_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"does not know 'corridr' \(perhaps corridor, courtyard\), 'xylophone'\. It knows motions:"
    ):
        words.rows("walking through a corridr with a xylophone")
    with pytest.raises(ValueError, match="says 'then' 3 times; at most 3 motions"):
        words.rows("walking then waiting then walking then waiting")


def test_every_caption_fits_the_encoder_and_no_text_is_zeros() -> None:
    longest = [caption(Facts(place, (5, 6, 5), ("demon", "imp")), seed) for place in PLACES for seed in range(20)]
    text = embed(longest, ENCODERS["doom"], device="cpu")
    assert text.shape == (len(longest), 32, words.WIDTH)
    assert not embed([""], ENCODERS["doom"], device="cpu").any()
    with pytest.raises(ValueError, match="has 40 tokens; 32 are allowed"):
        embed(["walking " * 40], ENCODERS["doom"], device="cpu")


def test_a_codec_absorbs_the_numbers_of_its_channels() -> None:
    """Latents get mean 0 and deviation 1 where they had others, and decode to the same pixels."""
    codec: Any = build(find("tokenizers", "wan_vae/doom-tiny"))
    pixels = torch.rand(2, 5, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    before, log_before = codec.moments(pixels)
    shown = codec.pixels(before, {})
    mean, std = before.mean((0, 1, 3, 4)), before.std((0, 1, 3, 4))
    codec.absorb(mean, std)
    after, log_after = codec.moments(pixels)
    torch.testing.assert_close(after.mean((0, 1, 3, 4)), torch.zeros(8), atol=1e-4, rtol=0)
    torch.testing.assert_close(after.std((0, 1, 3, 4)), torch.ones(8), atol=1e-4, rtol=0)
    # A draw from the old latents is the same draw from the new ones.
    wide = std[:, None, None]
    torch.testing.assert_close((log_after / 2).exp() * wide, (log_before / 2).exp(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(codec.pixels(after, {}), shown, atol=1e-4, rtol=0)


def test_the_shipped_sizes_fit_the_package() -> None:
    """Matrices as int8 and all else as float16: 40 MB for the world with all its parts."""
    variant = find("models", "doom-t2v")
    assert variant is doom_t2v.VARIANTS[""]
    with torch.device("meta"):
        parts = variant.config.build(), find("tokenizers", variant.vae).build()
    size = sum(one.numel() * (1 if one.ndim == 2 else 2) for part in parts for one in part.state_dict().values())
    assert size < 33e6
    clip = 1 + find("tokenizers", variant.vae).stride * 20
    assert variant.frames == clip  # seven chunks of three latent frames, as 4322222 has


def test_a_model_makes_videos_of_its_own_size_and_speaks_its_own_words() -> None:
    model = diagonal.load("doom-t2v/tiny")
    assert model.generate(SAID, output_type="latent").latents.shape[0] == 21  # as long as its clips
    clip = model.generate(SAID, num_frames=17, seed=1)
    assert clip.frames.shape == (17, 96, 128, 3) and clip.frames.dtype == np.uint8
    other = model.generate("waiting in a rusty hangar", num_frames=17, seed=1)
    assert not np.array_equal(other.frames, clip.frames)
    with pytest.raises(ValueError, match="does not know 'cat'"):
        model.generate("a cat", num_frames=17)
    with pytest.raises(ValueError, match="has no preview"):
        model.stream(SAID, num_frames=17, decoder="preview")


def test_weights_that_are_shipped_are_found_and_may_be_of_int8(tmp_path: Path, monkeypatch: Any) -> None:
    from dataclasses import replace

    from safetensors.torch import load_file, save_file

    whole = load_video_model("doom-t2v/tiny", seed=3)
    whole.save_pretrained(tmp_path / "whole")
    (tmp_path / "assets" / "small").mkdir(parents=True)
    small = checkpoints.shrink(load_file(tmp_path / "whole" / "model.safetensors"))
    save_file(small, tmp_path / "assets" / "small" / "world.safetensors")
    monkeypatch.setattr(checkpoints, "ASSETS", tmp_path / "assets")
    monkeypatch.setitem(doom_t2v.VARIANTS, "tiny", replace(doom_t2v.VARIANTS["tiny"], random=False, embedded="small"))
    found = load_video_model("doom-t2v/tiny")
    assert found.weights == "embedded"
    exact, rounded = (one.generate(SAID, num_frames=5, output_type="latent").latents for one in (whole, found))
    assert 0 < (exact - rounded).abs().mean() < 0.05 * exact.abs().mean()
    with pytest.raises(ValueError, match="has no other decoder than its VAE"):
        load_video_model("doom-t2v/tiny", Weights(tmp_path / "whole", preview="x.pth"))
