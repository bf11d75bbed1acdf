"""MAGI-1's published files: folders, shards with an index, packed and rounded ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from diagonal import checkpoints
from diagonal.catalog.names import find
from diagonal.generation.components import Weights, published
from diagonal.models.magi import Magi
from diagonal.text.encoders import ENCODERS
from tests.conftest import GOLDEN
from tests.tiny import build

TINY = find("models", "magi/tiny")


@pytest.fixture(scope="module")
def model() -> Any:
    return build(TINY.config)


def published_names(model: Any) -> dict[str, Tensor]:
    """The tensors under the names of the release."""
    state = model.state_dict()
    found: dict[str, Tensor] = {}
    for ours, theirs in Magi.weight_map.keys.items():
        for layer in range(model.config.layers) if "blocks" in ours else [None]:
            for rest in ("weight", "bias", "0.weight", "0.bias", "2.weight", "2.bias"):
                stands = [str(layer)] * (layer is not None) + [rest] * ours.endswith("{}")
                key = ours.format(*stands)
                if key in state:
                    parts = [state[key]] if len(theirs) == 1 else state[key].split(model.blocks[0].widths)
                    found |= {name.format(*stands): part for name, part in zip(theirs, parts, strict=True)}
    return {name: value.clone() for name, value in found.items()}


@pytest.fixture
def folder(tmp_path: Path, model: Any) -> Path:
    """As released: two shards and an index in `inference_weight`, the autoencoder in a folder of its own."""
    inside = tmp_path / "4.5B_base" / "inference_weight"
    inside.mkdir(parents=True)
    names = published_names(model)
    keys = sorted(names)
    shards = {"model-00001-of-00002.safetensors": keys[::2], "model-00002-of-00002.safetensors": keys[1::2]}
    for name, some in shards.items():
        save_file({key: names[key] for key in some}, inside / name)
    index = {"metadata": {}, "weight_map": {key: name for name, some in shards.items() for key in some}}
    (inside / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "vae").mkdir()
    save_file(build(find("tokenizers", "magi/tiny")).state_dict(), tmp_path / "vae" / "model.safetensors")
    return tmp_path / "4.5B_base"


def _load(folder: Path, **more: Any) -> Any:
    return published("magi/tiny", TINY, Weights(folder, vae=folder.parent / "vae", **more))


def test_the_published_layout_is_read_strictly(folder: Path, model: Any) -> None:
    parts = _load(folder)
    for key, value in model.state_dict().items():
        assert torch.equal(parts.transformer.state_dict()[key], value), key
    assert parts.special is None and parts.encoder == ENCODERS["hash"]
    inside = published("magi/tiny", TINY, Weights(folder / "inference_weight", vae="none"))
    assert torch.equal(inside.transformer.null.weight, model.null.weight)


def test_hashes_are_of_the_files_inside(folder: Path) -> None:
    from diagonal.checkpoints.hashes import hashes

    assert sorted(hashes(folder)) == [f"inference_weight/model-0000{one}-of-00002.safetensors" for one in (1, 2)]


def test_shards_that_lack_are_named(folder: Path) -> None:
    (folder / "inference_weight" / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks 1 of 2 shards: model-00002-of-00002\.safetensors"):
        _load(folder)


def test_packed_shards_are_refused_with_what_to_do(folder: Path) -> None:
    inside = folder / "inference_weight"
    packed = inside / "model-00002-of-00002.safetensors"
    packed.rename(inside / f"{packed.name}.zst")
    with pytest.raises(ValueError, match=r"packed files: model-00002-of-00002\.safetensors\.zst; .*zstd -d"):
        _load(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no index of shards"),
        ("[]", "is no index of shards"),
        ('{"weight_map": {"a": "../elsewhere.safetensors"}}', "no shards beside it"),
        ('{"weight_map": {"a": "model.pt"}}', "no shards beside it"),
    ],
)
def test_an_index_that_is_none_is_refused(folder: Path, content: str, message: str) -> None:
    (folder / "inference_weight" / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        _load(folder)


def test_rounded_weights_are_refused_with_what_to_do(folder: Path, tmp_path: Path) -> None:
    rounded = tmp_path / "fp8"
    rounded.mkdir()
    key = "videodit_blocks.layers.1.self_attention.linear_qkv.q.weight"
    save_file({key: torch.zeros(1, 4, 4), f"{key}_scale": torch.ones(1)}, rounded / "model.safetensors")
    with pytest.raises(ValueError, match="weights of fp8; give those of bfloat16"):
        _load(rounded)


def test_a_folder_of_several_models_asks_for_one(folder: Path) -> None:
    (folder / "inference_weight.distill").mkdir()
    with pytest.raises(ValueError, match=r"inference_weight, inference_weight\.distill; name the one"):
        _load(folder)


def test_a_missing_autoencoder_is_named(folder: Path) -> None:
    with pytest.raises(ValueError, match="holds no VAE; give one too"):
        published("magi/tiny", TINY, Weights(folder))


def test_weights_of_another_model_are_refused(folder: Path) -> None:
    wan = build(find("models", "wan/tiny").config)
    save_file(wan.state_dict(), folder.parent / "wan.safetensors")
    with pytest.raises(ValueError, match="does not fit magi/tiny"):
        published("magi/tiny", TINY, Weights(folder.parent / "wan.safetensors", vae="none"))
    with pytest.raises(ValueError, match="does not fit wan/tiny"):
        published("wan/tiny", find("models", "wan/tiny"), Weights(folder, vae="none"))


def test_special_tokens_must_fit_and_are_magi_s_alone(folder: Path) -> None:
    file = GOLDEN / "magi" / "special_tokens.safetensors"
    with pytest.raises(ValueError, match=r"this model takes \(48,\)"):
        _load(folder, special_tokens=file)
    with pytest.raises(ValueError, match="only MAGI-1 has some"):
        published("wan/tiny", find("models", "wan/tiny"), Weights(folder, special_tokens=file))
    right = folder.parent / "tokens.safetensors"
    save_file({"hq": torch.ones(1, 48), "duration": torch.zeros(8, 48)}, right)
    assert _load(folder, special_tokens=right).special.quality_C.sum() == 48


def test_a_cast_leaves_what_is_precise_in_float32(model: Any) -> None:
    cast = build(TINY.config).to(torch.bfloat16)
    kept = {name for name, one in cast.named_parameters() if one.dtype == torch.float32}
    assert {name.split(".")[0] for name in kept if not name.startswith("blocks")} == {
        *("embed", "time", "text_in", "row", "null", "rotation", "out_norm", "out")
    }
    assert {name.split(".")[2] for name in kept if name.startswith("blocks")} == {
        *("q_norm", "k_norm", "post_norm1", "post_norm2")
    }
    assert next(cast.parameters()).dtype == torch.bfloat16
    for name in kept:  # and rounded it was not
        assert torch.equal(cast.state_dict()[name], model.state_dict()[name]), name


def test_what_is_precise_is_in_float32_however_it_was_stored(model: Any) -> None:
    with torch.device("meta"):
        stored = TINY.config.build()
    checkpoints.load(stored, {key: value.bfloat16() for key, value in model.state_dict().items()}, "magi/tiny")
    stored.to(dtype=torch.bfloat16)
    assert stored.embed.weight.dtype == stored.blocks[0].q_norm.weight.dtype == torch.float32
    assert torch.equal(stored.embed.weight, model.embed.weight.bfloat16().float())


def test_saved_weights_are_read_again(tmp_path: Path, model: Any) -> None:
    checkpoints.save({"transformer": model}, tmp_path / "model.safetensors", {})
    with torch.device("meta"):
        again = TINY.config.build()
    checkpoints.load(again, checkpoints.read(tmp_path), "magi/tiny")
    assert torch.equal(again.blocks[1].qqkv.weight, model.blocks[1].qqkv.weight)
