"""What every codec of continuous latents must keep, found by name: a new one is tested by being there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal.catalog.names import families, find, listing
from diagonal.tokenizers.protocols import VideoCodec
from tests.tiny import build

CODECS = [name for name in listing("tokenizers") if "codebook" not in dir(find("tokenizers", name))]
ALL_TINY = [name for name in CODECS if "tiny" in name]
TINY = [name for name in ALL_TINY if find("tokenizers", name).first == 1]  # causal ones: they stream
CUTS = [[1, 1, 1, 1, 1], [3, 2], [1, 4], [2, 1, 2]]


def _codec(name: str) -> Any:
    """With larger weights than torch's, under which deep networks forget their input: a lost frame must show."""
    codec: Any = build(find("tokenizers", name))
    for parameter in codec.parameters():
        parameter.mul_(2.4 if parameter.ndim > 1 and parameter[0].numel() > 1 else 1)
    typed: VideoCodec = codec
    return typed


def _latents(codec: Any, frames: int) -> Tensor:
    shape = (2, frames, codec.config.latent, 2, 3)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _video(codec: Any, frames: int) -> Tensor:
    shape = (2, frames, 3, 2 * codec.patch, 3 * codec.patch)
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_every_family_has_a_tiny_variant() -> None:
    assert {name.partition("/")[0] for name in ALL_TINY} == {"wan-vae", "taehv", "magi"} <= set(families("tokenizers"))
    assert {name.partition("/")[0] for name in TINY} == {"wan-vae", "taehv"}


@pytest.mark.parametrize("name", CODECS)
def test_a_variant_says_its_sizes_and_keeps_nothing_but_weights(name: str) -> None:
    with torch.device("meta"):
        codec = find("tokenizers", name).build()
    assert codec.config == find("tokenizers", name)
    assert codec.patch == 8 and (codec.stride, codec.config.latent) == ((2, 8) if "doom" in name else (4, 16))
    assert codec.first == find("tokenizers", name).first in (1, codec.stride)
    assert not list(codec.buffers())  # what is not a weight is computed, so that meta loading needs nothing else


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_clips_and_latents_have_each_others_sizes(name: str, count: int) -> None:
    codec = _codec(name)
    video = _video(codec, 1 + codec.stride * (count - 1))
    latents = codec.encode(video)
    assert latents.shape == (2, count, codec.config.latent, 2, 3)
    assert latents.dtype == torch.float32 and not latents.is_inference()
    assert torch.equal(latents, codec.encode(video))
    decoded = codec.decode(latents, {})
    assert decoded.shape == video.shape and decoded.dtype == torch.uint8


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_a_video_decoded_in_parts_is_the_whole(name: str, cut: list[int]) -> None:
    """No seam wherever it is cut: each part is what the whole has there, but for rounding."""
    codec = _codec(name)
    latents = _latents(codec, sum(cut))
    state: dict[str, Tensor] = {}
    parts, sizes = [], []
    with torch.inference_mode():
        whole = codec.pixels(latents, {})
        for part in latents.split(cut, dim=1):
            parts.append(codec.pixels(part, state))
            sizes.append(sum(value.numel() for value in state.values()))
    assert [part.shape[1] for part in parts] == [
        1 + codec.stride * (cut[0] - 1),
        *(codec.stride * count for count in cut[1:]),
    ]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=2e-5, rtol=0)
    assert len(set(sizes[1:])) <= 1  # what is carried does not grow
    streamed: dict[str, Tensor] = {}
    bytes_ = torch.cat([codec.decode(part, streamed) for part in latents.split(cut, dim=1)], dim=1)
    difference = (bytes_.int() - codec.decode(latents, {}).int()).abs()
    assert difference.max() <= 1 and (difference == 0).float().mean() > 0.999


@pytest.mark.parametrize("name", TINY)
def test_no_frame_depends_on_a_later_latent_and_samples_stand_alone(name: str) -> None:
    codec = _codec(name)
    latents = _latents(codec, 4)
    changed = latents.clone()
    changed[0, 2:] += 1
    changed[1] -= 1
    with torch.inference_mode():
        before, after = codec.pixels(latents, {}), codec.pixels(changed, {})
    same = 1 + codec.stride  # frames of the latents that did not change
    torch.testing.assert_close(before[0, :same], after[0, :same], atol=2e-5, rtol=0)
    # Every later frame, and the other sample from its first frame on, do change.
    assert ((before[0, same:] - after[0, same:]).abs().amax((1, 2, 3)) > 1e-4).all()
    assert ((before[1] - after[1]).abs().amax((1, 2, 3)) > 1e-4).all()


@pytest.mark.parametrize("name", TINY)
def test_what_is_carried_matters(name: str) -> None:
    """Or the test of parts would pass without it."""
    codec = _codec(name)
    latents = _latents(codec, 3)
    with torch.inference_mode():
        whole, alone = codec.pixels(latents, {}), codec.pixels(latents[:, 1:], {})
    last = codec.stride
    assert ((whole[:, -last:] - alone[:, -last:]).abs().amax((0, 2, 3, 4)) > 1e-2).all()


@pytest.mark.parametrize("name", TINY)
def test_half_precision_is_close(name: str) -> None:
    """Nothing in it needs float32: weights, frames and what is carried may all be bfloat16."""
    codec = _codec(name)
    latents = _latents(codec, 3)
    exact = codec.decode(latents, {}).float()
    codec.to(torch.bfloat16)
    state: dict[str, Tensor] = {}
    rough = torch.cat([codec.decode(latents[:, :1].bfloat16(), state), codec.decode(latents[:, 1:], state)], dim=1)
    assert {value.dtype for value in state.values()} == {torch.bfloat16}
    assert (rough.float() - exact).abs().mean() < 3
    assert codec.encode(_video(codec, 5)).dtype == torch.bfloat16


@pytest.mark.parametrize("name", TINY)
def test_what_does_not_fit_is_refused(name: str) -> None:
    codec = _codec(name)
    stride, channels = codec.stride, codec.config.latent
    for frames in (2, 4, 6, 80):
        with pytest.raises(
            ValueError, match=rf"{frames} frames given; a clip must have 1 \+ {stride}n: 1, {1 + stride}, "
        ):
            codec.encode(torch.zeros(1, frames, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match="0 frames given"):
        codec.encode(torch.zeros(1, 0, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match="frames of 12x16 given; both sides must be multiples of 8"):
        codec.encode(torch.zeros(1, 1, 3, 12, 16, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"float32 and shape \(1, 1, 3, 8, 8\) given; it must be uint8"):
        codec.encode(torch.zeros(1, 1, 3, 8, 8))
    with pytest.raises(ValueError, match=r"must be uint8, \(batch, frames, 3, height, width\)"):
        codec.encode(torch.zeros(1, 1, 4, 8, 8, dtype=torch.uint8))
    for shape in ((1, channels, 3, 2, 3), (3, channels, 2, 3), (1, 0, channels, 2, 3)):
        with pytest.raises(ValueError, match=rf"must be \(batch, frames, {channels}, rows, columns\)"):
            codec.decode(torch.zeros(shape), {})
    with pytest.raises(ValueError, match=r"int64 given; they must be of floating point"):
        codec.decode(torch.zeros(1, 1, channels, 2, 3, dtype=torch.long), {})
    state: dict[str, Tensor] = {}
    for number in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="hold NaN or infinite numbers; check the weights"):
            codec.decode(torch.full((1, 1, channels, 2, 3), number), state)
    assert not state  # nothing half done is carried on
