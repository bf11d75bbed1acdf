"""`diagonal convert`, run for real: what was published and what was written are the same model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import diagonal
from diagonal import checkpoints
from diagonal.catalog.names import find
from diagonal.checkpoints import writing
from tests.e2e.conftest import call
from tests.tiny import TINY

COMMAND = str(Path(sys.executable).with_name("diagonal"))
ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1"}
pytestmark = pytest.mark.usefixtures("forked")


def convert(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return call(folder, "convert", "--model", "cosmos/tiny", *arguments)


def state(module: torch.nn.Module, prefix: str = "") -> dict[str, Tensor]:
    return {prefix + key: value for key, value in module.state_dict().items()}


@pytest.fixture
def published(tmp_path: Path) -> diagonal.World:
    """A model in bfloat16 and its tokenizer in float32, in two files, as people publish them."""
    world = diagonal.load("cosmos/tiny", seed=3)
    world.model.bfloat16()
    renamed = {
        key.replace("blocks.", "layers.").replace("mlp_norm", "ffn_norm"): v for key, v in state(world.model).items()
    }
    for key in [key for key in renamed if key.endswith((".qkv.weight", ".gate_up.weight", ".down.weight"))]:
        start, value, config = key.rsplit(".", 2)[0], renamed.pop(key), find("models", "cosmos/tiny").config
        start = start.replace(".mlp", ".feed_forward")
        if "qkv" in key:
            sizes = [
                config.heads * config.head_dim,
                config.kv_heads * config.head_dim,
                config.kv_heads * config.head_dim,
            ]
            names = ["wq", "wk", "wv"]
        elif "gate_up" in key:
            sizes, names = [config.mlp, config.mlp], ["w1", "w3"]
        else:
            sizes, names = [len(value)], ["w2"]
        parts = zip(names, value.split(sizes), strict=True)
        renamed |= {f"{start}.{name}.weight": part.clone() for name, part in parts}
    for ours, theirs in {"embed": "tok_embeddings", "head": "output"}.items():
        renamed[f"{theirs}.weight"] = renamed.pop(f"{ours}.weight")
    renamed = {key.replace("attention.out.", "attention.wo."): value for key, value in renamed.items()}
    torch.save({"model": renamed}, tmp_path / "model.pt")
    torch.save(state(world.tokenizer), tmp_path / "tokenizer.pt")
    return world


FROM = ("--weights", "model.pt", "--tokenizer", "tokenizer.pt")


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float32"])
def test_a_published_checkpoint_becomes_one_folder(tmp_path: Path, published: diagonal.World, dtype: str) -> None:
    done = convert(tmp_path, *FROM, "--out", "new/folder", "--dtype", dtype, "--json")
    assert done.returncode == 0, done.stderr
    numbers, file = json.loads(done.stdout), tmp_path / "new" / "folder" / "model.safetensors"
    expected = state(published.model, "transformer.") | state(published.tokenizer, "tokenizer.")
    assert numbers == {
        "model": "cosmos/tiny",
        "out": "new/folder",
        "files": ["model.safetensors"],
        "parameters": sum(value.numel() for value in expected.values()),
        "bytes": file.stat().st_size,
        "dtype": "bfloat16, float32" if dtype == "auto" else dtype,
    }
    assert os.listdir(file.parent) == numbers["files"]
    if dtype != "auto":
        expected = {key: value.to(getattr(torch, dtype)) for key, value in expected.items()}
    found = load_file(file)
    assert found.keys() == expected.keys()
    assert all(found[key].dtype == expected[key].dtype and torch.equal(found[key], expected[key]) for key in found)
    again = diagonal.load("cosmos/tiny", weights=file.parent, dtype=torch.bfloat16)
    assert all(torch.equal(value, published.model.state_dict()[key]) for key, value in again.model.state_dict().items())


def test_what_was_converted_is_shown(tmp_path: Path, published: diagonal.World) -> None:
    done = convert(tmp_path, *FROM, "--out", "new[bold]")
    assert done.returncode == 0, done.stderr
    size = sum(value.numel() for value in [*state(published.model).values(), *state(published.tokenizer).values()])
    for words in ("cosmos/tiny", f"{size:,}", "0.00", "bfloat16, float32", "--weights new[bold]"):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--weights", "nowhere.pt", "--out", "held"], "held already holds checkpoint files: old.ckpt"),
        (["--weights", "nowhere.pt", "--out", "model.pt"], "model.pt is a file; name a folder"),
        (["--weights", "nowhere.pt", "--out", "new", "--dtype", "int8"], "dtype 'int8' is not known"),
        (["--weights", "nowhere.pt", "--out", "new"], "do not exist"),
        (["--weights", "model.pt", "--out", "new"], "holds no tokenizer"),
        (["--weights", "tokenizer.pt", "--tokenizer", "model.pt", "--out", "new"], "missing"),
    ],
)
def test_what_cannot_be_converted_is_refused(
    tmp_path: Path, published: diagonal.World, arguments: list[str], words: str
) -> None:
    """The folder is looked at before the checkpoint is."""
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "old.ckpt").touch()
    done = convert(tmp_path, *arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert words in done.stderr and not done.stdout
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("shard", [10**9, 10**5])
@pytest.mark.parametrize("name", TINY)
def test_every_world_comes_back_with_the_whole_numbers_of_its_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, shard: int
) -> None:
    """In one file, or in many of which the first is asked."""
    monkeypatch.setattr(writing, "SHARD", shard)
    world = diagonal.load(name, "random", seed=1)
    folder = world.save_pretrained(tmp_path)
    assert (len(os.listdir(folder)) > 1) == (shard < 10**9)
    config = world.tokenizer.config
    whole = {field.name: getattr(config, field.name) for field in fields(config) if field.type == "int"}
    noted = {f"tokenizer.{key}": value for key, value in whole.items()}
    assert checkpoints.settings(folder) == {"model": name} | noted and noted
    again = diagonal.load(name, folder)
    for first, second in ((world.model, again.model), (world.tokenizer, again.tokenizer)):
        assert all(torch.equal(value, second.state_dict()[key]) for key, value in first.state_dict().items())


def test_a_head_size_that_no_shape_tells_comes_back(tmp_path: Path) -> None:
    world = diagonal.load("wham/tiny")
    folder = world.save_pretrained(tmp_path)
    config = find("tokenizers", "wham/vit").fit(checkpoints.read(folder), checkpoints.settings(folder))
    assert config.head_size == world.tokenizer.config.head_size == 16 != find("tokenizers", "wham/vit").head_size
