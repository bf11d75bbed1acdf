"""Tensors of a TorchScript archive, read without running anything in it.

Such a file (`torch.jit.save`) is a zip of code and of a pickle, `data.pkl`, that names a tree of objects of the code's
own classes. The code is never looked at. Objects become inert records of their attributes, tensors are built here from
the stored bytes, and every other name in the pickle is refused before it can be called.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CLASSES = "__torch__"  # what the modules of an archive's own classes begin with
DTYPES = {
    "BFloat16Storage": torch.bfloat16,
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
    "CharStorage": torch.int8,
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "ShortStorage": torch.int16,
}


def read(path: Path) -> dict[str, Tensor]:
    """Every tensor of the saved module, by its dotted name, on the CPU."""
    try:
        with zipfile.ZipFile(path) as archive:
            content = _Reader(archive, _root(archive)).load()
            return dict(_tensors(content, ""))
    except MemoryError:
        raise
    except Exception as error:  # a damaged archive can fail in any way
        raise ValueError(
            f"{path} was refused: it is damaged or no TorchScript archive, or it names code that is never run "
            f"({type(error).__name__}: {error})"
        ) from error


class Record:
    """An object of an archive's own class: its attributes, and no behaviour."""

    attributes: object = None

    def __setstate__(self, attributes: object) -> None:
        self.attributes = attributes


def _root(archive: zipfile.ZipFile) -> str:
    """The one folder that all files of an archive are in."""
    found = [name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(found) != 1:
        raise ValueError(f"{len(found)} files data.pkl, not one")
    return found[0].removesuffix("data.pkl")


class _Reader(pickle.Unpickler):
    """Knows a handful of names; everything else is refused."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(archive.open(root + "data.pkl"))
        self._archive, self._folder = archive, root + "data/"
        if root + "byteorder" in archive.namelist() and archive.read(root + "byteorder") != b"little":
            raise ValueError("its numbers are stored big end first, which is not read")

    def find_class(self, module: str, name: str) -> Any:
        if module == CLASSES or module.startswith(CLASSES + "."):
            return Record
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        if module == "torch.jit._pickle" and name.startswith("build_") and name.endswith("list"):
            return list  # a list whose elements are of one type
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed")

    def persistent_load(self, pid: Any) -> Tensor:
        """The numbers of one storage, flat. Where they were kept when the file was made does not matter."""
        kind, dtype, key, _, count = pid
        if kind != "storage":
            raise pickle.UnpicklingError(f"{kind!r} is not a storage")
        content = bytearray(self._archive.read(f"{self._folder}{key}"))
        flat = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
        if len(flat) != count:
            raise ValueError(f"storage {key} has {len(flat)} numbers, not {count}")
        return flat


def _tensor(flat: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: object) -> Tensor:
    """A tensor as a view of its storage; torch checks that it stays inside."""
    return flat.as_strided(size, stride, offset)


def _tensors(content: object, name: str) -> Iterator[tuple[str, Tensor]]:
    """Walk records down to their tensors; what else a module keeps, such as flags, is not a weight."""
    if isinstance(content, Tensor):
        yield name, content
    elif isinstance(content, Record) and isinstance(content.attributes, dict):
        for key, value in content.attributes.items():
            yield from _tensors(value, f"{name}.{key}" if name else str(key))
