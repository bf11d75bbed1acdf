"""Sizes of codecs that contradict each other, and what streams carry."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from diagonal.tokenizers import taehv, wan_vae
from diagonal.tokenizers.streaming import Past, channels_to_frames, frames_to_channels


def test_sizes_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="2 means and 3 deviations given"):
        wan_vae.Config(width=4, blocks=1, mean=(0.0, 0.0), std=(1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match=re.escape("3 stages given; time=(False, True, True) must have one fewer")):
        wan_vae.Config(width=4, blocks=1, multiples=(1, 2, 4))
    with pytest.raises(ValueError, match="2 widths and 3 growths given"):
        taehv.Config(width=4, widths=(8, 4))


def test_other_sizes_have_other_strides() -> None:
    """Nothing counts on four frames and eight pixels."""
    config = wan_vae.Config(width=2, blocks=1, multiples=(1, 2), time=(True,), mean=(0.0,) * 3, std=(1.0,) * 3)
    small = taehv.Config(width=2, widths=(4, 2), growth=(1, 2), latent=3)
    for codec, patch in ((config.build(), 2), (small.build(), 4)):
        video = torch.randint(256, (1, 5, 3, 8, 12), dtype=torch.uint8)
        latents = codec.encode(video)
        assert latents.shape == (1, 3, 3, 8 // patch, 12 // patch)
        assert codec.decode(latents, {}).shape == video.shape


def test_frames_and_channels_are_each_others_inverse() -> None:
    x_BTHWC = torch.arange(2 * 4 * 3 * 2 * 5).reshape(2, 4, 3, 2, 5)
    merged = frames_to_channels(x_BTHWC, 2)
    assert torch.equal(merged[1, 1, 2, 0], torch.cat([x_BTHWC[1, 2, 2, 0], x_BTHWC[1, 3, 2, 0]]))
    assert torch.equal(channels_to_frames(merged, 2), x_BTHWC)


def test_a_layer_remembers_the_newest_frames_and_no_more_memory_than_theirs() -> None:
    state: dict[str, Tensor] = {}
    past = Past(state, start=True) / "block" / "conv"
    assert past.empty and torch.equal(past.join(torch.arange(5.0), 2, dim=0), torch.arange(5.0))
    assert state.keys() == {"block.conv"} and not past.empty
    assert torch.equal(past.join(torch.arange(5.0, 6.0), 2, dim=0), torch.tensor([3.0, 4.0, 5.0]))
    assert state["block.conv"].tolist() == [4.0, 5.0]
    assert state["block.conv"].untyped_storage().nbytes() == 2 * 4


def test_without_a_state_nothing_is_remembered_and_a_whole_video_is_the_same() -> None:
    past = Past(None, start=True) / "conv"
    assert torch.equal(past.join(torch.arange(5.0), 2, dim=0), torch.arange(5.0)) and past.empty
    config = wan_vae.Config(width=2, blocks=1, multiples=(1, 2), time=(True,), mean=(0.0,) * 3, std=(1.0,) * 3)
    codec, video = config.build(), torch.randint(256, (1, 5, 3, 8, 12), dtype=torch.uint8)
    latents = codec.encode(video)
    assert torch.equal(latents, codec.encode(video, {}))
    assert torch.equal(codec.pixels(latents, None), codec.pixels(latents, {}))
