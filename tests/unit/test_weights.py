"""Checkpoints: every form that is read, and everything that is refused."""

from __future__ import annotations

import os
import pickle
import resource
import socket
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.utils._paths import filter_repo_objects
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from diagonal import checkpoints
from diagonal.catalog.variants import WeightMap
from diagonal.checkpoints import writing


class Toy(nn.Module):
    """Two layers whose q and k are one matrix here and two in the published files."""

    weight_map = WeightMap(
        prefixes=("transformer.", ""),
        keys={
            "embed.weight": ("model.embed.weight",),
            "blocks.{}.qk.weight": ("model.layers.{}.q.weight", "model.layers.{}.k.weight"),
        },
    )

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList(nn.ModuleDict({"qk": nn.Linear(4, 6, bias=False)}) for _ in range(2))


class ToyTokenizer(nn.Module):
    """All keys of the published file get a prefix here."""

    weight_map = WeightMap(
        prefixes=("tokenizer.model.", "tokenizer.", ""), keys={"vq.{}": ("{}",)}, ignore=("{}.mask", "judge")
    )

    def __init__(self) -> None:
        super().__init__()
        self.vq = nn.Linear(3, 2)


@pytest.fixture
def published() -> dict[str, Tensor]:
    """The tensors of a published checkpoint, as its authors name them, no prefix."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"model.embed.weight": (5, 4)}
    for layer in range(2):
        shapes |= {f"model.layers.{layer}.q.weight": (4, 4), f"model.layers.{layer}.k.weight": (2, 4)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def prefixed(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {prefix + key: value for key, value in state.items()}


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


def assert_holds(model: Toy, published: dict[str, Tensor]) -> None:
    """The model has the published numbers, q above k."""
    assert torch.equal(model.embed.weight, published["model.embed.weight"])
    for layer in range(2):
        parts = [published[f"model.layers.{layer}.{name}.weight"] for name in "qk"]
        assert torch.equal(model.state_dict()[f"blocks.{layer}.qk.weight"], torch.cat(parts))


# Reading


def test_saved_modules_load_back_exactly(tmp_path):
    model, tokenizer = Toy(), ToyTokenizer()
    checkpoints.save({"transformer": model, "tokenizer": tokenizer}, tmp_path / "model.safetensors", {"model": "toy"})
    state = checkpoints.read(tmp_path / "model.safetensors")
    other, other_tokenizer = Toy(), ToyTokenizer()
    checkpoints.load(other, state, "toy")
    checkpoints.load(other_tokenizer, state, "toy")
    assert_same(dict(model.state_dict()), dict(other.state_dict()))
    assert_same(dict(tokenizer.state_dict()), dict(other_tokenizer.state_dict()))


def test_saving_leaves_one_file(tmp_path):
    checkpoints.save({"transformer": Toy()}, tmp_path / "model.safetensors", {})
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_a_folder_with_one_file_is_that_file(tmp_path, published):
    save_file(published, tmp_path / "weights.safetensors")
    (tmp_path / "config.json").write_text("{}")
    assert_same(checkpoints.read(tmp_path), published)


def test_a_folder_of_shards_is_one_checkpoint(tmp_path, published):
    names = list(published)
    save_file({name: published[name] for name in names[:2]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({name: published[name] for name in names[2:]}, tmp_path / "model-00002-of-00002.safetensors")
    assert_same(checkpoints.read(tmp_path), published)


def test_a_shrunk_checkpoint_may_be_cut_anywhere(tmp_path):
    state = {"a": torch.randn(4, 6), "b": torch.randn(3, 2)}
    small = checkpoints.shrink(state)
    for number, (name, value) in enumerate(small.items()):
        save_file({name: value}, tmp_path / f"part-{number}.safetensors")
    assert_same(checkpoints.read(tmp_path), checkpoints.restore(small))


def test_shards_that_repeat_keys_are_refused_with_the_keys(tmp_path, published):
    save_file(published, tmp_path / "a.safetensors")
    save_file({"model.embed.weight": torch.zeros(1), "other": torch.zeros(1)}, tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match=r"b\.safetensors repeats keys of another shard: model\.embed\.weight$"):
        checkpoints.read(tmp_path)


@pytest.mark.parametrize("suffix", [".ckpt", ".bin", ".pt", ".pth"])
def test_a_flat_pytorch_file_is_read(tmp_path, published, suffix):
    torch.save(published, tmp_path / f"weights{suffix}")
    assert_same(checkpoints.read(tmp_path / f"weights{suffix}"), published)


def test_a_checkpoint_of_a_trainer_is_its_state_dict(tmp_path, published):
    torch.save({"state_dict": published, "epoch": 3, "optimizer": {"lr": 0.1}}, tmp_path / "last.ckpt")
    assert_same(checkpoints.read(tmp_path / "last.ckpt"), published)


def test_a_pytorch_file_of_the_older_format_is_read(tmp_path, published):
    torch.save(published, tmp_path / "old.ckpt", _use_new_zipfile_serialization=False)
    assert_same(checkpoints.read(tmp_path / "old.ckpt"), published)


def test_safetensors_are_preferred_in_a_folder_that_has_both(tmp_path, published):
    save_file(published, tmp_path / "model.safetensors")
    torch.save({"other": torch.zeros(1)}, tmp_path / "model.bin")
    assert_same(checkpoints.read(tmp_path), published)


# Writing


SMALL = 200  # bytes: Toy has 80 of embeddings and twice 96, ToyTokenizer 24 and 8


def numbers(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.state_dict())


def test_a_checkpoint_that_is_too_large_is_written_in_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "SHARD", SMALL)
    model, tokenizer, told = Toy(), ToyTokenizer(), []
    modules = {"transformer": model, "tokenizer": tokenizer}
    path = tmp_path / "model.safetensors"
    paths = checkpoints.save(modules, path, {"model": "toy"}, on_file=lambda done, total: told.append((done, total)))
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert [path.name for path in paths] == names == sorted(os.listdir(tmp_path))
    assert told == [(1, 2), (2, 2)]
    assert [sum(value.nbytes for value in load_file(path).values()) for path in paths] == [80 + 96, 96 + 24 + 8]
    for path in paths:
        assert checkpoints.settings(path) == {"model": "toy"}
    state = checkpoints.read(tmp_path)
    assert_same(state, prefixed(numbers(model), "transformer.") | prefixed(numbers(tokenizer), "tokenizer."))


def test_a_tensor_larger_than_a_shard_has_one_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "SHARD", 90)
    paths = checkpoints.save({"transformer": Toy()}, tmp_path / "model.safetensors", {})
    assert [list(load_file(path)) for path in paths] == [
        ["transformer.embed.weight"],
        ["transformer.blocks.0.qk.weight"],
        ["transformer.blocks.1.qk.weight"],
    ]


def test_shards_are_cut_by_the_size_that_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "SHARD", SMALL)
    model = Toy()
    (path,) = checkpoints.save({"transformer": model}, tmp_path / "model.safetensors", {}, torch.bfloat16)
    assert path.name == "model.safetensors"
    assert_same(load_file(path), {f"transformer.{key}": value.bfloat16() for key, value in numbers(model).items()})
    assert model.embed.weight.dtype == torch.float32


def test_what_is_stored_in_several_types_stays_so(tmp_path):
    model = Toy()
    model.embed.bfloat16()
    checkpoints.save({"transformer": model}, tmp_path / "model.safetensors", {})
    assert_same(checkpoints.read(tmp_path), prefixed(numbers(model), "transformer."))


def test_a_failure_between_two_shards_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "SHARD", SMALL)

    def fail(done: int, total: int) -> None:
        assert len(os.listdir(tmp_path)) == 1  # written, under another name
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left"):
        checkpoints.save({"transformer": Toy()}, tmp_path / "model.safetensors", {}, on_file=fail)
    assert os.listdir(tmp_path) == []


def test_another_number_of_shards_is_not_written_beside_the_first(tmp_path, monkeypatch):
    """All of them would be read as one checkpoint."""
    path = tmp_path / "model.safetensors"
    checkpoints.save({"transformer": Toy()}, path, {})
    checkpoints.save({"transformer": Toy()}, path, {})  # the same files again are replaced
    monkeypatch.setattr(writing, "SHARD", SMALL)
    with pytest.raises(FileExistsError, match=r"another number of parts: model\.safetensors; remove them"):
        checkpoints.save({"transformer": Toy()}, path, {})
    path.unlink()
    checkpoints.save({"transformer": Toy()}, path, {})
    monkeypatch.undo()
    with pytest.raises(FileExistsError, match=r"model-00001-of-00002\.safetensors, model-00002-of-00002\.safetensors"):
        checkpoints.save({"transformer": Toy()}, path, {})


@pytest.mark.parametrize("name", ["model.safetensors", "last.ckpt", "model.pt", "encoder.jit"])
def test_a_folder_that_holds_a_checkpoint_is_not_free(tmp_path, name):
    checkpoints.check_free(tmp_path / "new")
    (tmp_path / "notes.txt").write_text("fine")
    checkpoints.check_free(tmp_path)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(FileExistsError, match=f"already holds checkpoint files: {name}"):
        checkpoints.check_free(tmp_path)
    with pytest.raises(NotADirectoryError, match="is a file; name a folder"):
        checkpoints.check_free(tmp_path / name)


# What a checkpoint says beside its tensors


def test_metadata_of_safetensors_are_settings_and_digits_are_numbers(tmp_path):
    said = {"model": "toy", "tokenizer.head_size": "64", "version": "1.0", "odd": "6²", "long": "9" * 5000, "none": ""}
    checkpoints.save({"transformer": Toy()}, tmp_path / "model.safetensors", said)
    assert checkpoints.settings(tmp_path) == said | {"tokenizer.head_size": 64}


def test_settings_of_a_damaged_file_are_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="not a valid safetensors file"):
        checkpoints.settings(tmp_path)


# Filling a module


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_published_names_are_mapped_with_or_without_their_prefix(published, prefix):
    model = Toy()
    checkpoints.load(model, prefixed(published, prefix), "toy")
    assert_holds(model, published)


def test_a_prefix_picks_the_parts_of_a_checkpoint_that_has_both(tmp_path, published):
    vq = {"weight": torch.randn(2, 3), "bias": torch.randn(2)}
    both = prefixed(published, "transformer.") | prefixed(vq, "tokenizer.model.")
    torch.save({"state_dict": both}, tmp_path / "both.ckpt")
    state = checkpoints.read(tmp_path / "both.ckpt")
    model, tokenizer = Toy(), ToyTokenizer()
    checkpoints.load(model, state, "toy")
    checkpoints.load(tokenizer, state, "toy tokenizer")
    assert_holds(model, published)
    assert torch.equal(tokenizer.vq.weight, vq["weight"]) and torch.equal(tokenizer.vq.bias, vq["bias"])


@pytest.mark.parametrize("prefix", ["", "tokenizer.model."])
def test_keys_that_a_map_ignores_are_left_out_and_no_others(prefix):
    vq = {"weight": torch.randn(2, 3), "bias": torch.randn(2)}
    useless = {"attn.mask": torch.ones(2, dtype=torch.bool), "judge": torch.zeros(1)}
    tokenizer = ToyTokenizer()
    checkpoints.load(tokenizer, prefixed(vq | useless, prefix), "toy tokenizer")
    assert torch.equal(tokenizer.vq.weight, vq["weight"])
    with pytest.raises(ValueError, match=r"1 unexpected: vq\.judge\.weight"):
        checkpoints.load(tokenizer, prefixed(vq | useless | {"judge.weight": torch.zeros(1)}, prefix), "toy tokenizer")


def test_a_module_without_memory_yet_is_filled(published):
    with torch.device("meta"):
        model = Toy()
    checkpoints.load(model, published, "toy")
    assert_holds(model, published)


def test_a_missing_key_is_named(published):
    del published["model.embed.weight"]
    with pytest.raises(ValueError, match=r"does not fit toy: keys 1 missing: embed\.weight$"):
        checkpoints.load(Toy(), published, "toy")


def test_half_of_a_joined_key_names_what_lacks_and_what_is_left(published):
    del published["model.layers.1.k.weight"]
    with pytest.raises(
        ValueError, match=r"1 missing: blocks\.1\.qk\.weight; 1 unexpected: model\.layers\.1\.q\.weight"
    ):
        checkpoints.load(Toy(), published, "toy")


def test_an_unexpected_key_is_named(published):
    published["model.extra.bias"] = torch.zeros(1)
    with pytest.raises(ValueError, match=r"1 unexpected: model\.extra\.bias$"):
        checkpoints.load(Toy(), published, "toy")


def test_a_key_of_another_shape_is_named_with_both_shapes(published):
    published["model.embed.weight"] = torch.zeros(7, 4)
    with pytest.raises(ValueError, match=r"1 of another shape: embed\.weight is \(7, 4\), not \(5, 4\)"):
        checkpoints.load(Toy(), published, "toy")


def test_all_that_is_wrong_is_told_at_once(published):
    published["model.embed.weight"] = torch.zeros(7, 4)
    published["surplus"] = torch.zeros(1)
    del published["model.layers.0.q.weight"]
    with pytest.raises(ValueError, match=r"missing: .*; .* unexpected: .*; 1 of another shape: "):
        checkpoints.load(Toy(), published, "toy")


def test_long_lists_of_keys_are_cut_with_their_number(published):
    surplus = {f"surplus.{index}": torch.zeros(1) for index in range(9)}
    with pytest.raises(ValueError, match=r"9 unexpected: surplus\.0, .*surplus\.3, and 5 more$"):
        checkpoints.load(Toy(), published | surplus, "toy")


def test_a_refused_checkpoint_changes_nothing(published):
    model = Toy()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    published["surplus"] = torch.zeros(1)
    with pytest.raises(ValueError, match="surplus"):
        checkpoints.load(model, published, "toy")
    assert_same(dict(model.state_dict()), before)


@pytest.mark.parametrize("wrong", [(2, 3), (8,)])
def test_parts_that_cannot_be_joined_are_named(published, wrong):
    published["model.layers.0.k.weight"] = torch.zeros(wrong)
    with pytest.raises(ValueError, match=r"cannot be joined.*layers\.0\.k\.weight"):
        checkpoints.load(Toy(), published, "toy")


def test_a_key_that_holds_whole_numbers_is_named(published):
    published["model.embed.weight"] = torch.zeros(5, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"embed\.weight"):
        checkpoints.load(Toy(), published, "toy")


def test_an_empty_checkpoint_is_refused(tmp_path):
    save_file({}, tmp_path / "empty.safetensors")
    with pytest.raises(ValueError, match=r"missing|no tensors|empty"):
        checkpoints.load(Toy(), checkpoints.read(tmp_path / "empty.safetensors"), "toy")


# Files that are refused


class Trap:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def spring(path: Path, trap: Trap, form: str) -> None:
    if form == "raw pickle":
        path.write_bytes(pickle.dumps({"state_dict": trap}))
    else:
        torch.save(
            {"state_dict": {"w": torch.zeros(1)}, "hook": trap}, path, _use_new_zipfile_serialization=form == "zip"
        )


FORMS = [
    (suffix, form) for suffix in (".ckpt", ".bin", ".pt", ".pth") for form in ("zip", "older format", "raw pickle")
]


# A zipped .ckpt may hold objects of its trainer beside the tensors, see test_pickles.py.
@pytest.mark.parametrize(("suffix", "form"), [one for one in FORMS if one != (".ckpt", "zip")])
def test_code_in_a_pickle_is_refused_and_never_run(tmp_path, suffix, form):
    path, sprung = tmp_path / f"evil{suffix}", tmp_path / "sprung"
    spring(path, Trap(sprung), form)
    with pytest.raises(ValueError, match=rf"evil\{suffix} was refused.*never run"):
        checkpoints.read(path)
    assert not sprung.exists()


def test_the_trap_of_these_tests_would_spring(tmp_path):
    """Loaded carelessly, the same file does make its mark: the test above can fail."""
    spring(tmp_path / "evil.pt", Trap(tmp_path / "sprung"), "zip")
    torch.load(tmp_path / "evil.pt", weights_only=False)
    assert (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["evil.ckpt", "evil.pt"])
def test_a_refusal_does_not_tell_how_to_load_the_code_all_the_same(tmp_path, name):
    torch.save({"state_dict": {"w": Trap(tmp_path / "sprung")}}, tmp_path / name)
    with pytest.raises(ValueError, match="never run") as caught:
        checkpoints.read(tmp_path / name)
    message = str(caught.value)
    assert "weights_only" not in message and "can still be loaded" not in message and "\x1b" not in message


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_a_truncated_pytorch_file_is_called_damaged(tmp_path, published, part):
    path = tmp_path / "cut.ckpt"
    torch.save(published, path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(ValueError, match=r"cut\.ckpt .*damaged"):
        checkpoints.read(path)


@pytest.mark.parametrize("program", [b"", b".", b"\x80\x02h\x05.", b"\x80\x02X\xff", b"\x80\x02K\x01K\x02R."])
def test_a_pytorch_file_whose_index_is_damaged_is_refused(tmp_path, published, program):
    """Whatever the unpickler stumbles over, the user reads which file it was."""
    whole, path = tmp_path / "whole.ckpt", tmp_path / "damaged.ckpt"
    torch.save(published, whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            target.writestr(name, program if name.endswith("data.pkl") else source.read(name))
    with pytest.raises(ValueError, match=r"damaged\.ckpt"):
        checkpoints.read(path)


@pytest.mark.parametrize("part", [0.0, 0.02, 0.5, 0.99])
def test_a_truncated_safetensors_file_is_refused(tmp_path, published, part):
    path = tmp_path / "cut.safetensors"
    save_file(published, path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(ValueError, match=r"cut\.safetensors is not a valid safetensors file"):
        checkpoints.read(path)


@pytest.mark.parametrize("content", [[1, 2], 3, {}, {"a": 1}, {"state_dict": {"a": "text"}}, {"state_dict": [1]}])
def test_a_pytorch_file_without_tensors_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "odd.pt")
    with pytest.raises(ValueError, match=r"odd\.pt holds no state dict of tensors"):
        checkpoints.read(tmp_path / "odd.pt")


@pytest.mark.parametrize("name", ["notes.txt", "weights", "model.gguf", "model.safetensors.index.json"])
def test_a_file_that_is_no_checkpoint_is_told_which_names_are(tmp_path, name):
    (tmp_path / name).write_bytes(b"something")
    with pytest.raises(ValueError, match=r"is no checkpoint: its name must end in \.safetensors, \.ckpt"):
        checkpoints.read(tmp_path / name)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    (tmp_path / "readme.md").write_text("nothing here")
    with pytest.raises(FileNotFoundError, match=r"holds no checkpoint \(\.safetensors, \.ckpt"):
        checkpoints.read(tmp_path)


def test_a_folder_with_two_checkpoints_asks_for_one(tmp_path, published):
    for name in ("a.ckpt", "b.ckpt"):
        torch.save(published, tmp_path / name)
    with pytest.raises(ValueError, match=r"holds 2 \.ckpt files; name the one to load"):
        checkpoints.read(tmp_path)
    assert_same(checkpoints.read(tmp_path / "b.ckpt"), published)


@pytest.mark.parametrize(
    "source",
    [
        "nowhere.ckpt",
        "a/b/nowhere",
        "a/b/nowhere.txt",
        "a/b/../c.ckpt",
        "../a/b.ckpt",
        "../a",
        "./nowhere/",
        "/a/b.ckpt",
    ],
)
def test_a_path_that_does_not_exist_is_refused_without_asking_the_hub(tmp_path, monkeypatch, offline, source):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="do not exist; give a file, a folder, or a hub id"):
        checkpoints.read(source)
    assert offline == []


# The hub


@pytest.fixture
def offline(tmp_path, monkeypatch) -> list[object]:
    """An empty cache, the hub's offline mode, and no network: gives the list of attempts to use it."""
    from huggingface_hub import constants

    attempts: list[object] = []

    def refuse(*arguments: object, **_: object) -> None:
        attempts.append(arguments)
        raise OSError("Network is unreachable")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return attempts


@pytest.mark.parametrize(
    "source", ["organisation/model", "checkpoints/700M_16f.ckpt", "organisation/model/folder/a.ckpt", "a/b/c.jit"]
)
def test_a_hub_id_that_is_not_cached_is_clear_offline_and_asks_no_network(offline, source):
    with pytest.raises(FileNotFoundError, match=f"weights '{source}' are no local path, and the hub did not give them"):
        checkpoints.read(source)
    assert offline == []


def test_a_hub_that_cannot_be_reached_is_clear(offline, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(FileNotFoundError, match="are no local path, and the hub did not give them"):
        checkpoints.read("organisation/model")
    assert offline  # the network was asked: the test above would notice


@pytest.fixture
def snapshot(tmp_path) -> Path:
    """The folder of a model in the hub's cache."""
    commit = "0" * 40
    folder: Path = tmp_path / "hub" / "models--organisation--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    (folder / "snapshots" / commit).mkdir(parents=True)
    return folder / "snapshots" / commit


def test_a_hub_id_in_the_cache_is_read_offline(offline, snapshot, published):
    save_file(published, snapshot / "model.safetensors")
    assert_same(checkpoints.read("organisation/model"), published)
    assert offline == []


def test_one_file_of_the_hub_is_read_offline(offline, snapshot, published):
    (snapshot / "sizes").mkdir()
    torch.save(published, snapshot / "sizes" / "small.ckpt")
    torch.save({"other": torch.zeros(1)}, snapshot / "sizes" / "large.ckpt")
    assert_same(checkpoints.read("organisation/model/sizes/small.ckpt"), published)
    assert offline == []


def test_a_local_path_comes_before_the_hub(tmp_path, monkeypatch, offline, snapshot, published):
    save_file({"other": torch.zeros(1)}, snapshot / "model.safetensors")
    (tmp_path / "organisation" / "model").mkdir(parents=True)
    save_file(published, tmp_path / "organisation" / "model" / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    for source in ("organisation/model", "organisation/model/model.safetensors"):
        assert_same(checkpoints.read(source), published)


FILES = [
    "model.pt",
    "config.json",
    "README.md",
    "guardrail/video/model.pt",
    "guardrail/config.json",
    "text/a.safetensors",
]


def test_only_the_checkpoint_files_at_the_top_of_a_repository_are_downloaded(monkeypatch, tmp_path, published):
    """The hub, faked: what is asked for goes through its own filter."""
    asked: list[str] = []

    def snapshot_download(repository: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        assert repository == "organisation/model"
        asked.extend(filter_repo_objects(FILES, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns))
        torch.save(published, tmp_path / "model.pt")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert_same(checkpoints.read("organisation/model"), published)
    assert asked == ["model.pt", "config.json"]


def test_one_file_of_a_repository_is_downloaded_alone(monkeypatch, tmp_path, published):
    asked: list[tuple[str, str]] = []

    def hf_hub_download(repository: str, file: str) -> str:
        asked.append((repository, file))
        torch.save(published, tmp_path / "small.ckpt")
        return str(tmp_path / "small.ckpt")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", hf_hub_download)
    assert_same(checkpoints.read("organisation/model/sizes/small.ckpt"), published)
    assert asked == [("organisation/model", "sizes/small.ckpt")]


def test_a_disk_that_takes_no_more_is_named_and_leaves_nothing(tmp_path):
    """For real: files of this process may not grow beyond a few bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, limits[1]))
    try:
        with pytest.raises(OSError, match=r"large.*model\.safetensors"):
            checkpoints.save({"transformer": nn.Linear(100, 100)}, tmp_path / "model.safetensors", {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())
