"""Which linear layers the wgmma GEMM serves, and how it tiles them. What it computes: test_emulated_wgmma_gemm."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diagonal.engine.kernels import reference, select
from diagonal.engine.kernels.cuda import nvrtc, wgmma_gemm
from diagonal.engine.linear import FusedLinear, Norm

PROCESSORS = 132
SHAPES = [(28672, 4096), (4096, 4096), (6144, 5120), (5120, 14336), (2048, 8192), (2304, 9216), (512, 128)]


def asked(rows: int, depth: int, act: Any = None) -> FusedLinear:
    return FusedLinear(torch.empty(rows, depth, device="meta", dtype=torch.bfloat16), act=act)


@pytest.mark.parametrize(("rows", "depth"), SHAPES)
@pytest.mark.parametrize("act", [None, "silu", "gelu"])
@pytest.mark.parametrize("tokens", [9, 24, 48, 64, 65, 96])
def test_thread_blocks_have_all_rows_and_all_columns_and_fit(rows: int, depth: int, act: Any, tokens: int) -> None:
    found = wgmma_gemm.configure(tokens, asked(rows, depth, act), PROCESSORS)
    if found is None:  # few rows for each thread block, and much of x; or few thread blocks
        assert rows < 8192
        return
    assert tokens <= found.TOKENS <= wgmma_gemm.MOST_TOKENS and (found.WEIGHTS_M or tokens <= wgmma_gemm.M_TILE)
    shared = found.SPLIT_K == 2 and not found.WEIGHTS_M
    assert found.ROWS % (2 * wgmma_gemm.SIDE if shared or act == "silu" else wgmma_gemm.SIDE) == 0
    thread_blocks = -(-rows // found.ROWS) * found.SPLIT_K
    assert thread_blocks <= PROCESSORS and found.ROWS <= wgmma_gemm.ROWS
    assert depth % (wgmma_gemm.DEEP * found.SPAN * found.SPLIT_K) == 0
    assert found.X_STAGES >= 1 and found.W_STAGES >= 1 and found.shared <= nvrtc.SHARED
    # The tensor cores read 64 tokens, or 64 rows, whatever their number: what lies behind the last must be there.
    behind = (found.X_STAGES * found.TOKENS if found.WEIGHTS_M else found.W_STAGES * found.ROWS) * found.unit
    assert behind >= 2 * wgmma_gemm.DEEP * wgmma_gemm.M_TILE
    sums = found.TOKENS if found.WEIGHTS_M else found.ROWS
    assert found.constants["SUM_0"] == f'"%{sums // 2}"'
    assert tokens <= wgmma_gemm.M_TILE or thread_blocks >= 0.95 * PROCESSORS
    assert not found.WEIGHTS_M or found.ROWS <= 64 * found.GROUPS * found.M_TILES


@pytest.mark.parametrize(
    ("rows", "depth", "act"),
    [(6144, 4096, None), (4096, 4096, None), (28672, 4096, "silu"), (4096, 14336, None)],
)
@pytest.mark.parametrize("tokens", range(16, 129, 8))
def test_all_layers_of_the_smaller_cosmos_are_made_by_it(rows: int, depth: int, act: Any, tokens: int) -> None:
    assert wgmma_gemm.configure(tokens, asked(rows, depth, act), PROCESSORS) is not None


def test_few_tokens_are_columns_where_that_is_less_to_compute() -> None:
    for rows, wanted in ((4096, {16: True, 48: True, 64: False}), (5120, {16: True, 32: True, 48: False})):
        for tokens, columns in wanted.items():
            found = wgmma_gemm.configure(tokens, asked(rows, 4096), PROCESSORS)
            assert found is not None and columns == found.WEIGHTS_M
            assert found.ROWS * tokens <= found.computed <= 64 * (found.ROWS + 15)


def test_few_rows_are_split_k() -> None:
    found = wgmma_gemm.configure(48, asked(4096, 4096), PROCESSORS)
    assert found is not None and (found.SPLIT_K, found.ROWS) == (2, 64)
    found = wgmma_gemm.configure(48, asked(28672, 4096, "silu"), PROCESSORS)
    assert found is not None and (found.SPLIT_K, found.ROWS) == (1, 224)


@pytest.mark.parametrize(
    ("rows", "act", "wanted"),
    [
        (4096, None, (64, 2, 1, 1)),
        (6144, None, (96, 2, 1, 2)),
        (28672, None, (224, 1, 2, 2)),
        (28672, "silu", (224, 1, 2, 2)),
    ],
)
def test_thread_blocks_for_more_tokens_have_about_the_same_rows(rows: int, act: Any, wanted: tuple[int, ...]) -> None:
    found = wgmma_gemm.configure(96, asked(rows, 4096, act), PROCESSORS)
    assert found is not None and wanted == (found.ROWS, found.SPLIT_K, found.GROUPS, found.M_TILES)


def test_more_tokens_are_left_to_others_where_thread_blocks_would_have_few_rows_or_compute_many_for_nothing() -> None:
    assert wgmma_gemm.configure(96, asked(2304, 9216), PROCESSORS) is None  # 40
    assert wgmma_gemm.configure(96, asked(5120, 14336), PROCESSORS) is None  # 80, for which 128 are computed
    assert wgmma_gemm.configure(96, asked(8192, 2048, "silu"), PROCESSORS) is None  # 32 of each half
    assert wgmma_gemm.configure(64, asked(2304, 9216), PROCESSORS) is not None


def test_layers_that_it_is_not_made_for_are_left_to_others() -> None:
    assert wgmma_gemm.configure(129, asked(4096, 4096), PROCESSORS) is None
    assert wgmma_gemm.configure(48, asked(4096, 4160), PROCESSORS) is None  # its halves are no whole units
    assert wgmma_gemm.configure(48, asked(8262, 2048), PROCESSORS) is not None
    assert wgmma_gemm.configure(48, asked(8261, 2048), PROCESSORS) is None  # outputs are written in pairs
    assert wgmma_gemm.configure(48, asked(64000, 4096), PROCESSORS) is None  # more rows than fit at once
    x = torch.randn(48, 4096).bfloat16()
    assert select.wgmma(x, FusedLinear(torch.randn(64, 4096).bfloat16())) is None  # no GPU


def test_a_layer_comes_to_it_with_its_norm_done(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, weight, gain = torch.randn(48, 128), torch.randn(512, 128), torch.randn(128)
    linear, made = FusedLinear(weight, norm=Norm(gain, None, 1e-5, centred=False), act="silu"), torch.zeros(48, 256)
    found, given = wgmma_gemm.configure(48, asked(4096, 4096), PROCESSORS), list[tuple[torch.Tensor, FusedLinear]]()

    def run(x: torch.Tensor, asked: FusedLinear, config: wgmma_gemm.KernelConfig) -> torch.Tensor:
        given.append((x, asked))
        return made

    monkeypatch.setattr(select, "serves", lambda x: True)
    monkeypatch.setattr(select, "by_triton", lambda operation, x: False)
    monkeypatch.setattr(select, "small_m", lambda x, asked: None)
    monkeypatch.setattr(select, "wgmma", lambda x, asked: None if asked.norm else found)
    monkeypatch.setattr(wgmma_gemm, "run", run)
    assert select.linear(x, linear) is made
    (normed, left), *_ = given
    assert torch.equal(normed, reference.rms_norm(x, gain, 1e-5)) and left.norm is None and left.act == "silu"


@pytest.mark.parametrize(
    ("tokens", "rows", "depth", "wanted"),
    [
        (1, 2048, 8192, True),  # mcar/1200m
        (8, 6144, 5120, True),  # cosmos/12b
        (1, 5120, 14336, True),
        (8, 4096, 14336, False),  # cosmos/4b
        (9, 4096, 14336, True),
        (8, 2304, 9216, False),  # wham/1.6b
        (9, 4096, 8320, True),  # just deeper than with 8 tokens others are faster
        (8, 4096, 8320, False),
        (9, 4096, 8256, False),  # an odd number of units, which split-K cannot halve: no tiles of so few rows
        (8, 28672, 5120, False),  # thread blocks would have too many rows
    ],
)
def test_few_tokens_are_left_to_others_where_these_are_faster(
    tokens: int, rows: int, depth: int, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "hopper", lambda device: True)
    monkeypatch.setattr(nvrtc, "aligned", lambda tensors: True)
    properties = SimpleNamespace(multi_processor_count=PROCESSORS)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    x = torch.empty(tokens, depth, device="meta", dtype=torch.bfloat16)
    assert (select.wgmma(x, asked(rows, depth)) is not None) == wanted
