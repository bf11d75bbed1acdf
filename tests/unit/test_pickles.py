"""Lightning checkpoints and TorchScript modules: tensors and settings come out; what else is in a file stays inert."""

from __future__ import annotations

import collections
import copyreg
import functools
import io
import operator
import os
import pickle
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import diagonal
from diagonal import checkpoints
from diagonal.checkpoints import pickles
from diagonal.checkpoints.pickles import read, read_module
from diagonal.tokenizers.cosmos import VARIANTS, CosmosTokenizer
from diagonal.tokenizers.streaming import Past
from tests.tiny import build

# These tests make TorchScript files; the library does not.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


def rewrite(path: Path, change: Callable[[str, bytes], bytes | None], compression: int = zipfile.ZIP_STORED) -> Path:
    """The same archive with files of its zip changed, or left out where `change` gives None."""
    target = path.with_name("rewritten.ckpt")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w", compression) as written:
        for name in source.namelist():
            data = change(name.partition("/")[2], source.read(name))
            if data is not None:
                written.writestr(name, data)
    return target


def with_program(path: Path, program: bytes) -> Path:
    return rewrite(path, lambda name, data: program if name == "data.pkl" else data)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    torch.save({"state_dict": {"w": torch.arange(6.0)}}, tmp_path / "plain.ckpt")
    return tmp_path / "plain.ckpt"


# What comes out


@pytest.fixture
def foreign() -> Any:
    """A module with a class that is there while saving and gone while loading."""
    module = types.ModuleType("trainer_that_is_not_installed")

    class CreationArgs:
        def __init__(self, pl_class: Any, **pl_kwargs: Any) -> None:
            self.pl_class, self.pl_kwargs = pl_class, pl_kwargs

    CreationArgs.__module__, CreationArgs.__qualname__ = module.__name__, "CreationArgs"
    module.CreationArgs = CreationArgs  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    yield CreationArgs
    sys.modules.pop(module.__name__, None)


def lightning(path: Path, state: Any, foreign: Any) -> Path:
    spec = {"head_size": 64, "is_perceptual": True, "gan_weight": 0.5, "sizes": [1, 2], "resume": None}
    content = {
        "epoch": 3,
        "pytorch-lightning_version": "1.9.0",
        "state_dict": state,
        "optimizer_states": [{"state": {0: {"exp_avg": torch.full((1000,), 7.0)}}}],
        "hyper_parameters": {"context_encoder_args": {"images": foreign(foreign, model_spec=spec)}, "variant": "x"},
    }
    torch.save(content, path)
    del sys.modules["trainer_that_is_not_installed"]
    return path


def test_tensors_and_hyper_parameters_of_a_lightning_checkpoint_are_read(tmp_path, foreign):
    state = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)).state_dict()
    path = lightning(tmp_path / "last.ckpt", state, foreign)
    checkpoint = read(path)
    assert checkpoint.state.keys() == state.keys()
    assert all(torch.equal(checkpoint.state[key], state[key]) for key in state)
    images = "context_encoder_args.images"
    assert checkpoint.settings == {
        f"{images}.pl_class": "trainer_that_is_not_installed.CreationArgs",
        f"{images}.pl_kwargs.model_spec.head_size": 64,
        f"{images}.pl_kwargs.model_spec.is_perceptual": True,
        f"{images}.pl_kwargs.model_spec.gan_weight": 0.5,
        f"{images}.pl_kwargs.model_spec.sizes.0": 1,
        f"{images}.pl_kwargs.model_spec.sizes.1": 2,
        f"{images}.pl_kwargs.model_spec.resume": None,
        "variant": "x",
    }
    assert "trainer_that_is_not_installed" not in sys.modules


def test_weights_reads_such_a_file_by_itself(tmp_path, foreign):
    path = lightning(tmp_path / "last.ckpt", {"w": torch.arange(3.0)}, foreign)
    assert torch.equal(checkpoints.read(path)["w"], torch.arange(3.0))
    assert checkpoints.settings(path)["variant"] == "x"


def test_other_checkpoints_have_no_settings(tmp_path, plain):
    checkpoints.save({"m": nn.Linear(2, 2)}, tmp_path / "model.safetensors", {})
    torch.save({"w": torch.zeros(1)}, tmp_path / "old.ckpt", _use_new_zipfile_serialization=False)
    for path in (plain, tmp_path / "model.safetensors", tmp_path / "old.ckpt"):
        assert checkpoints.settings(path) == {}


DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int8, torch.uint8, torch.bool])
def test_every_type_of_numbers_is_read(tmp_path, dtype):
    value = torch.tensor([0, 1, 1, 0, 1]).to(dtype)
    torch.save({"state_dict": {"w": value}}, tmp_path / "w.ckpt")
    found = read(tmp_path / "w.ckpt").state["w"]
    assert found.dtype == dtype and torch.equal(found, value)


def test_views_parameters_scalars_and_empty_tensors_are_read(tmp_path):
    base = torch.arange(24.0).reshape(4, 6)
    state = {
        "base": base,
        "turned": base.T[1:],
        "step": base[::2, 3],
        "parameter": nn.Parameter(base + 1),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 2),
    }
    torch.save(state, tmp_path / "views.ckpt")
    found = read(tmp_path / "views.ckpt").state
    assert found.keys() == state.keys()
    for key, value in state.items():
        assert torch.equal(found[key], value) and not found[key].requires_grad, key


def test_what_is_read_can_be_changed_without_changing_the_file(plain):
    before = plain.read_bytes()
    read(plain).state["w"].zero_()
    assert plain.read_bytes() == before
    assert torch.equal(read(plain).state["w"], torch.arange(6.0))


def test_storages_of_an_optimizer_are_not_looked_at(tmp_path, foreign):
    """The file is read even if they are not there at all."""
    path = lightning(tmp_path / "last.ckpt", {"w": torch.arange(3.0)}, foreign)
    with zipfile.ZipFile(path) as archive:
        sizes = {name.partition("/")[2]: archive.getinfo(name).file_size for name in archive.namelist()}
    dropped = [name for name, size in sizes.items() if size == 4000]
    assert len(dropped) == 1
    cut = rewrite(path, lambda name, data: None if name in dropped else data)
    assert torch.equal(read(cut).state["w"], torch.arange(3.0))


# What must not happen


class Calls:
    """Pickled, this is a call of `function` with `arguments`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


class Wakes:
    """Acts when its state is set, or when something is put into it."""

    def __init__(self, marker: Path, how: str) -> None:
        self.marker, self.how = str(marker), how

    def __reduce__(self) -> Any:
        state = self.marker if self.how == "state" else None
        items = iter([self.marker]) if self.how == "append" else None
        entries = iter([(self.marker, 1)]) if self.how == "setitem" else None
        return Wakes, (Path(os.devnull), ""), state, items, entries

    def __setstate__(self, state: str) -> None:
        Path(state).touch()

    def append(self, item: str) -> None:
        Path(item).touch()

    def extend(self, items: list[str]) -> None:
        Path(items[0]).touch()

    def __setitem__(self, key: str, value: int) -> None:
        Path(key).touch()


class Maker:
    """Acts when it is made by unpickling."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __new__(cls, marker: Path | str) -> Maker:
        if isinstance(marker, str):
            Path(marker).touch()
        return super().__new__(cls)

    def __getnewargs__(self) -> tuple[str]:
        return (self.marker,)


def _inner(folder: Path) -> str:
    torch.save(Calls(os.mkdir, str(folder / "sprung")), folder / "inner.pt")
    return str(folder / "inner.pt")


TRAPS: dict[str, Callable[[Path], Any]] = {
    "os.system": lambda folder: Calls(os.system, f"touch '{folder / 'sprung'}'"),
    "eval": lambda folder: Calls(eval, f"__import__('pathlib').Path({str(folder / 'sprung')!r}).touch()"),
    "exec": lambda folder: Calls(exec, f"open({str(folder / 'sprung')!r}, 'w').close()"),
    "partial": lambda folder: Calls(functools.partial(os.mkdir, str(folder / "sprung"))),
    "nested calls": lambda folder: Calls(print, Calls(os.mkdir, str(folder / "sprung"))),
    "method": lambda folder: Calls(operator.methodcaller("touch"), folder / "sprung"),
    "torch.load": lambda folder: Calls(functools.partial(torch.load, weights_only=False), _inner(folder)),
    **{
        how: functools.partial(lambda how, folder: Wakes(folder / "sprung", how), how)
        for how in ("state", "append", "setitem")
    },
    "new": lambda folder: Maker(folder / "sprung"),
}

# Beside the tensors: the file can be read all the same.
BESIDE: dict[str, Callable[[Any], Any]] = {
    "hook": lambda trap: {"hook": trap},
    "hyper-parameters": lambda trap: {"hyper_parameters": trap},
    "inside hyper-parameters": lambda trap: {"hyper_parameters": {"a": [{"spec": (1, {"b": trap})}], "size": 3}},
    "optimizer states": lambda trap: {"optimizer_states": [{"state": {0: {"exp_avg": trap}}}]},
    "key": lambda trap: {trap: 1},
}
# In their place: it is refused.
INSTEAD: dict[str, Callable[[Any], Any]] = {
    "content": lambda trap: trap,
    "state dict": lambda trap: {"state_dict": trap},
    "tensor": lambda trap: {"state_dict": {"w": torch.arange(6.0), "v": trap}},
    "ordered": lambda trap: {"state_dict": collections.OrderedDict(v=trap)},
}


@pytest.mark.parametrize("place", BESIDE)
@pytest.mark.parametrize("kind", TRAPS)
def test_code_beside_the_tensors_is_not_run(tmp_path, kind, place):
    path = tmp_path / "evil.ckpt"
    torch.save({"state_dict": {"w": torch.arange(6.0)}} | BESIDE[place](TRAPS[kind](tmp_path)), path)
    for state in (read(path).state, checkpoints.read(path)):
        assert torch.equal(state["w"], torch.arange(6.0))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("place", INSTEAD)
@pytest.mark.parametrize("kind", TRAPS)
def test_code_in_place_of_tensors_is_refused_and_not_run(tmp_path, kind, place):
    path = tmp_path / "evil.ckpt"
    torch.save(INSTEAD[place](TRAPS[kind](tmp_path)), path)
    for reader in (read, checkpoints.read):
        with pytest.raises(ValueError, match=r"evil\.ckpt holds no state dict of tensors; code in it is never run"):
            reader(path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("kind", TRAPS)
def test_every_trap_of_these_tests_would_spring(tmp_path, kind):
    torch.save(BESIDE["hook"](TRAPS[kind](tmp_path)), tmp_path / "evil.ckpt")
    assert not (tmp_path / "sprung").exists()
    torch.load(tmp_path / "evil.ckpt", weights_only=False)
    assert (tmp_path / "sprung").exists()


def test_a_module_that_a_pickle_names_is_not_imported(tmp_path, plain, monkeypatch):
    (tmp_path / "module_with_effects.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    program = b"\x80\x02cmodule_with_effects\nthing\n)R."
    with pytest.raises(ValueError, match="holds no state dict of tensors"):
        read(with_program(plain, program))
    assert not (tmp_path / "sprung").exists() and "module_with_effects" not in sys.modules
    with pytest.raises(AttributeError):
        pickle.loads(program)
    assert (tmp_path / "sprung").exists()


def test_a_tensors_own_functions_are_not_called_with_what_a_pickle_gives(tmp_path):
    """The rebuild functions are names like any other: only their arguments are looked at."""
    trap = Calls(os.mkdir, str(tmp_path / "sprung"))
    forged = Calls(torch._utils._rebuild_tensor_v2, trap, 0, (1,), (1,))
    torch.save({"state_dict": {"w": forged}}, tmp_path / "evil.ckpt")
    with pytest.raises(ValueError, match=r"evil\.ckpt was refused"):
        read(tmp_path / "evil.ckpt")
    assert not (tmp_path / "sprung").exists()


def test_what_a_pickle_does_to_its_records_ends_with_it(plain, tmp_path):
    """A pickle may set attributes of what it made, never of what the next file is read with."""
    before = dict(vars(pickles.Record))
    program = b"\x80\x02cos\nsystem\n(N}X\x04\x00\x00\x00pathX\x01\x00\x00\x00xstb."
    with pytest.raises(ValueError, match="refused"):
        read(with_program(plain, program))
    assert dict(vars(pickles.Record)) == before
    assert torch.equal(read(plain).state["w"], torch.arange(6.0))


def test_names_registered_in_the_process_are_refused(plain, tmp_path):
    """An extension code would be looked up in the process, not in the file."""
    copyreg.add_extension("os", "mkdir", 0x70)
    copyreg._extension_cache[0x70] = os.mkdir  # type: ignore[attr-defined]
    try:
        marker = str(tmp_path / "sprung").encode()
        program = b"\x80\x02\x82\x70X" + len(marker).to_bytes(4, "little") + marker + b"\x85R."
        with pytest.raises(ValueError, match="refused"):
            read(with_program(plain, program))
        assert not (tmp_path / "sprung").exists()
        pickle.loads(program)
        assert (tmp_path / "sprung").exists()
    finally:
        copyreg.remove_extension("os", "mkdir", 0x70)
        copyreg._extension_cache.pop(0x70, None)  # type: ignore[attr-defined]


# Files that would take all memory or all time


def test_a_repetition_without_end_is_not_computed(tmp_path):
    state = {"state_dict": {"w": torch.zeros(1)}, "hook": Calls(operator.mul, ["x"], 10**15)}
    torch.save(state | {"hyper_parameters": Calls(bytearray, 10**15)}, tmp_path / "large.ckpt")
    assert read(tmp_path / "large.ckpt").settings == {"args.0": 10**15}


@pytest.mark.parametrize("program", [b"\x80\x02Nr\xff\xff\xff\xff.", b"\x80\x02Np4294967295\n."])
def test_a_memo_number_beyond_the_file_is_refused(plain, program):
    with pytest.raises(ValueError, match=r"refused.*UnpicklingError"):
        read(with_program(plain, program))


def test_a_text_longer_than_the_file_is_refused(plain):
    with pytest.raises(ValueError, match="refused"):
        read(with_program(plain, b"\x80\x04\x8d" + (2**40).to_bytes(8, "little") + b"x."))


def test_lists_that_share_lists_are_walked_once(tmp_path):
    tree: Any = [1]
    for _ in range(60):
        tree = [tree, tree]
    torch.save({"state_dict": {"w": torch.zeros(1)}, "hyper_parameters": {"tree": tree}}, tmp_path / "laughs.ckpt")
    assert list(read(tmp_path / "laughs.ckpt").settings.values()) == [1]


def test_hyper_parameters_that_hold_themselves_are_read(tmp_path):
    spec: dict[str, Any] = {"size": 2}
    spec["self"] = spec
    torch.save({"state_dict": {"w": torch.zeros(1)}, "hyper_parameters": spec}, tmp_path / "loop.ckpt")
    assert read(tmp_path / "loop.ckpt").settings == {"size": 2}


def test_hyper_parameters_nested_without_end_are_refused(plain):
    depth = 10**5
    with zipfile.ZipFile(plain) as archive:
        program = archive.read("plain/data.pkl")
    nested = b"X\x10\x00\x00\x00hyper_parameters" + b"]" * depth + b"a" * (depth - 1) + b"s."
    with pytest.raises(ValueError, match=r"refused.*ValueError"):
        read(with_program(plain, program[:-1] + nested))


# Damaged files


def test_a_tensor_beyond_its_storage_is_refused(plain):
    cut = rewrite(plain, lambda name, data: data[:-4] if name == "data/0" else data)
    with pytest.raises(ValueError, match=r"rewritten\.ckpt was refused: it is damaged.*never run"):
        read(cut)


def test_a_storage_that_is_not_there_is_refused(plain):
    with pytest.raises(ValueError, match="refused"):
        read(rewrite(plain, lambda name, data: None if name == "data/0" else data))


def test_compressed_storages_are_refused(plain):
    """They could not be mapped, and could be larger than the disk."""
    with pytest.raises(ValueError, match="refused"):
        read(rewrite(plain, lambda name, data: data, zipfile.ZIP_DEFLATED))


def test_a_checkpoint_of_the_other_byte_order_is_refused(plain):
    other = b"big" if sys.byteorder == "little" else b"little"
    with pytest.raises(ValueError, match="refused"):
        read(rewrite(plain, lambda name, data: other if name == "byteorder" else data))


def test_a_file_that_is_no_zip_is_refused(tmp_path):
    (tmp_path / "text.ckpt").write_text("not a checkpoint")
    with pytest.raises(ValueError, match=r"text\.ckpt was refused"):
        read(tmp_path / "text.ckpt")


@pytest.mark.parametrize("content", [[1, 2], 3, {}, {"a": 1}, {"state_dict": {}}, {"state_dict": {"a": "text"}}])
def test_a_file_without_tensors_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "odd.ckpt")
    with pytest.raises(ValueError, match=r"odd\.ckpt holds no state dict of tensors"):
        read(tmp_path / "odd.ckpt")


def described(size: Any, stride: Any, offset: Any = 0, storage: Any = "0", count: int = 6) -> bytes:
    """The program of a checkpoint whose one tensor is described like this, over the six numbers of `plain`."""
    source = ("storage", torch.FloatStorage, storage, "cpu", count)
    return pickle.dumps({"state_dict": {"w": Calls(torch._utils._rebuild_tensor_v2, source, offset, size, stride)}}, 2)


def test_a_tensor_is_what_its_description_says(plain):
    found = read(with_program(plain, described((2, 2), (3, 1), offset=1))).state["w"]
    assert found.tolist() == [[1, 2], [4, 5]]


@pytest.mark.parametrize(
    "wrong",
    [
        *[((7,), (1,)), ((6,), (2,)), ((-1,), (1,)), (("a",), (1,)), ((2, 2), (1,)), ((2,), (-1,)), (5, 1)],
        *[((6,), (1,), 1), ((1,), (1,), -1), ((1,), (1,), "0"), ((10**18,), (10**18,))],
        *[((6,), (1,), 0, "1"), ((6,), (1,), 0, "../0"), ((6,), (1,), 0, None)],
    ],
    ids=str,
)
def test_a_tensor_that_its_storage_does_not_hold_is_refused(plain, wrong):
    with pytest.raises(ValueError, match=r"rewritten\.ckpt was refused"):
        read(with_program(plain, described(*wrong)))


def test_a_storage_of_another_size_than_its_description_is_refused(plain):
    with pytest.raises(ValueError, match=r"storage 0 has 24 bytes, not 5 numbers of torch\.float32"):
        read(with_program(plain, described((2,), (1,), count=5)))


# TorchScript modules


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


def _change(path: Path, changes: dict[str, bytes | None]) -> None:
    """The same archive with some files replaced, or left out."""
    rewrite(path, lambda name, data: changes.get(name, data)).replace(path)


@pytest.mark.parametrize("how", ["trace", "script"])
def test_every_tensor_of_a_module_is_read(tmp_path: Path, how: str):
    expected = _save(tmp_path / "net.jit", how)
    state = read_module(tmp_path / "net.jit")
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        assert state[key].dtype == value.dtype and torch.equal(state[key], value), key
    assert checkpoints.read(tmp_path / "net.jit").keys() == expected.keys()
    # Authors name their archives .pt as well: what is in the file counts.
    (tmp_path / "net.jit").rename(tmp_path / "net.pt")
    assert checkpoints.read(tmp_path / "net.pt").keys() == expected.keys()


def test_where_a_tensor_lay_when_it_was_saved_does_not_matter(tmp_path: Path):
    expected = _save(tmp_path / "net.jit")
    with zipfile.ZipFile(tmp_path / "net.jit") as archive:
        content = archive.read("net/data.pkl")
    short, long = (b"X" + len(name).to_bytes(4, "little") + name for name in (b"cpu", b"cuda:0"))
    assert content.count(short) == 1
    _change(tmp_path / "net.jit", {"data.pkl": content.replace(short, long)})
    state = read_module(tmp_path / "net.jit")
    assert all(torch.equal(state[key], value) and state[key].device.type == "cpu" for key, value in expected.items())


def _holding(value: bytes) -> bytes:
    """The program of a module with one attribute, given as its pickle without start and end."""
    return b"\x80\x02c__torch__\nNet\n)\x81}X\x01\x00\x00\x00w" + value + b"sb."


@pytest.mark.parametrize("place", ["attribute", "module"])
@pytest.mark.parametrize("kind", TRAPS)
def test_code_in_the_pickle_of_a_module_is_refused_and_not_run(tmp_path: Path, kind: str, place: str):
    _save(tmp_path / "net.jit")
    content = pickle.dumps(TRAPS[kind](tmp_path), protocol=2)
    _change(tmp_path / "net.jit", {"data.pkl": _holding(content[2:-1]) if place == "attribute" else content})
    with pytest.raises(ValueError, match=r"net\.jit was refused: .* is not allowed.*never run"):
        checkpoints.read(tmp_path / "net.jit")
    assert not (tmp_path / "sprung").exists()
    pickle.loads(content)  # the same bytes, trusted
    assert (tmp_path / "sprung").exists()


def test_code_in_a_list_of_a_module_is_not_run(tmp_path: Path):
    """Lists hold no weights, and are not looked into."""
    _save(tmp_path / "net.jit")
    trap = pickle.dumps(TRAPS["exec"](tmp_path), protocol=2)[2:-1]
    _change(tmp_path / "net.jit", {"data.pkl": _holding(b"ctorch.jit._pickle\nbuild_list\n(](" + trap + b"etR")})
    assert read_module(tmp_path / "net.jit") == {}
    assert not (tmp_path / "sprung").exists()


def _laughs() -> bytes:
    """Modules in modules, sixty deep, each twice the one before."""
    one = b"c__torch__\nNet\n)\x81}(X\x01\x00\x00\x00a%bX\x01\x00\x00\x00b%bub"
    program = b"c__torch__\nNet\n)\x81q\x00"
    for number in range(60):
        number_put, got = bytes([number + 1]), b"h" + bytes([number])
        program += one.replace(b"%b", got) + b"q" + number_put
    return b"\x80\x02" + program + b"."


LOOP = b"\x80\x02c__torch__\nNet\n)\x81q\x00}X\x01\x00\x00\x00wh\x00sb."


@pytest.mark.parametrize("program", [_laughs(), LOOP], ids=["shared", "itself"])
def test_modules_without_end_are_refused(tmp_path: Path, program: bytes):
    _save(tmp_path / "net.jit")
    _change(tmp_path / "net.jit", {"data.pkl": program})
    with pytest.raises(ValueError, match="nested without end"):
        read_module(tmp_path / "net.jit")


def test_code_in_the_archive_is_not_even_read(tmp_path: Path):
    expected = _save(tmp_path / "net.jit")
    _change(tmp_path / "net.jit", {"code/__torch__.py": b"raise SystemExit", "constants.pkl": b"not a pickle"})
    assert read_module(tmp_path / "net.jit").keys() == expected.keys()


@pytest.mark.parametrize("name", ["os\nsystem", "builtins\neval", "torch\nload", "torch.jit._pickle\nrestore_type_tag"])
def test_any_other_name_in_a_module_is_refused(tmp_path: Path, name: str):
    _save(tmp_path / "net.jit")
    _change(tmp_path / "net.jit", {"data.pkl": b"\x80\x02c" + name.encode() + b"\n."})
    with pytest.raises(ValueError, match="is not allowed"):
        read_module(tmp_path / "net.jit")


def _pickled(persistent: object) -> bytes:
    """A module with one tensor of four numbers in storage 0."""
    buffer = io.BytesIO()

    class Writer(pickle.Pickler):
        def persistent_id(self, value: object) -> object:
            return persistent if value == "here" else None

    Writer(buffer, protocol=2).dump("here")
    storage = buffer.getvalue()[2:-1]
    size = b"K\x00K\x04\x85K\x01\x85\x89}t"  # offset 0, size (4,), stride (1,), no gradient, no hooks
    return _holding(b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + size + b"R")


@pytest.mark.parametrize(
    ("pid", "problem"),
    [
        (("module", "float", "0", "cpu", 4), "of a 'module' is no tensor"),
        (("storage", "float", "0"), "unpack"),
        ("storage", "unpack"),
    ],
)
def test_persistent_objects_other_than_storages_are_refused(tmp_path: Path, pid: object, problem: str):
    _save(tmp_path / "net.jit")
    _change(tmp_path / "net.jit", {"data.pkl": _pickled(pid)})
    with pytest.raises(ValueError, match=problem):
        read_module(tmp_path / "net.jit")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"data.pkl": None}, "0 files data.pkl, not one"),
        ({"data.pkl": b"\x80\x02"}, "pickle exhausted"),
        ({"data/0": None}, "KeyError"),
        ({"data/0": b"\x00" * 4}, "storage 0 has 4 bytes, not 6 numbers of torch.bfloat16"),
        ({"byteorder": b"big"}, "another byte order"),
    ],
)
def test_a_damaged_module_is_refused(tmp_path: Path, changes: dict[str, bytes | None], problem: str):
    _save(tmp_path / "net.jit")
    _change(tmp_path / "net.jit", changes)
    with pytest.raises(ValueError, match=rf"net\.jit was refused: .*{problem}"):
        read_module(tmp_path / "net.jit")


def test_a_jit_file_that_is_no_archive_is_refused(tmp_path: Path):
    (tmp_path / "net.jit").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="no archive of tensors"):
        checkpoints.read(tmp_path / "net.jit")


# The files of a published tokenizer


class Encoding(nn.Module):
    """The encoder as it is published: traced, with the quantiser's and the wavelets' tables."""

    def __init__(self, tokenizer: CosmosTokenizer) -> None:
        super().__init__()
        self.encoder, self.quant_conv = tokenizer.encoder, tokenizer.quant_conv
        self.quantizer = _tables("_levels", "_basis", "implicit_codebook")

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        past = Past({}, start=True)
        out_BTHWC: Tensor = self.quant_conv(self.encoder(x_BCTHW.permute(0, 2, 3, 4, 1), past), past)
        return out_BTHWC.permute(0, 4, 1, 2, 3)


class Decoding(nn.Module):
    """And the decoder."""

    def __init__(self, tokenizer: CosmosTokenizer) -> None:
        super().__init__()
        self.decoder, self.post_quant_conv = tokenizer.decoder, tokenizer.post_quant_conv
        self.inv_quant = nn.ModuleDict({"quantizer": _tables("_levels", "_basis", "implicit_codebook")})

    def forward(self, codes_BCTHW: Tensor) -> Tensor:
        past = Past({}, start=True)
        out_BTHWC: Tensor = self.decoder(self.post_quant_conv(codes_BCTHW.permute(0, 2, 3, 4, 1), past), past)
        return out_BTHWC.permute(0, 4, 1, 2, 3)


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
    state = checkpoints.read(folder)
    assert {"encoder.patcher3d.wavelets", "quantizer._levels", "inv_quant.quantizer._basis"} <= state.keys()
    world = diagonal.load("cosmos/tiny", tokenizer=folder, weights=_model(folder))
    own = {key: value for key, value in coder.state_dict().items() if "patcher3d" not in key}
    assert own.keys() == world.tokenizer.state_dict().keys()
    assert all(torch.equal(value, own[key]) for key, value in world.tokenizer.state_dict().items())


def _model(folder: Path) -> Path:
    """A model to go with it, from elsewhere."""
    path = folder / "model"
    diagonal.load("cosmos/tiny").save_pretrained(path)
    state = {key: value for key, value in checkpoints.read(path).items() if key.startswith("transformer.")}
    torch.save(state, path / "model.pt")
    return path / "model.pt"


def test_a_traced_tokenizer_and_ours_compute_the_same(published: tuple[Path, CosmosTokenizer]):
    """The traces are real ones: they run, and give what the weights that we read give."""
    folder, _ = published
    coder: Any = build(VARIANTS["tiny"])
    checkpoints.load(coder, checkpoints.read(folder), "cosmos/tiny")
    video = torch.randint(256, (1, 9, 3, 32, 32), generator=torch.Generator().manual_seed(0)).byte()
    traced = torch.jit.load(folder / "encoder.jit")(video.transpose(1, 2) / 127.5 - 1)
    torch.testing.assert_close(coder.latents(video), traced, atol=1e-5, rtol=1e-5)


def test_one_file_alone_lacks_the_other_half(published: tuple[Path, CosmosTokenizer]):
    folder, _ = published
    coder: Any = build(VARIANTS["tiny"])
    with pytest.raises(ValueError, match=r"missing: decoder\."):
        checkpoints.load(coder, checkpoints.read(folder / "encoder.jit"), "cosmos/tiny")


def test_several_other_archives_are_too_many(tmp_path: Path):
    for name in ("a", "b"):
        _save(tmp_path / f"{name}.jit")
    with pytest.raises(ValueError, match=r"holds 2 \.jit files; name the one to load"):
        checkpoints.read(tmp_path)
