"""Which numbers a device computes fastest."""

from __future__ import annotations

import pytest
import torch

from diagonal.engine.kernels.cpu import library
from diagonal.generation.devices import find_dtype


@pytest.mark.skipif(not library.available(), reason="needs a C++ compiler")
def test_int8_rows_are_decoded_in_float32_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library reads them without loss; PyTorch reads them as bfloat16 or float32."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    assert find_dtype("auto", "cpu") == torch.bfloat16
    assert find_dtype("auto", "cpu", int8_rows=True) == torch.float32
    assert find_dtype("bfloat16", "cpu", int8_rows=True) == torch.bfloat16
    monkeypatch.setenv("DIAGONAL_KERNELS", "0")
    assert find_dtype("auto", "cpu", int8_rows=True) == torch.bfloat16
