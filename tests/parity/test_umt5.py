"""Wan2.1's text encoder against its own recorded output, and its names at full size (tests/golden/wan)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal import checkpoints
from diagonal.text import umt5
from tests.conftest import golden, golden_json


@pytest.fixture(scope="module")
def recorded() -> dict[str, Tensor]:
    return golden("wan/tiny_umt5.safetensors")


@pytest.fixture(scope="module")
def original(recorded: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix("w."): value for key, value in recorded.items() if key.startswith("w.")}


def test_the_encoders_output_is_the_recorded_one(
    recorded: dict[str, Tensor], original: dict[str, Tensor], tmp_path: Path
) -> None:
    torch.save(original, tmp_path / "encoder.pth")
    model = umt5.load(tmp_path / "encoder.pth", torch.float32)
    mask_BS = recorded["mask"].bool()
    assert not mask_BS.all() and mask_BS.any(1).all()
    with torch.inference_mode():
        hidden_BSC = model(input_ids=recorded["ids"], attention_mask=recorded["mask"]).last_hidden_state
        torch.testing.assert_close(hidden_BSC[mask_BS], recorded["out"][mask_BS], rtol=0, atol=2e-6)
        for ids_S, keep_S, out_SC in zip(recorded["ids"], mask_BS, recorded["out"], strict=True):
            alone_SC = model(input_ids=ids_S[keep_S][None]).last_hidden_state[0]  # as text.py does: without padding
            torch.testing.assert_close(alone_SC, out_SC[keep_S], rtol=0, atol=2e-6)


def test_the_names_of_the_file_are_those_of_transformers_at_full_size() -> None:
    def shapes(name: str) -> dict[str, Any]:
        return {key: value[0] for key, value in golden_json(f"wan/manifest_umt5xxl_enc_{name}.json")["tensors"].items()}

    state = {key: torch.empty(shape, device="meta") for key, shape in shapes("orig").items()}
    ours = {key: list(value.shape) for key, value in checkpoints.rename(state, umt5.KEYS).items()}
    wanted = shapes("hf")
    assert wanted.pop("encoder.embed_tokens.weight") == wanted["shared.weight"]  # one tensor under two names
    assert ours == wanted and len(ours) == 242


def test_the_sizes_come_from_the_tensors() -> None:
    manifest = golden_json("wan/manifest_umt5xxl_enc_orig.json")["tensors"]
    model = umt5.build({key: torch.empty(shape, device="meta") for key, (shape, _) in manifest.items()}, torch.bfloat16)
    config = model.config
    assert (config.d_model, config.d_ff, config.num_layers, config.num_heads, config.d_kv) == (4096, 10240, 24, 64, 64)
    assert (config.vocab_size, config.relative_attention_num_buckets) == (256384, 32)
    assert model.get_input_embeddings().weight.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"norm.weight": None}, "lacks norm.weight"),
        ({"blocks.1.attn.k.weight": None}, "SelfAttention.k.weight"),
        ({"blocks.0.attn.bias": torch.ones(2)}, "blocks.0.attn.bias"),
        ({"norm.weight": torch.ones(3)}, "final_layer_norm"),
    ],
)
def test_another_file_is_refused(original: dict[str, Tensor], change: dict[str, Tensor | None], why: str) -> None:
    state = {key: value for key, value in (original | change).items() if value is not None}
    with pytest.raises((ValueError, RuntimeError), match=why):
        umt5.build(state, torch.float32)
