"""MAGI-1's autoencoder: tiles that stand alone, pictures, and what it refuses. Its numbers: tests/parity/test_magi."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal.catalog.names import find
from diagonal.tokenizers.magi import Config
from tests.tiny import build

SMALL = Config(width=256, depth=1, heads=4, side=32, frames=8, tile_frames=12, latent=4, mlp=1)


@pytest.fixture(scope="module")
def codec() -> Any:
    return build(SMALL)


def _latents(frames: int, rows: int = 2, cols: int = 3) -> Tensor:
    return torch.randn(1, frames, 4, rows, cols, generator=torch.Generator().manual_seed(0))


def _video(frames: int, height: int = 16, width: int = 24) -> Tensor:
    return torch.randint(256, (1, frames, 3, height, width), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


@pytest.mark.parametrize("tiles", [1, 2, 3])
def test_clips_of_whole_tiles_and_latents_have_each_others_sizes(codec: Any, tiles: int) -> None:
    video = _video(12 * tiles)
    latents = codec.encode(video)
    assert latents.shape == (1, 3 * tiles, 4, 2, 3) and not latents.is_inference()
    decoded = codec.decode(latents, {})
    assert decoded.shape == video.shape and decoded.dtype == torch.uint8


def test_a_video_decoded_tile_by_tile_is_the_whole(codec: Any) -> None:
    """So it may stream, with nothing remembered."""
    latents, state = _latents(9), dict[str, Tensor]()
    parts = torch.cat([codec.decode(part, state) for part in latents.split(3, dim=1)], dim=1)
    assert torch.equal(parts, codec.decode(latents, {})) and not state


def test_a_lone_latent_is_a_picture_and_so_four_latents_are_thirteen_frames(codec: Any) -> None:
    assert codec.decode(_latents(1), {}).shape[1] == 1
    assert codec.decode(_latents(4), {}).shape[1] == 13
    assert codec.decode(_latents(6), {}).shape[1] == 24


def test_a_picture_is_a_clip_of_four_times_the_same(codec: Any) -> None:
    picture = _video(1)
    assert torch.equal(codec.encode(picture), codec.encode(picture.expand(-1, 4, -1, -1, -1)))


def test_tiles_in_time_do_not_know_of_each_other_and_those_in_space_only_where_they_overlap(codec: Any) -> None:
    latents = _latents(6, rows=7, cols=7)
    changed = latents.clone()
    changed[:, 3:] += 1
    assert torch.equal(codec.decode(latents, {})[:, :12], codec.decode(changed, {})[:, :12])
    # Tiles begin every 3 latents. The first is of 4, so it knows nothing of the last latent.
    changed = latents.clone()
    changed[..., 6, 6] += 1
    same = codec.decode(latents, {}) == codec.decode(changed, {})
    assert same[..., :24, :].all() and same[..., :, :24].all() and not same[..., 24:, 24:].all()


def test_the_published_one_takes_tiles_of_a_chunk_s_half() -> None:
    config = find("tokenizers", "magi/vae")
    assert (config.tile_frames, config.side, config.stride, config.patch, config.latent) == (12, 256, 4, 8, 16)


def test_half_precision_is_close(codec: Any) -> None:
    latents = _latents(3)
    exact = codec.decode(latents, {}).float()
    rough = build(SMALL).to(torch.bfloat16).decode(latents.bfloat16(), {})
    assert (rough.float() - exact).abs().mean() < 3


def test_what_does_not_fit_is_refused(codec: Any) -> None:
    for frames in (0, 2, 6, 13):
        with pytest.raises(ValueError, match=f"{frames} frames given; a clip must have 4n, or be one picture"):
            codec.encode(torch.zeros(1, frames, 3, 16, 16, dtype=torch.uint8))
    with pytest.raises(ValueError, match="multiples of 8"):
        codec.encode(torch.zeros(1, 4, 3, 12, 16, dtype=torch.uint8))
    with pytest.raises(ValueError, match="must be uint8"):
        codec.encode(torch.zeros(1, 4, 3, 16, 16))
    with pytest.raises(ValueError, match=r"\(batch, frames, 4, rows, columns\)"):
        codec.decode(torch.zeros(1, 3, 5, 2, 2), {})
    with pytest.raises(ValueError, match="NaN or infinite"):
        codec.decode(torch.full((1, 3, 4, 2, 2), torch.nan), {})
    with pytest.raises(ValueError, match="4 heads and 256 pixels"):
        Config(width=100, depth=1, heads=4, side=32, frames=8, tile_frames=12)
    with pytest.raises(ValueError, match="must be whole latents"):
        Config(width=256, depth=1, heads=4, side=32, frames=8, tile_frames=10)
    with pytest.raises(ValueError, match="must be whole latents"):
        Config(width=256, depth=1, heads=4, side=16, frames=8, tile_frames=12)
