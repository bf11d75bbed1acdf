"""The Wan VAE against what Wan's own code recorded (tests/golden/wan), against diffusers, and the published names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal import checkpoints
from diagonal.tokenizers.wan_vae import VARIANTS, Config, WanVAE
from tests.conftest import golden, golden_json
from tests.tiny import build


@pytest.fixture(scope="module")
def recorded() -> dict[str, Tensor]:
    return golden("wan/tiny_vae.safetensors")


@pytest.fixture(scope="module")
def vae(recorded: dict[str, Tensor]) -> WanVAE:
    """With the recording's own weights, mean and deviation."""
    mean, std = (tuple(numbers.tolist()) for numbers in (recorded["scale_mean"], 1 / recorded["scale_inv_std"]))
    module = build(replace(VARIANTS["tiny"], mean=mean, std=std))
    own = {key.removeprefix("w."): value for key, value in recorded.items() if key.startswith("w.")}
    checkpoints.load(module, own, "the recorded VAE")
    loaded: WanVAE = module.requires_grad_(False)
    return loaded


CUTS = [[9], [1, 4, 4], [1, 8], [5, 4]]


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_latents_are_the_recorded_ones_whole_and_in_parts(
    vae: WanVAE, recorded: dict[str, Tensor], cut: list[int]
) -> None:
    state: dict[str, Tensor] = {}
    parts = [vae.latents(part, state) for part in recorded["video"].transpose(1, 2).split(cut, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), recorded["latent"].transpose(1, 2), atol=1e-5, rtol=0)


@pytest.mark.parametrize("cut", [[3], [1, 1, 1], [1, 2], [2, 1]], ids=str)
def test_frames_are_the_recorded_ones_whole_and_in_parts(
    vae: WanVAE, recorded: dict[str, Tensor], cut: list[int]
) -> None:
    state: dict[str, Tensor] = {}
    parts = [vae.pixels(part, state) for part in recorded["latent"].transpose(1, 2).split(cut, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), recorded["recon"].transpose(1, 2), atol=2e-5, rtol=0)


def test_bytes_are_the_nearest_to_the_recorded_frames(vae: WanVAE, recorded: dict[str, Tensor]) -> None:
    frames = recorded["recon"].transpose(1, 2)
    assert frames.abs().max() > 1  # so clamping is seen
    nearest = ((frames.double().clamp(-1, 1) + 1) / 2 * 255).round()
    difference = (vae.decode(recorded["latent"].transpose(1, 2), {}).double() - nearest).abs()
    assert difference.max() <= 1 and (difference == 0).double().mean() > 0.999


def test_encode_maps_bytes_to_minus_one_to_one(vae: WanVAE) -> None:
    video = torch.randint(256, (2, 5, 3, 16, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    latents = vae.latents((video.double() / 255 * 2 - 1).float(), {})
    torch.testing.assert_close(vae.encode(video), latents, atol=1e-5, rtol=0)
    state: dict[str, Tensor] = {}
    parts = [vae.encode(video[:, :1], state), vae.encode(video[:, 1:], state)]
    torch.testing.assert_close(torch.cat(parts, dim=1), latents, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="3 more frames given; a clip goes on by 4n: 4, 8, "):
        vae.encode(video[:, :3], state)


@pytest.mark.parametrize("layout", ["orig", "diffusers"])
def test_published_keys_load_strictly(layout: str) -> None:
    manifest = golden_json(f"wan/manifest_vae_{layout}.json")
    state = {key: torch.empty(shape, device="meta") for key, (shape, _) in manifest["tensors"].items()}
    with torch.device("meta"):
        module = VARIANTS["1"].build()
    checkpoints.load(module, state, "wan_vae/1")
    assert sum(parameter.numel() for parameter in module.parameters()) == manifest["_params"] == 126_892_531
    with pytest.raises(ValueError, match="1 missing"):
        checkpoints.load(module, dict(list(state.items())[1:]), "wan_vae/1")
    with pytest.raises(ValueError, match="1 unexpected"):
        checkpoints.load(module, state | {"decoder.up_blocks.3.upsamplers.0.extra": torch.empty(1)}, "wan_vae/1")


def test_both_layouts_name_the_same_tensors() -> None:
    """Every published key of one layout is one of the other's, with its shape: the table loses and doubles none."""
    ours, theirs = (golden_json(f"wan/manifest_vae_{layout}.json")["tensors"] for layout in ("orig", "diffusers"))
    with torch.device("meta"):
        table = VARIANTS["1"].build().weight_map.keys
    named = {key: torch.empty(0) for key in theirs}
    renamed = checkpoints.rename({key: torch.full((), index) for index, key in enumerate(named)}, table)
    assert renamed.keys() == ours.keys()
    back = {key: list(theirs)[int(value)] for key, value in renamed.items()}
    assert sorted(back.values()) == sorted(theirs)
    assert {key: theirs[back[key]] for key in back} == ours


def _diffusers(config: Config) -> Any:
    from diffusers import AutoencoderKLWan

    make: Any = AutoencoderKLWan  # diffusers is not typed
    torch.manual_seed(0)
    model = make(
        base_dim=config.width,
        z_dim=config.latent,
        dim_mult=list(config.multiples),
        num_res_blocks=config.blocks,
        temperal_downsample=list(config.time),
    )
    with torch.no_grad():  # it starts with plain norms and zeros, which would hide a mistake
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model.eval()


@pytest.mark.parametrize("blocks", [1, 2])
def test_diffusers_weights_give_diffusers_latents_and_frames(blocks: int) -> None:
    config = replace(VARIANTS["tiny"], width=6, blocks=blocks)
    reference, module = _diffusers(config), build(config)
    checkpoints.load(module, reference.state_dict(), "diffusers' VAE")
    assert list(config.mean) == reference.config.latents_mean and list(config.std) == reference.config.latents_std
    mean, std = (torch.tensor(numbers)[:, None, None, None] for numbers in (config.mean, config.std))
    video_BCTHW = torch.rand(1, 3, 9, 16, 24, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        mu_BCTHW = reference.encode(video_BCTHW).latent_dist.mode()
        frames_BCTHW = reference.decode(mu_BCTHW).sample
        latents = module.latents(video_BCTHW.transpose(1, 2), {})
        pixels = module.pixels(latents, {})
    torch.testing.assert_close(latents, ((mu_BCTHW - mean) / std).transpose(1, 2), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(pixels.clamp(-1, 1), frames_BCTHW.transpose(1, 2), atol=1e-4, rtol=1e-4)
