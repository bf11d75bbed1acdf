"""Text embeddings: a tiny encoder made on the spot, the cache, files of embeddings, and everything that is refused."""

from __future__ import annotations

import gc
import io
import json
import os
import shutil
import socket
import sys
import weakref
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from diagonal.text import encoders as text
from diagonal.text import umt5
from diagonal.text.encoders import ENCODERS, Encoder, embed, read, tidied

SENTENCES = ["a red car on a wet road", "a blue boat in the rain"]
KINDS = ("t5", "umt5")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Whole models with random weights and a tokenizer of the sentences, in either form in which they are published."""
    import sentencepiece
    from transformers import (
        AutoTokenizer,
        T5Config,
        T5ForConditionalGeneration,
        UMT5Config,
        UMT5ForConditionalGeneration,
    )

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 256, "d_model": 24, "d_kv": 6, "num_heads": 4, "d_ff": 32, "num_layers": 2}
    whole = (T5ForConditionalGeneration(T5Config(**sizes)), UMT5ForConditionalGeneration(UMT5Config(**sizes)))
    pieces = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 20),
        model_writer=pieces,
        vocab_size=140,
        user_defined_symbols=[f"word{i}" for i in range(120)],  # published ones are mostly words too, not extra ids
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    made = {}
    for kind, model in zip(KINDS, whole, strict=True):
        made[kind] = tmp_path_factory.mktemp(kind)
        model.save_pretrained(made[kind])
    (made["t5"] / "spiece.model").write_bytes(pieces.getvalue())
    AutoTokenizer.from_pretrained(made["t5"]).save_pretrained(made["umt5"])  # as tokenizer.json
    return made


@pytest.fixture
def encoder(folders) -> Encoder:
    return Encoder(str(folders["t5"]), length=32, width=24)


@pytest.fixture
def own(encoder: Encoder, tmp_path: Path) -> Encoder:
    """An encoder whose folder may be spoiled."""
    return replace(encoder, source=str(shutil.copytree(encoder.source, tmp_path / "own")))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def without_transformers(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)


def padded(encoder: Encoder, texts: list[str]) -> tuple[Tensor, Tensor]:
    """What the encoder gives when called directly, all texts padded to its length and masked, and the mask."""
    from transformers import AutoTokenizer, T5EncoderModel, UMT5EncoderModel

    config = json.loads((Path(encoder.source) / "config.json").read_text())
    kind: Any = {"t5": T5EncoderModel, "umt5": UMT5EncoderModel}[config["model_type"]]
    model = kind.from_pretrained(encoder.source, dtype=encoder.dtype)
    tokens: Any = AutoTokenizer.from_pretrained(encoder.source)(
        texts, padding="max_length", max_length=encoder.length, return_tensors="pt"
    )
    with torch.no_grad():
        return model(**tokens).last_hidden_state, tokens.attention_mask.bool()


# Encoding


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_embeddings_are_those_of_the_padded_and_masked_model(folders, cache, kind, dtype, tolerance):
    encoder = Encoder(str(folders[kind]), length=32, width=24, dtype=dtype)
    given_BLC, mask_BL = padded(encoder, [*SENTENCES, ""])
    text_BLC = embed([*SENTENCES, ""], encoder, device="cpu", cache=cache)
    assert text_BLC.shape == (3, 32, 24) and text_BLC.dtype == dtype and not text_BLC.requires_grad
    assert mask_BL.sum(1).tolist()[2] == 1 and 1 < mask_BL[:2].sum(1).min() < 32  # an empty text has its end alone
    assert not text_BLC[~mask_BL].any()
    torch.testing.assert_close(text_BLC[mask_BL], given_BLC[mask_BL], rtol=0, atol=tolerance)
    assert (text_BLC[0] - text_BLC[1]).abs().max() > 10 * tolerance


def test_a_batch_is_its_texts_one_by_one(encoder, tmp_path):
    texts = [SENTENCES[0], "rain", SENTENCES[0]]
    singles = [embed([one], encoder, device="cpu", cache=tmp_path / str(i)) for i, one in enumerate(texts)]
    assert torch.equal(embed(texts, encoder, device="cpu", cache=tmp_path / "all"), torch.cat(singles))


def test_embeddings_may_take_part_in_training(encoder, cache):
    """Tensors of inference mode could not be saved for a backward pass."""
    weight = torch.ones(24, requires_grad=True)
    (embed(SENTENCES, encoder, device="cpu", cache=cache).float() * weight).sum().backward()
    assert weight.grad is not None and weight.grad.abs().sum() > 0


def test_the_encoder_leaves_the_memory(encoder, cache, monkeypatch):
    from transformers import AutoModelForTextEncoding

    load, alive = AutoModelForTextEncoding.from_pretrained, []

    def watched(*arguments: Any, **named: Any) -> Any:
        made = load(*arguments, **named)
        alive.append(weakref.ref(made[0]))
        return made

    monkeypatch.setattr(AutoModelForTextEncoding, "from_pretrained", watched)
    gc.disable()  # at once, not at some later collection
    try:
        embed(SENTENCES, encoder, device="cpu", cache=cache)
        assert [one() for one in alive] == [None]
    finally:
        gc.enable()


def test_a_text_may_fill_all_rows_but_not_more(encoder, cache, monkeypatch):
    mask_BL = padded(encoder, SENTENCES)[1]
    exact = replace(encoder, length=int(mask_BL.sum(1).max()))
    assert embed(SENTENCES, exact, device="cpu", cache=cache).any(-1).sum(1).tolist() == mask_BL.sum(1).tolist()
    short = replace(exact, length=exact.length - 1)
    monkeypatch.setattr("transformers.AutoModelForTextEncoding.from_pretrained", None)  # refused before it is loaded
    with pytest.raises(ValueError, match=rf"has {exact.length} tokens; {short.length} are allowed.*nothing is cut"):
        embed(SENTENCES, short, device="cpu", cache=cache)


@pytest.mark.parametrize("texts", ["a red car", []])
def test_texts_must_be_a_list(encoder, cache, texts):
    with pytest.raises(ValueError, match="a list of at least one is needed"):
        embed(texts, encoder, device="cpu", cache=cache)


def test_a_very_long_text_is_refused_and_not_cut(encoder, cache):
    text = "a red car on a wet road " * 420
    assert len(text) > 10_000
    with pytest.raises(ValueError, match=r"begins with 'a red car.* has \d+ tokens; 32 are allowed. Shorten it"):
        embed([text], replace(encoder, tidy=True), device="cpu", cache=cache)
    assert not list(cache.iterdir())


@pytest.mark.parametrize(
    ("text", "tidy"),
    [
        ("  a red\n\tcar  ", "a red car"),
        ("a &amp;lt; b &quot;c&quot;", 'a < b "c"'),
        ("a\u3000b\u00a0c", "a b c"),
        ("&nbsp;", ""),
        ("", ""),
    ],
)
def test_tidied_texts_have_single_spaces_and_no_escapes(text, tidy):
    assert tidied(text) == tidy == tidied(tidy)


def test_an_encoder_tidies_where_its_model_was_trained_so(encoder, cache):
    plain = embed(["a red car"], encoder, device="cpu", cache=cache)
    untidy = [" a  red\ncar"]
    assert torch.equal(embed(untidy, replace(encoder, tidy=True), device="cpu", cache=cache), plain)
    assert len(list(cache.iterdir())) == 1
    embed(untidy, encoder, device="cpu", cache=cache)
    assert len(list(cache.iterdir())) == 2
    assert ENCODERS["umt5-xxl"].tidy and not ENCODERS["t5-11b"].tidy


# Wan2.1's own file


@pytest.fixture
def wan(folders, tmp_path):
    """The encoder of `folders` as Wan2.1's authors lay out theirs."""
    from transformers import UMT5EncoderModel

    state = UMT5EncoderModel.from_pretrained(folders["umt5"], dtype=torch.float32).state_dict()
    original = {}
    for ours, (theirs,) in umt5.KEYS.items():
        for layer in range(2 if "{}" in ours else 1):
            original[theirs.format(layer)] = state[ours.format(layer)].clone()
    folder = tmp_path / "Wan2.1-T2V-1.3B"
    (folder / umt5.TOKENIZER).mkdir(parents=True)
    torch.save(original, folder / umt5.FILE)
    for file in folders["umt5"].glob("*token*"):
        shutil.copy(file, folder / umt5.TOKENIZER)
    return folder


def test_wans_folder_and_file_give_what_transformers_gives(folders, wan, cache):
    encoder = Encoder(str(folders["umt5"]), length=32, width=24, dtype=torch.float32)
    wanted = embed(SENTENCES, encoder, device="cpu", cache=cache)
    for source in (wan, wan / umt5.FILE):
        given = embed(SENTENCES, replace(encoder, source=str(source)), device="cpu", cache=cache)
        torch.testing.assert_close(given, wanted, rtol=0, atol=1e-6)
    assert len(list(cache.iterdir())) == 6


def test_a_file_of_wans_form_without_its_weights_is_refused(wan, cache):
    torch.save({"blocks.0.norm1.weight": torch.ones(24)}, wan / umt5.FILE)
    with pytest.raises(ValueError, match=r"was not loaded: it lacks token_embedding.weight"):
        embed(SENTENCES, Encoder(str(wan), length=32, width=24), device="cpu", cache=cache)


def test_wans_file_is_never_run(wan, cache, tmp_path):
    torch.save({"a": _Touch(tmp_path / "touched")}, wan / umt5.FILE)
    with pytest.raises(ValueError, match="was not loaded"):
        embed(SENTENCES, Encoder(str(wan), length=32, width=24), device="cpu", cache=cache)
    assert not (tmp_path / "touched").exists()


class _Touch:
    """Makes a file when it is unpickled by someone who runs what pickles say."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


# The cache


def test_a_text_in_the_cache_needs_neither_transformers_nor_the_encoder(own, cache, monkeypatch):
    first = embed(SENTENCES, own, device="cpu", cache=cache)
    for file in Path(own.source).iterdir():
        file.unlink()
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert torch.equal(embed(SENTENCES[::-1], own, device="cpu", cache=cache), first.flip(0))
    with pytest.raises(ValueError, match=r"^text needs transformers: pip install 'diagonal\[text\]'; or give precomp"):
        embed([*SENTENCES, "another"], own, device="cpu", cache=cache)


def test_the_cache_tells_texts_and_encoders_apart(folders, cache):
    encoders = [Encoder(str(folders[kind]), length=32, width=24) for kind in KINDS]
    given = [embed(SENTENCES, one, device="cpu", cache=cache) for one in encoders]
    assert len(list(cache.iterdir())) == 4
    again = [embed(SENTENCES, one, device="cpu", cache=cache) for one in encoders]
    assert all(map(torch.equal, given, again)) and not torch.equal(*given)


def test_a_folder_is_the_same_by_any_name(own, cache, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for source in (own.source, "own", "./own", "~/own"):
        embed(["rain"], replace(own, source=source), device="cpu", cache=cache)
    assert len(list(cache.iterdir())) == 1


def test_a_kept_file_can_be_read_as_embeddings(encoder, cache):
    given = embed(["rain"], encoder, device="cpu", cache=cache)
    (kept,) = cache.iterdir()
    assert torch.equal(read(kept), given)


ROWS = torch.ones(32, 24, dtype=torch.bfloat16)
DAMAGED: dict[str, Any] = {
    "empty": b"",
    "garbage": b"x" * 99,
    "cut": None,
    "another key": {"rows": ROWS},
    "another width": {text.KEY: ROWS[:, :20].contiguous()},
    "another length": {text.KEY: ROWS[:20].contiguous()},
    "another dtype": {text.KEY: ROWS.float()},
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_in_the_cache_is_made_anew(encoder, cache, content):
    given = embed(["rain"], encoder, device="cpu", cache=cache)
    (kept,) = cache.iterdir()
    if isinstance(content, dict):
        save_file(content, kept)
    else:
        kept.write_bytes(kept.read_bytes()[:-1] if content is None else content)
    assert torch.equal(embed(["rain"], encoder, device="cpu", cache=cache), given)
    assert list(cache.iterdir()) == [kept] and torch.equal(load_file(kept)[text.KEY], given[0])


@pytest.mark.parametrize(("xdg", "folder"), [("xdg", "xdg"), (None, "home/.cache"), ("", "home/.cache")])
def test_the_default_is_the_users_cache_folder(encoder, tmp_path, monkeypatch, xdg, folder):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if xdg is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / xdg) if xdg else "relative/folder")
    embed(["rain"], encoder, device="cpu")
    assert len(list((tmp_path / folder / "diagonal" / "text").iterdir())) == 1


def test_a_cache_that_cannot_be_made_is_known_before_the_work(encoder, tmp_path, without_transformers):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        embed(["rain"], encoder, device="cpu", cache=tmp_path / "file" / "cache")


# Encoders that are refused


class Trap:
    """Unpickling this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def pickled(encoder: Encoder, extra: dict[str, Any]) -> None:
    """Put the weights of an encoder's folder into the older form, as some are published."""
    folder = Path(encoder.source)
    torch.save(load_file(folder / "model.safetensors") | extra, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def test_published_pickles_are_read(encoder, own, cache):
    pickled(own, {})
    given = embed(SENTENCES, own, device="cpu", cache=cache)
    assert torch.equal(given, embed(SENTENCES, encoder, device="cpu", cache=cache))


def test_code_in_an_encoders_weights_is_never_run(own, cache, tmp_path):
    pickled(own, {"hook": Trap(tmp_path / "sprung")})
    with pytest.raises(ValueError, match="was not loaded") as refused:
        embed(["rain"], own, device="cpu", cache=cache)
    assert not (tmp_path / "sprung").exists() and "False" not in str(refused.value)
    torch.load(Path(own.source) / "pytorch_model.bin", weights_only=False)
    assert (tmp_path / "sprung").exists()  # so the trap works


@pytest.mark.parametrize("model_type", ["t5", "strange"])
def test_code_in_an_encoders_folder_is_never_run(own, cache, tmp_path, model_type):
    folder = Path(own.source)
    (folder / "code.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'sprung')!r})")
    names = {"AutoConfig": "code.C", "AutoModelForTextEncoding": "code.M", "AutoTokenizer": ["code.T", None]}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": model_type, "auto_map": names}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": names}))
    if model_type == "strange":
        with pytest.raises(ValueError, match="was not loaded") as refused:
            embed(["rain"], own, device="cpu", cache=cache)
        assert "True" not in str(refused.value)
    else:  # what the folder brings along is not needed
        assert embed(["rain"], own, device="cpu", cache=cache).any()
    assert not (tmp_path / "sprung").exists()


def test_missing_weights_are_not_made_up(own, cache):
    file = Path(own.source) / "model.safetensors"
    state = load_file(file)
    del state["encoder.block.1.layer.1.DenseReluDense.wo.weight"]
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"it lacks weights such as encoder\.block\.1"):
        embed(["rain"], own, device="cpu", cache=cache)


def test_an_encoder_of_another_width_is_refused(encoder, cache):
    with pytest.raises(ValueError, match="gives width 24; 20 is needed"):
        embed(["rain"], replace(encoder, width=20), device="cpu", cache=cache)
    assert not list(cache.iterdir())


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "spiece.model"])
def test_a_folder_that_lacks_a_file_is_one_clear_line(own, cache, name):
    (Path(own.source) / name).unlink()
    with pytest.raises(ValueError, match=r"own' was not loaded: .*; give its folder, a hub id .*") as refused:
        embed(["rain"], own, device="cpu", cache=cache)
    assert "\n" not in str(refused.value)


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


@pytest.mark.parametrize("source", [text.ENCODERS["t5-11b"].source, "no/such/folder"])
def test_a_source_that_is_not_there_is_one_clear_line_offline(encoder, cache, offline, source):
    with pytest.raises(ValueError, match=rf"'{source}' was not loaded: .*; give .* precomputed embeddings$") as refused:
        embed(["rain"], replace(encoder, source=source), device="cpu", cache=cache)
    assert "\n" not in str(refused.value) and offline == []


def test_a_hub_id_in_the_hubs_cache_is_read_offline(encoder, cache, offline, tmp_path):
    folder, commit = tmp_path / "hub" / "models--organisation--model", "0" * 40
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    shutil.copytree(encoder.source, folder / "snapshots" / commit)
    given = embed(["rain"], replace(encoder, source="organisation/model"), device="cpu", cache=cache)
    assert torch.equal(given, embed(["rain"], encoder, device="cpu", cache=cache)) and offline == []


# Files of embeddings

GIVEN = torch.arange(15.0).view(5, 3) / 4


def write(path: Path, content: Any) -> Path:
    if path.suffix == ".npy":
        np.save(path, content)
    elif path.suffix == ".pt":
        torch.save(content, path)
    else:
        save_file(content, path)
    return path


GOOD: dict[str, tuple[str, Any]] = {
    "the only tensor": ("x.safetensors", {"anything": GIVEN}),
    "one of several": ("x.safetensors", {"a": torch.zeros(2), text.KEY: GIVEN}),
    "a batch of one": ("x.safetensors", {text.KEY: GIVEN[None].bfloat16()}),
    "numpy": ("x.npy", GIVEN.numpy()),
    "numpy, half": ("x.npy", GIVEN[None].half().numpy()),
    "numpy, other byte order": ("x.npy", GIVEN.numpy().astype(">f8")),
    "numpy, columns first": ("x.npy", np.asfortranarray(GIVEN.numpy())),
    "pytorch": ("x.pt", GIVEN),
    "pytorch, a dict": ("x.pt", {"mask": torch.ones(5), text.KEY: GIVEN[None]}),
    "pytorch, a parameter": ("x.pt", torch.nn.Parameter(GIVEN)),
}


@pytest.mark.parametrize(("name", "content"), GOOD.values(), ids=GOOD)
def test_files_of_embeddings_are_read(tmp_path, name, content):
    rows_BLC = read(write(tmp_path / name, content))
    assert torch.equal(rows_BLC.double(), GIVEN[None].double())
    assert not rows_BLC.requires_grad and rows_BLC.is_contiguous()


def test_embeddings_keep_their_dtype(tmp_path):
    for dtype in text.FLOATS:
        assert read(write(tmp_path / "x.pt", GIVEN.to(dtype))).dtype == dtype


FOREIGN: dict[str, tuple[str, Any, str]] = {
    "a vector": ("x.pt", GIVEN[0], r"shape \(3,\); \(rows, width\) or"),
    "a batch": ("x.npy", np.ones((2, 5, 3)), r"shape \(2, 5, 3\); \(rows, width\) or"),
    "nothing": ("x.npy", np.ones((1, 0, 3), np.float32), r"refused|shape \(1, 0, 3\)"),
    "integers": ("x.safetensors", {"a": torch.ones(5, 3, dtype=torch.int64)}, "int64 numbers; floats of 16, 32 or 64"),
    "complex": ("x.pt", GIVEN.to(torch.complex64), "complex64 numbers; floats"),
    "sparse": ("x.pt", GIVEN.to_sparse(), "torch.sparse_coo torch.float32 numbers; floats"),
    "no data": ("x.pt", GIVEN.to("meta"), "numbers; floats"),
    "not a number": ("x.npy", np.full((5, 3), np.nan), "infinite or not a number"),
    "which?": ("x.safetensors", {"a": GIVEN, "b": GIVEN + 1}, "holds 2 tensors; one must be called 'prompt_embeds'"),
    "empty dict": ("x.pt", {}, "holds 0 tensors"),
    "a list": ("x.pt", [1.0, 2.0], "holds a list; a tensor"),
    "not a tensor": ("x.pt", {text.KEY: "words"}, "holds a str; a tensor"),
    "a huge view": ("x.pt", torch.zeros(1).expand(2**20, 2**20), r"may have \d+ bytes"),
    "objects": ("x.npy", np.array([[None]]), "was refused"),
    "fields": ("x.npy", np.zeros((5, 3), [("a", "f4")]), "was refused"),
}


@pytest.mark.parametrize(("name", "content", "message"), FOREIGN.values(), ids=FOREIGN)
def test_what_holds_no_embeddings_is_refused(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=rf"{name}.*{message}"):
        read(write(tmp_path / name, content))


@pytest.mark.parametrize("suffix", text.READERS)
@pytest.mark.parametrize("content", [b"", b"x" * 99, None], ids=["empty", "garbage", "cut"])
def test_damaged_files_are_refused(tmp_path, suffix, content):
    path = tmp_path / f"x{suffix}"
    write(path, GIVEN.numpy() if suffix == ".npy" else {"a": GIVEN})
    path.write_bytes(path.read_bytes()[:-9] if content is None else content)
    with pytest.raises(ValueError, match=rf"x\{suffix} was refused: it is damaged, or no"):
        read(path)


@pytest.mark.parametrize("form", ["zip", "older format", "numpy"])
def test_code_in_a_file_of_embeddings_is_never_run(tmp_path, form):
    path, sprung = tmp_path / ("x.npy" if form == "numpy" else "x.pt"), tmp_path / "sprung"
    if form == "numpy":
        np.save(path, np.array([Trap(sprung)], dtype=object))
    else:
        torch.save({text.KEY: GIVEN, "a": Trap(sprung)}, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(ValueError, match=r"was refused.*never run") as refused:
        read(path)
    assert not sprung.exists() and "allow" not in str(refused.value) and "weights_only" not in str(refused.value)
    np.load(path, allow_pickle=True) if form == "numpy" else torch.load(path, weights_only=False)
    assert sprung.exists()  # so the trap works


def test_sizes_are_limited(tmp_path, monkeypatch):
    honest = write(tmp_path / "x.npy", np.zeros((64, 8)))
    bomb = write(tmp_path / "bomb.pt", torch.zeros(2**10, 2**8))
    with zipfile.ZipFile(bomb) as stored, zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    header = tmp_path / "header.npy"
    header.write_bytes(honest.read_bytes().replace(b"(64, 8), }    ", b"(64, 80000), }"))
    with pytest.raises(ValueError, match=r"header\.npy was refused"):
        read(header)
    monkeypatch.setattr(text, "MAX_BYTES", 4096)
    for path in (honest, tmp_path / "x.pt"):
        with pytest.raises(ValueError, match=r"holds \d+ bytes; embeddings may have 4096"):
            read(path)
    assert (tmp_path / "x.pt").stat().st_size < 4096  # only its content is too large


@pytest.mark.parametrize("name", ["nowhere.pt", "."])
def test_a_file_that_does_not_exist(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=r"do not exist; give a file of \.safetensors, \.npy, \.pt"):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["x.txt", "x.npz", "x"])
def test_other_files_are_not_tried(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=r"its name must end in \.safetensors, \.npy, \.pt"):
        read(tmp_path / name)
