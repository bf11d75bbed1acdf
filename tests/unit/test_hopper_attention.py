"""How attention on Hopper is cut up. What it computes: test_emulated_attention."""

from __future__ import annotations

import pytest
import torch

from diagonal.engine.kernels.cuda import hopper_attention, nvrtc
from diagonal.engine.kernels.cuda.hopper_attention import KernelConfig, WorkSplit, row_tiles, schedule, schedule_step
from diagonal.engine.kernels.visibility import Visibility


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_program_fits_a_multiprocessor(count: int, width: int) -> None:
    found = KernelConfig(width, 4, count, SPLIT_KV=True)
    thread_blocks = 2 if found.paired else 1
    assert thread_blocks * (found.shared + 1024) <= nvrtc.SHARED + 1024 and found.stages >= 2 and found.keys % 64 == 0
    constants = found.constants
    threads = 128 * (count * int(constants["MORE_REGISTERS"]) + int(constants["FEWER_REGISTERS"]))
    assert threads <= 65536  # registers
    assert found.paired == (count == 1 and width == 128)
    assert constants["QK_2"] == f'"%{found.keys // 2 + 2}"' and constants["PV_4"] == f'"%{width // 2 + 4}"'


@pytest.mark.parametrize(("blocks", "tiles"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 3), (6, 2), (7, 4), (8, 4)])
def test_programs_are_busy_for_about_the_same_time(blocks: int, tiles: int) -> None:
    """16 of them for each key head of Cosmos."""
    assert schedule(blocks, 16, 64).tiles == tiles


def given(heads: int, kv_heads: int, queries: int, length: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    q, k = (1, heads, queries, width), (1, kv_heads, length, width)
    return torch.empty(q, device="meta", dtype=torch.bfloat16), torch.empty(k, device="meta", dtype=torch.bfloat16)


def test_every_multiprocessor_has_a_program() -> None:
    def splits(*shape: int) -> tuple[int, int]:
        found = schedule_step(*given(*shape), 132, 64)
        return found.tiles, found.more

    assert splits(32, 8, 96, 12864, 128) == (2, 8)
    assert splits(32, 8, 48, 12864, 128) == (1, 16)
    assert splits(32, 4, 14, 5568, 64) == (1, 33)
    assert splits(64, 64, 4096, 4096, 128) == (32, 1)
    assert splits(8, 1, 1, 4096, 128) == (1, 64)  # as many as are reduced
    assert splits(18, 18, 24, 5568, 128) == (1, 14)  # two on each
    assert splits(32, 8, 1, 12864, 128) == (1, 33)
    assert splits(16, 4, 14, 5568, 64) == (1, 33)


def test_a_block_has_neighbouring_queries_of_all_heads_that_share_keys() -> None:
    assert row_tiles(*given(32, 8, 96, 12864, 128)) == 6
    assert row_tiles(*given(32, 8, 72, 12864, 128)) == 5
    assert row_tiles(*given(32, 4, 14, 5568, 64)) == 2
    assert row_tiles(*given(24, 8, 48, 640, 128)) == 3  # of three heads, 16 each
    assert row_tiles(*given(18, 18, 24, 5568, 128)) == 1


@pytest.mark.parametrize("thread_blocks", [1, 2, 5, 16, 33])
@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 5, 6, 7, 8, 11, 63])
def test_tiles_with_more_row_tiles_have_no_fewer_parts(blocks: int, thread_blocks: int) -> None:
    found = schedule(blocks, thread_blocks, 64)
    assert found.groups <= 3 and 1 <= found.longer <= found.tiles
    assert found.longer * found.groups + (found.tiles - found.longer) * (found.groups - 1) == blocks
    assert found.more >= found.fewer >= 1
    assert found.thread_blocks <= max(thread_blocks, found.tiles)


def test_five_blocks_take_no_longer_than_they_must() -> None:
    """Two, two and one of them, in six splits and four."""
    assert schedule(5, 16, 64) == WorkSplit(5, 3, 6, 4)


def test_too_many_heads_for_a_block_are_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "hopper", lambda device: True)
    number = torch.zeros(1, dtype=torch.long)
    seen = Visibility(torch.zeros(48, dtype=torch.long), torch.zeros(128, dtype=torch.int32), number, number)
    k = torch.zeros(1, 1, 128, 128).bfloat16()
    for heads, wanted in ((8, True), (9, False), (128, False)):
        assert hopper_attention.supports_step(torch.zeros(1, heads, 48, 128).bfloat16(), k, k, seen) == wanted


def test_no_gpu_is_no_fit() -> None:
    q, k = torch.zeros(1, 32, 48, 128).bfloat16(), torch.zeros(1, 8, 128, 128).bfloat16()
    number = torch.zeros(1, dtype=torch.long)
    seen = Visibility(torch.zeros(48, dtype=torch.long), torch.zeros(128, dtype=torch.int32), number, number)
    assert not hopper_attention.supports_step(q, k, k, seen)
