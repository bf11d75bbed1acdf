"""In Triton's interpreter (TRITON_INTERPRET=1) every address that a kernel reads or writes must lie in one of the
tensors that it was given: what compute-sanitizer looks after on a GPU, to the byte."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and not torch.cuda.is_available()


@pytest.fixture(autouse=True)
def addresses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not INTERPRETED:
        yield
        return
    from triton.runtime import interpreter

    given: list[tuple[int, int]] = []
    memory, convert = interpreter._interpreter, interpreter._implicit_cvt

    def noted(argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            storage = argument.untyped_storage()
            given.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        return convert(argument)

    def check(what: str, pointers: Any, mask: Any, size: int) -> None:
        at = np.asarray(pointers)[np.asarray(mask, dtype=bool)].astype(np.uint64)
        inside = np.zeros(at.shape, dtype=bool)
        for begin, end in set(given):
            inside |= (at >= begin) & (at + np.uint64(size) <= end)
        assert inside.all(), f"{(~inside).sum()} of {at.size} addresses that a kernel {what} lie in none of its tensors"

    def load(pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        check("reads", pointers, mask, np.dtype(dtype).itemsize)
        return memory.load(pointers, mask, other, dtype)

    def store(pointers: Any, value: Any, mask: Any) -> Any:
        check("writes", pointers, mask, np.asarray(value).dtype.itemsize)
        return memory.store(pointers, value, mask)

    names = {name: getattr(memory, name) for name in dir(memory) if not name.startswith("_")}
    monkeypatch.setattr(interpreter, "_implicit_cvt", noted)
    monkeypatch.setattr(interpreter, "_interpreter", SimpleNamespace(**names | {"load": load, "store": store}))
    yield
