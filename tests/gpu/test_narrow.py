"""Products of few tokens in one kernel each, against float64 and against the kernels that they take the place of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal.engine.kernels import narrow, plain
from diagonal.engine.kernels.product import Norm, Product
from tests.gpu import BFLOAT16, poisoned

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
SHAPES = [(2560, 2048), (1024, 1024), (8192, 1024), (2048, 4096), (8262, 2048), (40, 512), (2304, 2304), (1000, 768)]
KINDS = ["plain", "rms", "layer", "affine", "silu", "gelu", "bias", "residual", "biased residual", "rms silu bias"]


def _random(*shape: int, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(*shape, device="cuda")).bfloat16()


def _product(kind: str, tokens: int, rows: int, depth: int) -> Product:
    weight, gain, shift = _random(rows, depth, scale=depth**-0.5), 1 + _random(depth, scale=0.3), _random(depth)
    norms: dict[str, Norm] = {
        "rms": Norm(gain, None, 1e-5, centred=False),
        "layer": Norm(None, None, 1e-5, centred=True),
        "affine": Norm(gain, shift, 1e-5, centred=True),
    }
    act: Any = "silu" if "silu" in kind else "gelu" if "gelu" in kind else None
    return Product(
        weight,
        _random(rows) if "bias" in kind else None,
        next((norm for name, norm in norms.items() if name in kind), None),
        act,
        _random(tokens, rows) if "residual" in kind else None,
    )


def _double(product: Product) -> Product:
    def up(part: Tensor | None) -> Tensor | None:
        return None if part is None else part.double()

    norm = product.norm and replace(product.norm, weight=up(product.norm.weight), bias=up(product.norm.bias))
    weight = product.weight_NK.double()
    return Product(weight, up(product.bias_N), norm, product.act, up(product.residual))


def _made(x: Tensor, product: Product) -> Tensor | None:
    """By the kernel, None where it is not for it; what it forgets to write is NaN."""
    found = narrow.fitting(x, product)
    residual = product.residual
    if found is None:
        return None
    with poisoned():
        return narrow.run(x, replace(product, residual=None if residual is None else residual.clone()), found)


@pytest.mark.parametrize("tokens", [1, 7, 8, 14, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_products_agree_with_float64(tokens: int, kind: str) -> None:
    torch.manual_seed(tokens)
    made = 0
    for rows, depth in SHAPES:
        product, x = _product(kind, tokens, rows, depth), _random(tokens, depth) + 0.5
        found = _made(x, product)
        if found is None:
            continue
        made += 1
        wanted = plain.product(x.double(), _double(product))
        assert found.shape == wanted.shape and found.dtype == torch.bfloat16
        # What a norm or an activation takes is rounded on the way.
        bound = BFLOAT16 * (4 if product.norm or product.act else 1)
        assert (found.double() - wanted).abs().max() <= bound * wanted.abs().max(), (rows, depth)
    assert made >= 3


def test_a_chain_of_products_gives_the_same_each_time_and_in_a_graph() -> None:
    """Kernels that begin early must not read what the one before has not written, nor write what it still reads."""
    torch.manual_seed(0)
    layers = [(_product("rms silu", 14, 8192, 2048), _product("plain", 14, 2048, 4096)) for _ in range(6)]
    start = _random(14, 2048)

    def chain(one: Any) -> Tensor:
        x = start.clone()
        for up, down in layers:
            x = one(one(x, up), replace(down, residual=x))
        return x

    def narrowed(x: Tensor, product: Product) -> Tensor:
        found = narrow.fitting(x, product)
        assert found is not None
        return narrow.run(x, product, found)

    first = chain(narrowed)
    assert all(torch.equal(first, chain(narrowed)) for _ in range(20))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain(narrowed)
    for _ in range(20):
        graph.replay()
        assert torch.equal(first, captured)
    usual = chain(plain.product)
    assert (first - usual).float().norm() < 0.01 * usual.float().norm()
