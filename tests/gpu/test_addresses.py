"""That the check of addresses in Triton's interpreter (conftest.py) sees what it is for."""

# mypy: allow-untyped-defs, allow-untyped-decorators
from __future__ import annotations

import pytest
import torch

from tests.gpu.conftest import INTERPRETED

pytest.importorskip("triton")
if not INTERPRETED:
    pytest.skip("needs TRITON_INTERPRET=1 and no GPU", allow_module_level=True)

import triton
import triton.language as tl

pytestmark = pytest.mark.gpu


@triton.jit
def _copy(source, target, size, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < size), mask=at < size)


@pytest.mark.parametrize(("short", "what"), [("source", "reads"), ("target", "writes")])
def test_one_number_too_many_is_seen(short: str, what: str) -> None:
    tensors = {name: torch.zeros(6 if name == short else 8) for name in ("source", "target")}
    _copy[(1,)](*tensors.values(), 6, BLOCK=8)
    with pytest.raises(Exception, match=f"1 of 7 addresses that a kernel {what}"):
        _copy[(1,)](*tensors.values(), 7, BLOCK=8)
