"""Which products of few tokens one kernel makes, and how it cuts them up. What it computes: test_emulated_narrow."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from diagonal.engine.heads import Heads
from diagonal.engine.kernels import narrow, ops, plain, products
from diagonal.engine.product import Norm, Pending, Product
from diagonal.models.layers import RMSNorm, norm_linear, norm_linear_later, rope_1d

PROCESSORS = 132


def asked(rows: int, depth: int, normed: bool = False) -> Product:
    weight = torch.empty(rows, depth, device="meta", dtype=torch.bfloat16)
    return Product(weight, norm=Norm(weight[0], None, 1e-5, centred=False) if normed else None)


def made(tokens: int, product: Product) -> narrow.Cut:
    found = narrow.cut(tokens, product, PROCESSORS)
    assert found is not None
    return found


@pytest.mark.parametrize(("rows", "depth"), [(2560, 2048), (1024, 1024), (8262, 2048), (1792, 1792), (1536, 768)])
@pytest.mark.parametrize("tokens", [1, 8, 14, 16])
def test_warps_share_the_whole_depth_and_threads_make_all_outputs(rows: int, depth: int, tokens: int) -> None:
    found = made(tokens, asked(rows, depth))
    assert depth % (found.WARPS * narrow.CHUNK) == 0
    assert tokens <= found.HALVES * narrow.SIDE
    assert found.HALVES * narrow.SIDE * found.columns <= 32 * found.WARPS


def test_work_is_spread_over_all_multiprocessors() -> None:
    assert made(14, asked(2560, 2048)).TILES == 1  # 3 tiles of 8 rows each at most, instead of 2 of 16
    assert made(14, asked(2048, 2048)).TILES == 2  # one of 16 rows: as much as two of 8, and begun once
    assert made(14, asked(1024, 1024)).TILES == 1


def test_products_that_it_is_not_made_for_are_left_to_others() -> None:
    fits = asked(2048, 2048)
    assert narrow.cut(17, fits, PROCESSORS) is None
    assert narrow.cut(8, asked(2304, 2304), PROCESSORS) is not None
    assert narrow.cut(9, asked(2304, 2304), PROCESSORS) is None  # large, and not so few tokens
    assert narrow.cut(0, fits, PROCESSORS) is None
    assert narrow.cut(14, asked(2048, 8192), PROCESSORS) is None  # too deep
    assert narrow.cut(14, asked(2048, 2000), PROCESSORS) is None  # no whole chunks
    assert narrow.cut(14, asked(64, 64), PROCESSORS) is None  # too few threads
    assert narrow.cut(1, asked(2048, 4096, normed=True), PROCESSORS) is not None
    assert narrow.cut(14, asked(2048, 4096, normed=True), PROCESSORS) is None  # too few registers
    assert narrow.cut(14, replace(asked(2040, 1024), act="silu"), PROCESSORS) is None  # halves of no whole tiles


def test_only_bfloat16_on_a_gpu_is_made_by_it() -> None:
    x = torch.randn(3, 1024).bfloat16()
    product = Product(torch.randn(64, 1024).bfloat16())
    assert narrow.fitting(x, product) is None
    assert ops(x) is plain


@pytest.mark.parametrize("able", [True, False])
def test_products_are_made_by_it_where_it_fits(able: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x, product = torch.randn(3, 1024), Product(torch.randn(64, 1024))
    found, made_by_it = made(3, product), torch.zeros(3, 64)
    monkeypatch.setattr(products, "able", lambda x: able)
    monkeypatch.setattr(narrow, "fitting", lambda x, asked: found)
    monkeypatch.setattr(narrow, "run", lambda x, asked, cut: made_by_it)
    assert (products.product(x, product) is made_by_it) == able


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_a_product_is_added_onto_its_residual_where_kernels_run(
    fused: bool, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "able", lambda x: fused)
    x, weight, residual = torch.randn(2, 3, 8), torch.randn(5, 8), torch.randn(2, 3, 5)
    bias = torch.randn(5) if biased else None
    wanted = residual + torch.nn.functional.linear(x, weight, bias)
    found = products.product(x, Product(weight, bias, residual=residual))
    torch.testing.assert_close(found, wanted)
    assert (found is residual) == (fused and not biased)  # a bias would be rounded a second time


def test_a_product_that_is_made_later_is_the_same() -> None:
    torch.manual_seed(0)
    norm, linear, x = RMSNorm(64, 1e-5), torch.nn.Linear(64, 8 * 16, bias=False), torch.randn(2, 3, 64)
    slots, cache = torch.tensor([4, 0, 7]), torch.zeros(2, 2, 2, 10, 16)
    with torch.no_grad():
        later, now = norm_linear_later(norm, linear, x), norm_linear(norm, linear, x)
        assert isinstance(later, Pending) and torch.equal(later.made(), now)
        lazy, eager = (Heads(source, 2, 16, rope_1d(slots, 16, 10000.0)) for source in (later, now))
        assert lazy.heads == eager.heads == 4 and lazy.given is x
        assert all(torch.equal(one, other) for one, other in zip(lazy.split(), eager.split(), strict=True))
        found = plain.remember(lazy, cache[0], cache[1], slots)
        assert torch.equal(found, eager.split()[0]) and torch.equal(cache[0][:, :, slots], eager.split()[1])
