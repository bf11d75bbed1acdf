"""Which products of many tokens one kernel makes, and how it cuts them up. What it computes: test_emulated_wide."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diagonal.engine.kernels import cuda, narrow, plain, products, wide
from diagonal.engine.product import Norm, Product

PROCESSORS = 132
SHAPES = [(28672, 4096), (4096, 4096), (6144, 5120), (5120, 14336), (2048, 8192), (2304, 9216), (512, 128)]


def asked(rows: int, depth: int, act: Any = None) -> Product:
    return Product(torch.empty(rows, depth, device="meta", dtype=torch.bfloat16), act=act)


@pytest.mark.parametrize(("rows", "depth"), SHAPES)
@pytest.mark.parametrize("act", [None, "silu", "gelu"])
@pytest.mark.parametrize("tokens", [9, 24, 48, 64, 65, 96])
def test_programs_have_all_rows_and_all_columns_and_fit(rows: int, depth: int, act: Any, tokens: int) -> None:
    found = wide.cut(tokens, asked(rows, depth, act), PROCESSORS)
    if found is None:  # few rows for each program, and much of x; or few programs
        assert rows < 8192
        return
    assert tokens <= found.TOKENS <= wide.MANY and (found.file == "wider.cu" or tokens <= wide.TOKENS)
    shared = found.SPLIT == 2 and not found.BLOCKS
    assert found.ROWS % (2 * wide.SIDE if shared or act == "silu" else wide.SIDE) == 0
    programs = -(-rows // found.ROWS) * found.SPLIT
    assert programs <= PROCESSORS and found.ROWS <= wide.ROWS
    assert depth % (wide.DEEP * found.SPAN * found.SPLIT) == 0
    assert found.X_STAGES >= 1 and found.W_STAGES >= 1 and found.shared <= cuda.SHARED
    # The tensor cores read 64 tokens, or 64 rows, whatever their number: what lies behind the last must be there.
    behind = (found.X_STAGES * found.TOKENS if found.BLOCKS else found.W_STAGES * found.ROWS) * found.unit
    assert behind >= 2 * wide.DEEP * wide.TOKENS
    sums = found.TOKENS if found.BLOCKS else found.ROWS
    assert found.constants["SUM_0"] == f'"%{sums // 2}"'
    assert tokens <= wide.TOKENS or programs >= 0.95 * PROCESSORS
    assert not found.BLOCKS or found.ROWS <= 64 * found.GROUPS * found.BLOCKS


@pytest.mark.parametrize(
    ("rows", "depth", "act"),
    [(6144, 4096, None), (4096, 4096, None), (28672, 4096, "silu"), (4096, 14336, None)],
)
@pytest.mark.parametrize("tokens", range(16, 129, 8))
def test_all_products_of_the_smaller_cosmos_are_made_by_it(rows: int, depth: int, act: Any, tokens: int) -> None:
    assert wide.cut(tokens, asked(rows, depth, act), PROCESSORS) is not None


def test_few_tokens_are_columns_where_that_is_less_to_compute() -> None:
    for rows, wanted in ((4096, {16: True, 48: True, 64: False}), (5120, {16: True, 32: True, 48: False})):
        for tokens, columns in wanted.items():
            found = wide.cut(tokens, asked(rows, 4096), PROCESSORS)
            assert found is not None and (found.file == "wider.cu") == columns
            assert found.ROWS * tokens <= found.computed <= 64 * (found.ROWS + 15)


def test_few_rows_are_shared_by_two_programs() -> None:
    found = wide.cut(48, asked(4096, 4096), PROCESSORS)
    assert found is not None and (found.SPLIT, found.ROWS) == (2, 64)
    found = wide.cut(48, asked(28672, 4096, "silu"), PROCESSORS)
    assert found is not None and (found.SPLIT, found.ROWS) == (1, 224)


@pytest.mark.parametrize(
    ("rows", "act", "wanted"),
    [
        (4096, None, (64, 2, 1, 1)),
        (6144, None, (96, 2, 1, 2)),
        (28672, None, (224, 1, 2, 2)),
        (28672, "silu", (224, 1, 2, 2)),
    ],
)
def test_programs_for_more_tokens_have_about_the_same_rows(rows: int, act: Any, wanted: tuple[int, ...]) -> None:
    found = wide.cut(96, asked(rows, 4096, act), PROCESSORS)
    assert found is not None and wanted == (found.ROWS, found.SPLIT, found.GROUPS, found.BLOCKS)


def test_more_tokens_are_left_to_others_where_programs_would_have_few_rows_or_compute_many_for_nothing() -> None:
    assert wide.cut(96, asked(2304, 9216), PROCESSORS) is None  # 40
    assert wide.cut(96, asked(5120, 14336), PROCESSORS) is None  # 80, for which 128 are computed
    assert wide.cut(96, asked(8192, 2048, "silu"), PROCESSORS) is None  # 32 of each half
    assert wide.cut(64, asked(2304, 9216), PROCESSORS) is not None


def test_products_that_it_is_not_made_for_are_left_to_others() -> None:
    assert wide.cut(129, asked(4096, 4096), PROCESSORS) is None
    assert wide.cut(48, asked(4096, 4160), PROCESSORS) is None  # its halves are no whole units
    assert wide.cut(48, asked(8262, 2048), PROCESSORS) is not None
    assert wide.cut(48, asked(8261, 2048), PROCESSORS) is None  # outputs are written in pairs
    assert wide.cut(48, asked(64000, 4096), PROCESSORS) is None  # more rows than fit at once
    x = torch.randn(48, 4096).bfloat16()
    assert wide.fitting(x, Product(torch.randn(64, 4096).bfloat16())) is None  # no GPU


def test_a_product_comes_to_it_with_its_norm_done(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, weight, gain = torch.randn(48, 128), torch.randn(512, 128), torch.randn(128)
    product, made = Product(weight, norm=Norm(gain, None, 1e-5, centred=False), act="silu"), torch.zeros(48, 256)
    found, given = wide.cut(48, asked(4096, 4096), PROCESSORS), list[tuple[torch.Tensor, Product]]()

    def run(x: torch.Tensor, asked: Product, cut: wide.Cut) -> torch.Tensor:
        given.append((x, asked))
        return made

    monkeypatch.setattr(products, "able", lambda x: True)
    monkeypatch.setattr(products, "ops", lambda x: plain)
    monkeypatch.setattr(narrow, "fitting", lambda x, asked: None)
    monkeypatch.setattr(wide, "fitting", lambda x, asked: None if asked.norm else found)
    monkeypatch.setattr(wide, "run", run)
    assert products.product(x, product) is made
    (normed, left), *_ = given
    assert torch.equal(normed, plain.rms_norm(x, gain, 1e-5)) and left.norm is None and left.act == "silu"


@pytest.mark.parametrize(
    ("tokens", "rows", "depth", "wanted"),
    [
        (1, 2048, 8192, True),  # mcar/1200m
        (8, 6144, 5120, True),  # cosmos/12b
        (1, 5120, 14336, True),
        (8, 4096, 14336, False),  # cosmos/4b
        (9, 4096, 14336, True),
        (8, 2304, 9216, False),  # wham/1.6b
        (8, 28672, 5120, False),  # programs would have too many rows
    ],
)
def test_few_tokens_are_left_to_others_where_these_are_faster(
    tokens: int, rows: int, depth: int, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "hopper", lambda device: True)
    monkeypatch.setattr(cuda, "suits", lambda parts: True)
    properties = SimpleNamespace(multi_processor_count=PROCESSORS)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    x = torch.empty(tokens, depth, device="meta", dtype=torch.bfloat16)
    assert (wide.fitting(x, asked(rows, depth)) is not None) == wanted
