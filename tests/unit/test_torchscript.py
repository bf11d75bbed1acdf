"""TorchScript archives: all tensors are read, and nothing in the file is run."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import diagonal
from diagonal import torchscript, weights
from diagonal.tokenizers.cosmos import VARIANTS, CosmosTokenizer, Past
from tests.tiny import build

# These tests make such files; the library does not.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


class Part(nn.Module):
    """Parameters, buffers of several kinds, a list and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 1)
        self.register_buffer("steps", torch.arange(3))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.turned = nn.Parameter(torch.arange(6.0).reshape(2, 3).t().bfloat16())
        self.sizes, self.scale = [1, 2], 0.5

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return out


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Part(), nn.ReLU(), nn.GroupNorm(1, 3))


def _save(path: Path, how: str = "trace") -> dict[str, Tensor]:
    module = _network()
    made = torch.jit.trace(module, torch.zeros(1, 2, 4, 4)) if how == "trace" else torch.jit.script(module)
    torch.jit.save(made, path)
    return module.state_dict()


def _rewrite(path: Path, changes: dict[str, bytes | None]) -> None:
    """The same archive with some files replaced, or left out."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    root = next(iter(files)).partition("/")[0]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (files | {f"{root}/{key}": value for key, value in changes.items()}).items():
            if content is not None:
                archive.writestr(name, content)


@pytest.mark.parametrize("how", ["trace", "script"])
def test_every_tensor_of_a_module_is_read(tmp_path: Path, how: str):
    expected = _save(tmp_path / "net.jit", how)
    state = torchscript.read(tmp_path / "net.jit")
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        assert state[key].dtype == value.dtype and torch.equal(state[key], value), key
    assert weights.read(tmp_path / "net.jit").keys() == expected.keys()


def test_where_a_tensor_lay_when_it_was_saved_does_not_matter(tmp_path: Path):
    expected = _save(tmp_path / "net.jit")
    with zipfile.ZipFile(tmp_path / "net.jit") as archive:
        content = archive.read("net/data.pkl")
    short, long = (b"X" + len(name).to_bytes(4, "little") + name for name in (b"cpu", b"cuda:0"))
    assert content.count(short) == 1
    _rewrite(tmp_path / "net.jit", {"data.pkl": content.replace(short, long)})
    state = torchscript.read(tmp_path / "net.jit")
    assert all(torch.equal(state[key], value) and state[key].device.type == "cpu" for key, value in expected.items())


class Hostile:
    """What a pickle can do to those who trust it."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (exec, (f"open({str(self.target)!r}, 'w').close()",))


def test_code_in_the_pickle_is_refused_and_not_run(tmp_path: Path):
    _save(tmp_path / "net.jit")
    mark = tmp_path / "it ran"
    content = pickle.dumps(Hostile(mark), protocol=2)
    _rewrite(tmp_path / "net.jit", {"data.pkl": content})
    with pytest.raises(ValueError, match=r"net\.jit was refused: .*exec is not allowed"):
        weights.read(tmp_path / "net.jit")
    assert not mark.exists()
    pickle.loads(content)  # the same bytes, trusted
    assert mark.exists()


def test_code_in_the_archive_is_not_even_read(tmp_path: Path):
    expected = _save(tmp_path / "net.jit")
    _rewrite(tmp_path / "net.jit", {"code/__torch__.py": b"raise SystemExit", "constants.pkl": b"not a pickle"})
    assert torchscript.read(tmp_path / "net.jit").keys() == expected.keys()


@pytest.mark.parametrize("name", ["os\nsystem", "builtins\neval", "torch\nload", "torch.jit._pickle\nrestore_type_tag"])
def test_any_other_name_is_refused(tmp_path: Path, name: str):
    _save(tmp_path / "net.jit")
    _rewrite(tmp_path / "net.jit", {"data.pkl": b"\x80\x02c" + name.encode() + b"\n."})
    with pytest.raises(ValueError, match="is not allowed"):
        torchscript.read(tmp_path / "net.jit")


def _pickled(persistent: object) -> bytes:
    """A module with one tensor of four numbers in storage 0."""
    buffer = io.BytesIO()

    class Writer(pickle.Pickler):
        def persistent_id(self, value: object) -> object:
            return persistent if value == "here" else None

    Writer(buffer, protocol=2).dump("here")
    storage = buffer.getvalue()[2:-1]
    size = b"K\x00K\x04\x85K\x01\x85\x89}t"  # offset 0, size (4,), stride (1,), no gradient, no hooks
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + size + b"R"
    return b"\x80\x02c__torch__\nNet\n)\x81}X\x01\x00\x00\x00w" + tensor + b"sb."


@pytest.mark.parametrize(
    ("pid", "problem"),
    [
        (("module", "float", "0", "cpu", 4), "'module' is not a storage"),
        (("storage", "float", "0"), "unpack"),
        ("storage", "unpack"),
    ],
)
def test_persistent_objects_other_than_storages_are_refused(tmp_path: Path, pid: object, problem: str):
    _save(tmp_path / "net.jit")
    _rewrite(tmp_path / "net.jit", {"data.pkl": _pickled(pid)})
    with pytest.raises(ValueError, match=problem):
        torchscript.read(tmp_path / "net.jit")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"data.pkl": None}, "0 files data.pkl, not one"),
        ({"data.pkl": b"\x80\x02"}, "EOFError"),
        ({"data/0": None}, "KeyError"),
        ({"data/0": b"\x00" * 4}, "storage 0 has . numbers"),
        ({"byteorder": b"big"}, "big end first"),
    ],
)
def test_a_damaged_archive_is_refused(tmp_path: Path, changes: dict[str, bytes | None], problem: str):
    _save(tmp_path / "net.jit")
    _rewrite(tmp_path / "net.jit", changes)
    with pytest.raises(ValueError, match=rf"net\.jit was refused: .*{problem}"):
        torchscript.read(tmp_path / "net.jit")


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path):
    (tmp_path / "net.jit").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="no TorchScript archive"):
        weights.read(tmp_path / "net.jit")


# The files of a published tokenizer


class Encoding(nn.Module):
    """The encoder as it is published: traced, with the quantiser's and the wavelets' tables."""

    def __init__(self, tokenizer: CosmosTokenizer) -> None:
        super().__init__()
        self.encoder, self.quant_conv = tokenizer.encoder, tokenizer.quant_conv
        self.quantizer = _tables("_levels", "_basis", "implicit_codebook")

    def forward(self, x: Tensor) -> Tensor:
        past = Past({}, start=True)
        out: Tensor = self.quant_conv(self.encoder(x, past), past)
        return out


class Decoding(nn.Module):
    """And the decoder."""

    def __init__(self, tokenizer: CosmosTokenizer) -> None:
        super().__init__()
        self.decoder, self.post_quant_conv = tokenizer.decoder, tokenizer.post_quant_conv
        self.inv_quant = nn.ModuleDict({"quantizer": _tables("_levels", "_basis", "implicit_codebook")})

    def forward(self, codes: Tensor) -> Tensor:
        past = Past({}, start=True)
        out: Tensor = self.decoder(self.post_quant_conv(codes, past), past)
        return out


def _tables(*names: str) -> nn.Module:
    module = nn.Module()
    for name in names:
        module.register_buffer(name, torch.arange(3))
    return module


@pytest.fixture
def published(tmp_path: Path) -> tuple[Path, CosmosTokenizer]:
    """A folder with encoder.jit, decoder.jit and autoencoder.jit of a tiny tokenizer."""
    coder: Any = build(VARIANTS["tiny"], seed=5)
    coder.encoder.patcher3d = _tables("wavelets", "_arange", "patch_size_buffer")
    coder.decoder.unpatcher3d = _tables("wavelets", "_arange")
    with torch.no_grad():
        torch.jit.save(torch.jit.trace(Encoding(coder), torch.zeros(1, 3, 9, 32, 32)), tmp_path / "encoder.jit")
        torch.jit.save(torch.jit.trace(Decoding(coder), torch.zeros(1, 3, 2, 2, 2)), tmp_path / "decoder.jit")
    (tmp_path / "autoencoder.jit").write_bytes((tmp_path / "encoder.jit").read_bytes())
    (tmp_path / "config.json").write_text("{}")
    return tmp_path, coder


def test_a_published_tokenizer_is_its_two_halves(published: tuple[Path, CosmosTokenizer]):
    folder, coder = published
    state = weights.read(folder)
    assert {"encoder.patcher3d.wavelets", "quantizer._levels", "inv_quant.quantizer._basis"} <= state.keys()
    world = diagonal.load("cosmos/tiny", tokenizer=folder, weights=_model(folder))
    own = {key: value for key, value in coder.state_dict().items() if "patcher3d" not in key}
    assert own.keys() == world.tokenizer.state_dict().keys()
    assert all(torch.equal(value, own[key]) for key, value in world.tokenizer.state_dict().items())


def _model(folder: Path) -> Path:
    """A model to go with it, from elsewhere."""
    path = folder / "model"
    diagonal.load("cosmos/tiny").save_pretrained(path)
    state = {key: value for key, value in weights.read(path).items() if key.startswith("transformer.")}
    torch.save(state, path / "model.pt")
    return path / "model.pt"


def test_a_traced_tokenizer_and_ours_compute_the_same(published: tuple[Path, CosmosTokenizer]):
    """The traces are real ones: they run, and give what the weights that we read give."""
    folder, _ = published
    coder: Any = build(VARIANTS["tiny"])
    weights.load(coder, weights.read(folder), "cosmos/tiny")
    video = torch.randint(256, (1, 9, 3, 32, 32), generator=torch.Generator().manual_seed(0)).byte()
    traced = torch.jit.load(folder / "encoder.jit")(video.transpose(1, 2) / 127.5 - 1)
    torch.testing.assert_close(coder.latents(video), traced, atol=1e-5, rtol=1e-5)


def test_one_file_alone_lacks_the_other_half(published: tuple[Path, CosmosTokenizer]):
    folder, _ = published
    coder: Any = build(VARIANTS["tiny"])
    with pytest.raises(ValueError, match=r"missing: decoder\."):
        weights.load(coder, weights.read(folder / "encoder.jit"), "cosmos/tiny")


def test_several_other_archives_are_too_many(tmp_path: Path):
    for name in ("a", "b"):
        _save(tmp_path / f"{name}.jit")
    with pytest.raises(ValueError, match=r"holds 2 \.jit files; name the one to load"):
        weights.read(tmp_path)
