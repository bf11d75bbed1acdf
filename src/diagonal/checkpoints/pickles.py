"""Reads PyTorch archives whose pickles hold more than tensors, without running anything in them: Lightning checkpoints
with objects of their trainer, and TorchScript modules, which are trees of objects of the archive's own classes.

A pickle is a small program that names functions and calls them. Here every name it gives, without exception, is an
inert `Record` that keeps what it was called with: nothing is imported and nothing of the file is run. Tensors are then
made from the records of PyTorch's own rebuild functions, as views of the mapped file: what is not looked at, such as
an optimizer's state or a module's code, is never read from the disk.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import struct
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

TENSOR, PARAMETER = "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter"
MODULE = re.compile(r"__torch__\..+")  # a class of a TorchScript archive's own
LIST = re.compile(r"torch\.jit\._pickle\.build_\w*list")  # a list whose elements are of one type: no weights
DTYPES = {
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
}

MAX_PATH = 4096  # characters

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The tensors, and the hyper-parameters by their path: {"model_args.spec.head_size": 64}."""

    state: dict[str, Tensor]
    settings: dict[str, Scalar]


def read(path: Path) -> Checkpoint:
    """A checkpoint in PyTorch's zip format."""
    with _refusing(path), zipfile.ZipFile(path) as archive:
        file = _File.open(path, archive)
        content = _entries(_unpickle(file.bytes("data.pkl")))
        found = _entries(content.get("state_dict", content))
        if not found or not all(map(_is_tensor, found.values())):
            raise _NoTensorsError
        state = {str(key): file.tensor(value) for key, value in found.items()}
        return Checkpoint(state, dict(_scalars(content.get("hyper_parameters", {}))))


def read_module(path: Path) -> dict[str, Tensor]:
    """Every tensor of a TorchScript archive (`torch.jit.save`), by its dotted name. Its code is never looked at."""
    with _refusing(path), zipfile.ZipFile(path) as archive:
        file = _File.open(path, archive)
        program = file.bytes("data.pkl")
        return {name: file.tensor(record) for name, record in _tensors(_unpickle(program), len(program))}


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Whatever a damaged or hostile file makes fail, the user reads which file it was."""
    try:
        yield
    except MemoryError:
        raise
    except _NoTensorsError as error:
        raise ValueError(f"{path} holds no state dict of tensors; code in it is never run") from error
    except Exception as error:
        # The repr has no control characters, whatever the names in the file are.
        raise ValueError(
            f"{path} was refused: it is damaged or no archive of tensors ({error!r}); code in it is never run"
        ) from error


class _NoTensorsError(Exception):
    """A whole file, but of something else."""


class Record:
    """Stands for any class or function that a pickle names; an instance is a call of it and what came after.

    Each name gets a subclass of its own, so that nothing a pickle does to one outlives its reading.
    """

    __slots__ = ("args", "entries", "state")
    path = ""  # the name, as module.name
    args: tuple[Any, ...]
    entries: dict[Any, Any]  # what a dict or a list would hold
    state: Any  # the attributes

    def __new__(cls, *args: Any, **named: Any) -> Record:
        record = super().__new__(cls)
        record.args, record.entries, record.state = args, dict(named), None
        return record

    def __call__(self, *args: Any) -> Record:
        """What a call gave may be called in turn, as functools.partial is."""
        return type(self)(self, *args)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    def append(self, value: Any) -> None:
        self.entries[len(self.entries)] = value

    add = append


class _Unpickler(pickle.Unpickler):
    """Runs a pickle's program with nothing but records to call."""

    def __init__(self, program: bytes) -> None:
        super().__init__(io.BytesIO(program))
        self.named: dict[str, type[Record]] = {}

    def find_class(self, module: str, name: str) -> type[Record]:
        path = f"{module}.{name}"
        if path not in self.named:
            self.named[path] = type("Record", (Record,), {"__slots__": (), "path": path})
        return self.named[path]

    def persistent_load(self, pid: Any) -> Any:
        """A storage is named by ("storage", its class, its file, its device, its size): looked at when needed."""
        return pid


def _unpickle(program: bytes) -> Any:
    for opcode, argument, _ in pickletools.genops(program):
        # A memo number takes that much memory at once; an honest one counts objects, which are bytes of the program.
        if "PUT" in opcode.name and int(argument or 0) > len(program):
            raise pickle.UnpicklingError(f"memo number {argument} in a program of {len(program)} bytes")
        # Names that the process itself has registered: these would not pass through find_class.
        if opcode.name.startswith("EXT"):
            raise pickle.UnpicklingError("extension codes are not read")
    return _Unpickler(program).load()


def _entries(value: Any) -> dict[Any, Any]:
    """What a dict or a stand-in for one (OrderedDict, a trainer's own) holds; empty for anything else."""
    if isinstance(value, Record):
        return value.entries
    return value if isinstance(value, dict) else {}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Record) and value.path in (TENSOR, PARAMETER)


def _tensors(module: Any, most: int) -> Iterator[tuple[str, Record]]:
    """The tensors of a TorchScript module and of the modules in it, by dotted name; flags and numbers are no weights.

    A module may be shared, and then has several names; at most `most` values are looked at.
    """
    waiting = [("", module)]
    for _ in range(most):
        if not waiting:
            return
        name, value = waiting.pop()
        if len(name) > MAX_PATH:
            break
        if _is_tensor(value):
            yield name, value
        elif isinstance(value, Record) and MODULE.fullmatch(value.path):
            parts = _entries(value.state).items()
            waiting += [(f"{name}.{key}" if name else str(key), part) for key, part in parts][::-1]
        else:
            kind = value if isinstance(value, type) else type(value)
            if issubclass(kind, Record) and not LIST.fullmatch(kind.path):
                raise ValueError(f"{kind.path} is not allowed in a TorchScript module")
    raise ValueError("modules nested without end")


def _scalars(tree: Any) -> Iterator[tuple[str, Scalar]]:
    """Every plain value in nested containers and records, with its path. What is shared is given once, at its first
    place, and paths are short: no file can make this much longer than itself."""
    waiting, seen = [("", tree)], set()
    while waiting:
        path, value = waiting.pop()
        if len(path) > MAX_PATH:
            raise ValueError("hyper-parameters nested without end")
        if isinstance(value, str | int | float | None):
            yield path, value
        elif isinstance(value, type) and issubclass(value, Record):
            yield path, value.path
        elif id(value) not in seen:
            seen.add(id(value))
            waiting += [(".".join(filter(None, (path, str(key)))), child) for key, child in _children(value)][::-1]


def _children(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Record):
        return [("args", value.args), *value.entries.items(), *([] if value.state is None else [("", value.state)])]
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list | tuple | set | frozenset) else []


@dataclass(frozen=True, slots=True)
class _File:
    """PyTorch's zip: a folder with data.pkl and the storages as data/0, data/1, ..., all of them stored as they are."""

    archive: zipfile.ZipFile
    folder: str
    mapped: torch.UntypedStorage

    @classmethod
    def open(cls, path: Path, archive: zipfile.ZipFile) -> _File:
        found = [name for name in archive.namelist() if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(found) != 1:
            raise ValueError(f"{len(found)} files data.pkl, not one")
        whole = torch.from_file(str(path), False, path.stat().st_size, dtype=torch.uint8)
        file = cls(archive, found[0].removesuffix("data.pkl"), whole.untyped_storage())
        if f"{file.folder}byteorder" in archive.namelist() and file.bytes("byteorder") != sys.byteorder.encode():
            raise ValueError("written on a machine of another byte order")
        return file

    def bytes(self, name: str) -> bytes:
        return self.archive.read(self._stored(name))

    def _stored(self, name: str) -> zipfile.ZipInfo:
        info = self.archive.getinfo(self.folder + name)
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name} is compressed")
        return info

    def tensor(self, record: Record) -> Tensor:
        """The tensor that a record of PyTorch's rebuild functions describes: a view of the mapped file."""
        while record.path == PARAMETER:
            record = record.args[0]
        (kind, storage, name, _, count), offset, size, stride = record.args[:4]
        if record.path != TENSOR or kind != "storage":
            raise ValueError(f"{record.path} of a {kind!r} is no tensor")
        dtype = DTYPES[storage.path]
        flat = self._storage(name)
        if flat.nbytes() != count * dtype.itemsize:
            raise ValueError(f"storage {name} has {flat.nbytes()} bytes, not {count} numbers of {dtype}")
        # Torch checks that size and stride stay inside the storage.
        return torch.empty(0, dtype=dtype).set_(flat, offset, size, stride)

    def _storage(self, name: str) -> torch.UntypedStorage:
        info = self._stored(f"data/{name}")
        file = self.archive.fp
        assert file is not None
        file.seek(info.header_offset)
        # The data follow a header of 30 bytes, the name and the extra field, whose lengths are the last two numbers.
        lengths = struct.unpack("<26x2H", file.read(30))
        start = info.header_offset + 30 + sum(lengths)
        storage: torch.UntypedStorage = self.mapped[start : start + info.file_size]
        return storage
