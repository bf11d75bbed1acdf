"""VideoGPT against recordings of the reference implementation (tests/golden/videogpt)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal import checkpoints
from diagonal.engine.attention import Causal
from diagonal.models.frame_encoder import Widths
from diagonal.models.videogpt import STRIPE, Config, Steered, Steering, VideoGPT, sees
from diagonal.tokenizers import videogpt as tokenizer
from tests.conftest import golden, golden_json

CASES = golden_json("videogpt/golden.json")["cases"]
PICTURE = Widths(stem=4, groups=(4, 8, 16, 12))  # of the recorded frame encoder


def state(data: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix("model."): value for key, value in data.items() if key.startswith("model.")}


def vq_config(case: dict[str, Any]) -> tokenizer.Config:
    return tokenizer.Config(
        stride=case["downsample"][0],
        patch=case["downsample"][2],
        codebook=case["n_codes"],
        width=case["n_hiddens"],
        latent=case["embedding_dim"],
        layers=case["n_res_layers"],
    )


@pytest.mark.parametrize("name", ["vqvae_444", "vqvae_422"])
def test_clips_become_the_reference_s_codes_and_codes_its_pixels(name: str) -> None:
    data = golden(f"videogpt/{name}.safetensors")
    vq = vq_config(CASES[name]["config"]).build().eval()
    checkpoints.load(vq, state(data), name)
    with torch.no_grad():
        latents = vq.latents(data["video"])
        torch.testing.assert_close(latents, data["z"], atol=2e-6, rtol=0)
        assert torch.equal(vq.nearest(latents), data["ids"])
        for ids, pixels in (("ids", "recon"), ("random_ids", "random_recon")):
            torch.testing.assert_close(vq.pixels(data[ids]), data[pixels], atol=2e-6, rtol=0)
    shown = vq.decode(data["ids"], {}).transpose(1, 2)
    assert (shown.float() - data["pixels"] * 255).abs().max() < 1 + 1e-3  # cut off, as its writer does


def prior(name: str, data: dict[str, Tensor]) -> VideoGPT:
    case, vq, (frames, rows, cols) = CASES[name]["config"], CASES[name]["vqvae_config"], CASES[name]["shape"]
    config = Config(
        width=case["hidden_dim"],
        layers=case["layers"],
        heads=case["heads"],
        frames=frames,
        rows=rows,
        cols=cols,
        codebook=vq["n_codes"],
        latent=vq["embedding_dim"],
        classes=case["class_cond_dim"] or 0,
        given=case["n_cond_frames"],
        picture_rows=rows,
        picture_cols=cols,
        picture=PICTURE,
        sparse=case["attn_type"] == "sparse",
    )
    model = config.build().eval()
    own = {key: value for key, value in state(data).items() if not key.startswith("vqvae.")}
    checkpoints.load(model, own | {"vqvae.codebook.embeddings": data["model.vqvae.codebook.embeddings"]}, name)
    return model


@pytest.mark.parametrize("name", ["gpt_full", "gpt_full_class", "gpt_full_frame", "gpt_sparse"])
def test_logits_are_the_reference_s(name: str) -> None:
    data = golden(f"videogpt/{name}.safetensors")
    model = prior(name, data)
    cells = data["tokens"].flatten(1)
    inputs = torch.cat([torch.full((len(cells), 1), model.config.codebook), cells[:, :-1]], dim=1)
    with torch.no_grad():
        run = Steered(model, steering(model, data))
        logits = run(inputs, torch.arange(inputs.shape[1]), Causal())
    torch.testing.assert_close(logits.view_as(data["logits"]), data["logits"], atol=2e-5, rtol=0)


def steering(model: VideoGPT, data: dict[str, Tensor]) -> Steering:
    """What the recording's videos go by."""
    if model.config.classes:
        return model.bind_class(data["label"]).steering
    if not model.config.given:
        return Steering()
    features = model.features(data["cond_frames"])
    torch.testing.assert_close(features, data["frame_context"], atol=2e-6, rtol=0)
    return model.steering(features)


def test_sparse_attention_has_the_reference_s_mask() -> None:
    data = golden("videogpt/gpt_sparse.safetensors")
    slots = torch.arange(len(data["mask"]))
    frame = CASES["gpt_sparse"]["shape"][1] * CASES["gpt_sparse"]["shape"][2]
    seen = sees(slots[:, None], slots, frame) & (slots <= slots[:, None])
    assert torch.equal(seen, data["mask"].bool())
    layout = golden("videogpt/sparse_layout_4x32x32.safetensors")["block_layout"].bool()
    first = torch.arange(len(layout)) * STRIPE
    assert torch.equal(sees(first[:, None], first, 32 * 32) & (first <= first[:, None]), layout)
