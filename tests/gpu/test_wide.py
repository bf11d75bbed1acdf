"""Products of many tokens in one kernel each, against float64 and against the kernels that they take the place of."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from diagonal.engine.kernels import cuda, wide
from diagonal.engine.kernels.products import product as make
from diagonal.engine.product import Product
from tests.gpu import poisoned
from tests.gpu.test_narrow import check_chain
from tests.products import check_product, random, random_product

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == cuda.HOPPER
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="no Hopper GPU")]
SHAPES = [(4096, 4096), (6144, 5120), (2048, 8192), (2304, 2304), (1026, 1024), (1008, 768), (9216, 64)]
SHAPES += [(28672, 64), (24576, 64), (16384, 128), (12288, 192)]
KINDS = ["plain", "silu", "gelu", "bias", "residual", "biased residual", "biased silu", "biased gelu"]


def _made(x: Tensor, product: Product) -> Tensor | None:
    """By the kernel, None where it is not for it; what it forgets to write is NaN."""
    found, residual = wide.fitting(x, product), product.residual
    if found is None:
        return None
    with poisoned():
        return wide.run(x, replace(product, residual=None if residual is None else residual.clone()), found)


@pytest.mark.parametrize("tokens", [9, 16, 31, 48, 64, 65, 80, 96, 120, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_products_agree_with_float64(tokens: int, kind: str) -> None:
    torch.manual_seed(tokens)
    made = 0
    for rows, depth in SHAPES:
        product, x = random_product(kind, tokens, rows, depth), random(tokens, depth) + 0.5
        found = _made(x, product)
        if found is None:
            continue
        made += 1
        check_product(found, x, product)
    assert made >= 3


def test_numbers_beyond_the_last_token_change_nothing() -> None:
    """There the tensor cores read whatever lies in shared memory: here what an earlier kernel left, which is NaN."""
    torch.manual_seed(0)
    product = random_product("residual", 33, 4096, 4096)
    x = random(33, 4096)
    first = _made(x, product)
    for _ in range(4):
        _made(torch.full((128, 4096), torch.nan, device="cuda").bfloat16(), replace(product, residual=None))
        again = _made(x, product)
        assert first is not None and again is not None and torch.equal(first, again)


def test_tokens_of_several_videos_are_tokens() -> None:
    torch.manual_seed(0)
    product, x = random_product("silu", 48, 4096, 1024), random(2, 24, 1024)
    found, flat = _made(x, product), _made(x.view(48, 1024), product)
    assert found is not None and flat is not None
    assert found.shape == (2, 24, 2048) and torch.equal(found.view(48, 2048), flat)


def test_what_it_is_not_made_for_is_left_to_others() -> None:
    x, product = random(48, 1024), random_product("plain", 48, 512, 1024)
    assert wide.fitting(x, product) is not None
    assert wide.fitting(x[:8], product) is not None
    deep = random_product("plain", 8, 4096, 8256)
    assert wide.fitting(random(9, 8256), deep) is not None and wide.fitting(random(8, 8256), deep) is None
    assert wide.fitting(random(129, 1024), product) is None
    large = random_product("plain", 17, 28672, 128)
    assert wide.fitting(random(17, 128), large) is not None
    assert wide.fitting(random(16, 128), large) is None
    assert wide.fitting(x.float(), product) is None
    assert wide.fitting(random(1024, 48).t(), product) is None
    assert wide.fitting(x, replace(product, weight_NK=product.weight_NK.float())) is None
    assert wide.fitting(x, replace(product, act="gelu", residual=random(48, 512))) is None
    assert wide.fitting(x, replace(product, norm=random_product("rms", 48, 512, 1024).norm)) is None


@pytest.mark.parametrize("kind", ["biased gelu", "biased silu", "biased residual"])
def test_prompts_are_made_by_others(kind: str) -> None:
    torch.manual_seed(0)
    product, x = random_product(kind, 600, 1024, 256), random(2, 300, 256)
    assert wide.fitting(x, product) is None
    if product.residual is not None:
        product = replace(product, residual=product.residual.view(2, 300, -1))
    kept = product.residual if product.residual is None else product.residual.clone()
    with torch.inference_mode():
        found = make(x, product)
    check_product(found, x, replace(product, residual=kept))


def test_a_chain_of_products_gives_the_same_each_time_and_in_a_graph() -> None:
    def widened(x: Tensor, product: Product) -> Tensor:
        assert wide.fitting(x, replace(product, norm=None)) is not None
        return make(x, product)

    check_chain(48, widened)
