"""How attention on Hopper is cut up. What it computes: test_emulated_attention."""

from __future__ import annotations

import pytest
import torch

from diagonal.engine.kernels import cuda, hopper_attention
from diagonal.engine.kernels.hopper_attention import Cut, groups, parts
from diagonal.engine.kernels.visibility import Visibility


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_program_fits_a_multiprocessor(count: int, width: int) -> None:
    found = Cut(width, count, SPLIT=True)
    assert found.shared <= cuda.SHARED and found.stages >= 2 and found.keys % 64 == 0
    constants = found.constants
    threads = 128 * (count * int(constants["MORE"]) + int(constants["LESS"]))
    assert threads <= 65536  # registers
    assert constants["SCORE_2"] == f'"%{found.keys // 2 + 2}"' and constants["MIX_4"] == f'"%{width // 2 + 4}"'


@pytest.mark.parametrize(
    ("rows", "wanted"), [(24, 1), (64, 1), (65, 2), (128, 2), (192, 3), (256, 2), (320, 3), (384, 3), (480, 2)]
)
def test_as_few_rows_as_possible_are_empty(rows: int, wanted: int) -> None:
    assert groups(rows) == wanted


def given(heads: int, kv_heads: int, queries: int, length: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    q, k = (1, heads, queries, width), (1, kv_heads, length, width)
    return torch.empty(q, device="meta", dtype=torch.bfloat16), torch.empty(k, device="meta", dtype=torch.bfloat16)


def test_every_multiprocessor_has_a_program() -> None:
    assert parts(*given(32, 8, 96, 12864, 128), 132, 64) == 8
    assert parts(*given(32, 8, 48, 12864, 128), 132, 64) == 16
    assert parts(*given(32, 4, 14, 5568, 64), 132, 64) == 33
    assert parts(*given(64, 64, 4096, 4096, 128), 132, 64) == 1
    assert parts(*given(32, 1, 1, 4096, 128), 132, 64) == 64  # as many as are merged


def test_no_gpu_is_no_fit() -> None:
    q, k = torch.zeros(1, 32, 48, 128).bfloat16(), torch.zeros(1, 8, 128, 128).bfloat16()
    number = torch.zeros(1, dtype=torch.long)
    seen = Visibility(torch.zeros(48, dtype=torch.long), torch.zeros(128, dtype=torch.int32), number, number)
    assert not hopper_attention.fitting(q, k, k, seen)
