"""Products of many tokens in one kernel each, against float64 and against the kernels that they take the place of."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from diagonal.engine.kernels import select
from diagonal.engine.kernels.cuda import nvrtc, wgmma_gemm
from diagonal.engine.kernels.select import linear as make
from diagonal.engine.linear import FusedLinear
from tests.gpu import poisoned
from tests.gpu.test_small_m_gemm import check_chain
from tests.linears import check_linear, random, random_linear

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == nvrtc.HOPPER
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="no Hopper GPU")]
SHAPES = [(4096, 4096), (6144, 5120), (2048, 8192), (2304, 2304), (1026, 1024), (1008, 768), (9216, 64)]
SHAPES += [(28672, 64), (24576, 64), (16384, 128), (12288, 192)]
KINDS = ["plain", "silu", "gelu", "bias", "residual", "biased residual", "biased silu", "biased gelu"]


def _made(x: Tensor, linear: FusedLinear) -> Tensor | None:
    """By the kernel, None where it is not for it; what it forgets to write is NaN."""
    found, residual = select.wgmma(x, linear), linear.residual
    if found is None:
        return None
    with poisoned():
        return wgmma_gemm.run(x, replace(linear, residual=None if residual is None else residual.clone()), found)


@pytest.mark.parametrize("tokens", [9, 16, 31, 48, 64, 65, 80, 96, 120, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_products_agree_with_float64(tokens: int, kind: str) -> None:
    torch.manual_seed(tokens)
    made = 0
    for rows, depth in SHAPES:
        linear, x = random_linear(kind, tokens, rows, depth), random(tokens, depth) + 0.5
        found = _made(x, linear)
        if found is None:
            continue
        made += 1
        check_linear(found, x, linear)
    assert made >= 3


def test_numbers_beyond_the_last_token_change_nothing() -> None:
    """There the tensor cores read whatever lies in shared memory: here what an earlier kernel left, which is NaN."""
    torch.manual_seed(0)
    linear = random_linear("residual", 33, 4096, 4096)
    x = random(33, 4096)
    first = _made(x, linear)
    for _ in range(4):
        _made(torch.full((128, 4096), torch.nan, device="cuda").bfloat16(), replace(linear, residual=None))
        again = _made(x, linear)
        assert first is not None and again is not None and torch.equal(first, again)


def test_tokens_of_several_videos_are_tokens() -> None:
    torch.manual_seed(0)
    linear, x = random_linear("silu", 48, 4096, 1024), random(2, 24, 1024)
    found, flat = _made(x, linear), _made(x.view(48, 1024), linear)
    assert found is not None and flat is not None
    assert found.shape == (2, 24, 2048) and torch.equal(found.view(48, 2048), flat)


def test_what_it_is_not_made_for_is_left_to_others() -> None:
    x, linear = random(48, 1024), random_linear("plain", 48, 512, 1024)
    assert select.wgmma(x, linear) is not None
    assert select.wgmma(x[:8], linear) is not None
    deep = random_linear("plain", 8, 4096, 8320)
    assert select.wgmma(random(9, 8320), deep) is not None and select.wgmma(random(8, 8320), deep) is None
    odd = random_linear("plain", 9, 4096, 8256)  # 129 units of 64 columns, which split-K cannot halve
    assert select.wgmma(random(9, 8256), odd) is None
    assert select.wgmma(random(129, 1024), linear) is None
    large = random_linear("plain", 17, 28672, 128)
    assert select.wgmma(random(17, 128), large) is not None
    assert select.wgmma(random(16, 128), large) is None
    assert select.wgmma(x.float(), linear) is None
    assert select.wgmma(random(1024, 48).t(), linear) is None
    assert select.wgmma(x, replace(linear, weight_NK=linear.weight_NK.float())) is None
    assert select.wgmma(x, replace(linear, act="gelu", residual=random(48, 512))) is None
    assert select.wgmma(x, replace(linear, norm=random_linear("rms", 48, 512, 1024).norm)) is None


@pytest.mark.parametrize("kind", ["biased gelu", "biased silu", "biased residual"])
def test_prompts_are_made_by_others(kind: str) -> None:
    torch.manual_seed(0)
    linear, x = random_linear(kind, 600, 1024, 256), random(2, 300, 256)
    assert select.wgmma(x, linear) is None
    if linear.residual is not None:
        linear = replace(linear, residual=linear.residual.view(2, 300, -1))
    kept = linear.residual if linear.residual is None else linear.residual.clone()
    with torch.inference_mode():
        found = make(x, linear)
    check_linear(found, x, replace(linear, residual=kept))


def test_a_chain_of_products_gives_the_same_each_time_and_in_a_graph() -> None:
    def widened(x: Tensor, linear: FusedLinear) -> Tensor:
        assert select.wgmma(x, replace(linear, norm=None)) is not None
        return make(x, linear)

    check_chain(48, widened)
