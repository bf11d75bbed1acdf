"""Which linear layers the small-M GEMM serves, and how it tiles them. What it computes: test_emulated_small_m_gemm."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from diagonal.engine.heads import Heads
from diagonal.engine.kernels import reference, select
from diagonal.engine.kernels.cuda import small_m_gemm
from diagonal.engine.linear import DeferredLinear, FusedLinear, Norm
from diagonal.models.layers import RMSNorm, norm_linear, norm_linear_deferred, rope_1d

PROCESSORS = 132


def asked(rows: int, depth: int, normed: bool = False) -> FusedLinear:
    weight = torch.empty(rows, depth, device="meta", dtype=torch.bfloat16)
    return FusedLinear(weight, norm=Norm(weight[0], None, 1e-5, centred=False) if normed else None)


def made(tokens: int, linear: FusedLinear) -> small_m_gemm.KernelConfig:
    found = small_m_gemm.configure(tokens, linear, PROCESSORS)
    assert found is not None
    return found


@pytest.mark.parametrize(("rows", "depth"), [(2560, 2048), (1024, 1024), (8262, 2048), (1792, 1792), (1536, 768)])
@pytest.mark.parametrize("tokens", [1, 8, 14, 16])
def test_warps_share_the_whole_depth_and_threads_make_all_outputs(rows: int, depth: int, tokens: int) -> None:
    found = made(tokens, asked(rows, depth))
    assert depth % (found.WARPS * small_m_gemm.CHUNK) == 0
    assert tokens <= found.HALVES * small_m_gemm.SIDE
    assert found.HALVES * small_m_gemm.SIDE * found.columns <= 32 * found.WARPS


def test_work_is_spread_over_all_multiprocessors() -> None:
    assert made(14, asked(2560, 2048)).TILES == 1  # 3 tiles of 8 rows each at most, instead of 2 of 16
    assert made(14, asked(2048, 2048)).TILES == 2  # one of 16 rows: as much as two of 8, and begun once
    assert made(14, asked(1024, 1024)).TILES == 1


def test_layers_that_it_is_not_made_for_are_left_to_others() -> None:
    fits = asked(2048, 2048)
    assert small_m_gemm.configure(17, fits, PROCESSORS) is None
    assert small_m_gemm.configure(8, asked(2304, 2304), PROCESSORS) is not None
    assert small_m_gemm.configure(9, asked(2304, 2304), PROCESSORS) is None  # large, and not so few tokens
    assert small_m_gemm.configure(0, fits, PROCESSORS) is None
    assert small_m_gemm.configure(14, asked(2048, 8192), PROCESSORS) is None  # too deep
    assert small_m_gemm.configure(14, asked(2048, 2000), PROCESSORS) is None  # no whole chunks
    assert small_m_gemm.configure(14, asked(64, 64), PROCESSORS) is None  # too few threads
    assert small_m_gemm.configure(1, asked(2048, 4096, normed=True), PROCESSORS) is not None
    assert small_m_gemm.configure(14, asked(2048, 4096, normed=True), PROCESSORS) is None  # too few registers
    assert (
        small_m_gemm.configure(14, replace(asked(2040, 1024), act="silu"), PROCESSORS) is None
    )  # halves of no whole tiles


def test_only_bfloat16_on_a_gpu_is_made_by_it() -> None:
    x = torch.randn(3, 1024).bfloat16()
    linear = FusedLinear(torch.randn(64, 1024).bfloat16())
    assert select.small_m(x, linear) is None


@pytest.mark.parametrize("able", [True, False])
def test_layers_are_made_by_it_where_it_fits(able: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x, linear = torch.randn(3, 1024), FusedLinear(torch.randn(64, 1024))
    found, made_by_it = made(3, linear), torch.zeros(3, 64)
    monkeypatch.setattr(select, "serves", lambda x: able)
    monkeypatch.setattr(select, "small_m", lambda x, asked: found)
    monkeypatch.setattr(small_m_gemm, "run", lambda x, asked, config: made_by_it)
    assert (select.linear(x, linear) is made_by_it) == able


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_a_layer_is_added_onto_its_residual_where_kernels_run(
    fused: bool, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "serves", lambda x: fused)
    x, weight, residual = torch.randn(2, 3, 8), torch.randn(5, 8), torch.randn(2, 3, 5)
    bias = torch.randn(5) if biased else None
    wanted = residual + torch.nn.functional.linear(x, weight, bias)
    found = select.linear(x, FusedLinear(weight, bias, residual=residual))
    torch.testing.assert_close(found, wanted)
    assert (found is residual) == (fused and not biased)  # a bias would be rounded a second time


def test_a_deferred_layer_is_the_same() -> None:
    torch.manual_seed(0)
    norm, linear, x = RMSNorm(64, 1e-5), torch.nn.Linear(64, 8 * 16, bias=False), torch.randn(2, 3, 64)
    slots, cache = torch.tensor([4, 0, 7]), torch.zeros(2, 2, 2, 10, 16)
    with torch.no_grad():
        later, now = norm_linear_deferred(norm, linear, x), norm_linear(norm, linear, x)
        assert isinstance(later, DeferredLinear) and torch.equal(later.result(), now)
        lazy, eager = (Heads(source, 2, 16, rope_1d(slots, 16, 10000.0)) for source in (later, now))
        assert lazy.heads == eager.heads == 4 and lazy.given is x
        assert all(torch.equal(one, other) for one, other in zip(lazy.split(), eager.split(), strict=True))
        found = reference.write_heads(lazy, cache[0], cache[1], slots)
        assert torch.equal(found, eager.split()[0]) and torch.equal(cache[0][:, :, slots], eager.split()[1])
