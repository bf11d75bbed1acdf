"""Writes models as safetensors: one file, or shards, which appear together."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from diagonal.checkpoints.state import State, some
from diagonal.media.files import atomic

SHARD = 5 * 10**9  # bytes of tensors in a file that is written, at most


def save(
    modules: Mapping[str, nn.Module],
    path: Path,
    metadata: Mapping[str, str],
    dtype: torch.dtype | None = None,
    on_file: Callable[[int, int], object] = lambda done, total: None,
) -> list[Path]:
    """Write modules as safetensors, each under its name as prefix: one file, or shards where that would be too large.

    Every file has the metadata. Numbers become `dtype`, one shard at a time; None keeps them as they are. The files
    appear together, when all are written; after each, `on_file` is told how many are done, of how many.
    """
    tensors = {f"{name}.{key}": value for name, module in modules.items() for key, value in module.state_dict().items()}
    shards = _shards({key: value.numel() * (dtype or value.dtype).itemsize for key, value in tensors.items()})
    count = len(shards)
    names = [f"{path.stem}-{number:05}-of-{count:05}{path.suffix}" for number in range(1, count + 1)]
    paths = [path.with_name(name) for name in names] if count > 1 else [path]
    other = {*path.parent.glob(f"{path.stem}-*-of-*{path.suffix}"), *path.parent.glob(path.name)} - {*paths}
    if other:
        listed = some(sorted(file.name for file in other))
        raise FileExistsError(f"{path.parent} holds another number of parts: {listed}; remove them, or save elsewhere")
    with ExitStack() as written:
        for done, (target, keys) in enumerate(zip(paths, shards, strict=True), 1):
            content = {key: tensors[key].detach().to(dtype=dtype).contiguous().cpu() for key in keys}
            save_tensors(content, written.enter_context(atomic(target)), metadata)
            on_file(done, count)
    return paths


def save_tensors(content: State, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Tensors as a safetensors file. A disk that takes no more is an OSError, as of any other file."""
    try:
        save_file(content, path, None if metadata is None else dict(metadata))
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error), str(path)) from error


def _shards(sizes: Mapping[str, int]) -> list[list[str]]:
    """Keys in their order, in parts of at most SHARD bytes; a larger tensor is a part of its own."""
    shards: list[list[str]] = [[]]
    size = 0
    for key, more in sizes.items():
        if shards[-1] and size + more > SHARD:
            shards.append([])
            size = 0
        shards[-1].append(key)
        size += more
    return shards
