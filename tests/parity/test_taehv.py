"""TAEHV: the published names, and its decoder and encoder against a loop over frames in the published order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from diagonal import checkpoints
from diagonal.tokenizers.taehv import VARIANTS
from tests.conftest import golden_json
from tests.tiny import build


def test_published_keys_load_strictly() -> None:
    manifest = golden_json("wan/manifest_taehv.json")
    state = {key: torch.empty(shape, device="meta") for key, (shape, _) in manifest["tensors"].items()}
    with torch.device("meta"):
        module = VARIANTS["wan"].build()
    checkpoints.load(module, state, "taehv/wan")
    assert module.state_dict().keys() == state.keys()  # its own names are the published ones
    assert sum(parameter.numel() for parameter in module.parameters()) == manifest["_params"]
    with pytest.raises(ValueError, match="1 missing"):
        checkpoints.load(module, dict(list(state.items())[1:]), "taehv/wan")


def _memory_block(state: dict[str, Tensor], name: str, frames: list[Tensor]) -> list[Tensor]:
    out, before = [], torch.zeros_like(frames[0])
    for frame in frames:
        x = torch.cat([frame, before])
        for number in (0, 2, 4):
            x = F.conv2d(x, state[f"{name}.conv.{number}.weight"], state[f"{name}.conv.{number}.bias"], padding=1)
            x = x.relu() if number < 4 else x
        out.append((x + frame).relu())
        before = frame
    return out


def _decode(state: dict[str, Tensor], latents_FCHW: Tensor) -> Tensor:
    """Frame by frame, each layer as the published decoder has it: sides are doubled before frames grow."""
    frames = [
        (F.conv2d((z / 3).tanh() * 3, state["1.weight"], state["1.bias"], padding=1)).relu() for z in latents_FCHW
    ]
    for first, count in ((3, 1), (9, 2), (15, 2)):
        for block in range(first, first + 3):
            frames = _memory_block(state, str(block), frames)
        grown: list[Tensor] = []
        for frame in frames:
            large = frame.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)
            grown += F.conv2d(large, state[f"{first + 4}.conv.weight"]).chunk(count)
        frames = [F.conv2d(frame, state[f"{first + 5}.weight"], padding=1) for frame in grown]
    last = [F.conv2d(frame.relu(), state["22.weight"], state["22.bias"], padding=1) for frame in frames]
    return torch.stack(last)[3:]


def _encode(state: dict[str, Tensor], frames_TCHW: Tensor) -> Tensor:
    """The last frame is repeated until the frames make whole latents."""
    clip = [*frames_TCHW, *[frames_TCHW[-1]] * 3]
    frames = [F.conv2d(frame, state["0.weight"], state["0.bias"], padding=1).relu() for frame in clip]
    for first, count in ((2, 2), (7, 2), (12, 1)):
        groups = [torch.cat(frames[index : index + count]) for index in range(0, len(frames), count)]
        pooled = [F.conv2d(group, state[f"{first}.conv.weight"]) for group in groups]
        frames = [F.conv2d(frame, state[f"{first + 1}.weight"], stride=2, padding=1) for frame in pooled]
        for block in range(first + 2, first + 5):
            frames = _memory_block(state, str(block), frames)
    return torch.stack([F.conv2d(frame, state["17.weight"], state["17.bias"], padding=1) for frame in frames])


def _half(module: Any, name: str) -> dict[str, Tensor]:
    return {key.removeprefix(f"{name}."): value for key, value in module.state_dict().items() if key.startswith(name)}


def test_decoding_is_that_of_a_loop_over_frames() -> None:
    module = build(VARIANTS["tiny"])
    latents = torch.randn(2, 3, 16, 3, 2, generator=torch.Generator().manual_seed(0)) * 3
    naive = torch.stack([_decode(_half(module, "decoder"), sample) for sample in latents])
    assert naive.shape[1] == 9
    torch.testing.assert_close(module.pixels(latents, {}), naive, atol=1e-6, rtol=1e-5)
    nearest = (naive.clamp(0, 1) * 255).round().int()
    assert 0 < (nearest == 0).float().mean() < 0.9  # some are clamped, others are rounded
    assert (module.decode(latents, {}).int() == nearest).float().mean() > 0.999


def test_encoding_is_that_of_a_loop_over_frames() -> None:
    module = build(VARIANTS["tiny"])
    video = torch.randint(256, (2, 9, 3, 16, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    naive = torch.stack([_encode(_half(module, "encoder"), sample / 255) for sample in video])
    torch.testing.assert_close(module.encode(video), naive, atol=1e-6, rtol=1e-5)
    alone = module.encode(video[:, :1])
    torch.testing.assert_close(alone[0], _encode(_half(module, "encoder"), video[0, :1] / 255), atol=1e-6, rtol=1e-5)
