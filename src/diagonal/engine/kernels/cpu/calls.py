"""Calls of the library, and recordings of them: on a CPU what a captured graph is on a GPU.

A step of a small model is hundreds of calls, and Python takes as long as they do. All that a call reads and writes is
said by a struct of addresses; so a step that is made of calls alone can be made again by the library itself, with the
same structs. Intermediate results then lie in memory of the recording (`made`). A step that also asks PyTorch for
something cannot be recorded: it is noticed, and such a step runs as it did.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from diagonal.engine.kernels.cpu import library

Struct = ctypes.Array[ctypes.c_int64]
LINE = 64  # bytes: where results begin
CHUNK = 1 << 20  # bytes of memory that are asked for at once, at least


class Space:
    """Memory for the results of one step after the other: each begins at its start again."""

    def __init__(self) -> None:
        self._chunks: list[Tensor] = []
        self._chunk = self._used = 0

    def rewind(self) -> None:
        """Use all of it again."""
        self._chunk = self._used = 0

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Memory that nobody has had since `rewind`."""
        size = math.prod(shape) * dtype.itemsize
        while self._chunk == len(self._chunks) or self._used + size > len(self._chunks[self._chunk]):
            if self._chunk < len(self._chunks):
                self._chunk += 1
            if self._chunk == len(self._chunks):
                self._chunks.append(_memory(max(CHUNK, size)))
            self._used = 0
        first, self._used = self._used, self._used + -(-size // LINE) * LINE
        return self._chunks[self._chunk][first : first + size].view(dtype).view(tuple(shape))


def _memory(size: int) -> Tensor:
    """So many bytes, by numpy: `_Watch` would notice PyTorch."""
    found = np.empty(size + LINE, np.uint8)
    first = -found.ctypes.data % LINE
    return torch.from_numpy(found[first : first + size])


class Recording:
    """The calls of a step. `whole`: it did nothing else."""

    def __init__(self, space: Space) -> None:
        self.space, self.whole = space, True
        self.calls: list[tuple[str, Struct]] = []
        self.kept: list[Any] = []  # what structs point to
        self._listed: Struct | None = None

    def finish(self) -> None:
        """List the calls for the library."""
        places = (
            number for name, struct in self.calls for number in (library.place_of(name), ctypes.addressof(struct))
        )
        self._listed = library.numbers(*places)

    def replay(self) -> None:
        """Make all calls again."""
        library.loaded().diagonal_replay(self._listed, len(self.calls))


class _Threads(threading.local):
    """What each thread records."""

    recording: Recording | None = None


_threads = _Threads()


def call(name: str, struct: Struct, *kept: Any) -> None:
    """Call a function of the library. `kept`: what the struct points to, beside tensors, that nobody else keeps."""
    library.function(name)(struct)
    recording = _threads.recording
    if recording is not None:
        recording.calls.append((name, struct))
        recording.kept.extend(kept)


def made(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory for what a call makes."""
    recording = _threads.recording
    return torch.empty(shape, dtype=dtype) if recording is None else recording.space.take(shape, dtype)


def record(run: Callable[[], None], space: Space) -> Recording | None:
    """Run a step and note its calls; None where it asked PyTorch for something too."""
    recording = Recording(space)
    space.rewind()
    _threads.recording = recording
    try:
        with _Watch(recording):
            run()
    finally:
        _threads.recording = None
    if not recording.whole:
        return None
    recording.finish()
    return recording


def not_alone() -> None:
    """Say that a step asks other processes for something: it is not recorded."""
    if _threads.recording is not None:
        _threads.recording.whole = False


class _Watch(TorchDispatchMode):
    """Notices operations that compute something or take memory: all but views."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        given, found = (
            {one.untyped_storage().data_ptr() for one in tree_leaves(tree) if isinstance(one, Tensor)}
            for tree in ((args, kwargs), result)
        )
        if function._schema.is_mutable or not found <= given or not found:
            self._recording.whole = False
        return result
