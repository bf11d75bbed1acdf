"""Products of few tokens in one kernel each, against float64 and against the kernels that they take the place of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from diagonal.engine.heads import Heads
from diagonal.engine.kernels import select
from diagonal.engine.kernels.cuda import small_m_gemm
from diagonal.engine.kernels.select import linear as make
from diagonal.engine.linear import DeferredLinear, FusedLinear
from diagonal.models.layers import rope_1d
from tests.gpu import BFLOAT16, poisoned
from tests.linears import check_linear, double, random, random_linear, usual

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
SHAPES = [(2560, 2048), (1024, 1024), (8192, 1024), (2048, 4096), (8262, 2048), (40, 512), (2304, 2304), (1000, 768)]
SHAPES += [(1792, 1792)]
Make = Callable[[Tensor, FusedLinear], Tensor]
KINDS = ["plain", "rms", "layer", "affine", "silu", "gelu", "bias", "residual", "biased residual", "rms silu bias"]


def _made(x: Tensor, linear: FusedLinear) -> Tensor | None:
    """By the kernel, None where it is not for it; what it forgets to write is NaN."""
    found = select.small_m(x, linear)
    residual = linear.residual
    if found is None:
        return None
    with poisoned():
        return small_m_gemm.run(x, replace(linear, residual=None if residual is None else residual.clone()), found)


@pytest.mark.parametrize("tokens", [1, 7, 8, 14, 16])
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
    crowded = tokens > 14 and kind in ("layer", "affine")  # these norms need two rows of 16
    assert made == 0 if crowded else made >= 3


@pytest.mark.parametrize(("batch", "inputs"), [(1, 1), (1, 14), (2, 7), (1, 16)])
@pytest.mark.parametrize(
    ("width", "heads", "kv_heads", "head"), [(2048, 32, 4, 64), (1024, 16, 4, 64), (512, 3, 1, 16), (1792, 14, 14, 128)]
)
@pytest.mark.parametrize("kind", ["rms", "affine bias"])
def test_heads_are_made_turned_and_remembered(
    batch: int, inputs: int, width: int, heads: int, kv_heads: int, head: int, kind: str
) -> None:
    torch.manual_seed(inputs)
    inputs = inputs if kind == "rms" else min(inputs, 14)
    length, x = 50, random(batch, inputs, width)
    linear = random_linear(kind, inputs, (heads + 2 * kv_heads) * head, width)
    slots = torch.randperm(length, device="cuda")[:inputs]
    rope = rope_1d(slots, head, 10000.0) if kind == "rms" else None
    asked = Heads(DeferredLinear(x, linear, make), kv_heads, head, rope)
    caches = random(2, batch, kv_heads, length, head)
    found, others = caches.clone(), caches.clone()
    config = select.small_m_heads(asked, found[0], found[1], slots)
    assert config is not None and head == config.HEAD
    with poisoned(), torch.no_grad(), select.recorded() as chosen:
        q = select.write_heads(asked, found[0], found[1], slots)
    assert set(chosen.values()) == {"CUDA small-M GEMM"}
    made = replace(asked, source=usual(x, linear))
    with torch.no_grad(), select.recorded() as chosen:
        wanted = select.write_heads(made, others[0], others[1], slots)
    assert set(chosen.values()) == {"Triton"}
    for one, other in ((q, wanted), (found, others)):
        assert (one - other).float().abs().max() <= 4 * BFLOAT16 * other.float().abs().max()
    left = [slot for slot in range(length) if slot not in slots.tolist()]
    assert torch.equal(found[:, :, :, left], caches[:, :, :, left])


@pytest.mark.parametrize(("batch", "inputs"), [(4, 2), (3, 5), (8, 2), (16, 1)])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("permuted", [False, True])
def test_samples_have_slots_and_cache_rows_of_their_own(batch: int, inputs: int, several: bool, permuted: bool) -> None:
    torch.manual_seed(inputs)
    length, rows, x = 50, batch + 3 if permuted else batch, random(batch, inputs, 384)
    linear = random_linear("rms", batch * inputs, 10 * 64, 384)
    orders = torch.stack([torch.randperm(length, device="cuda")[:inputs] for _ in range(batch)])
    slots = orders if several else orders[0]
    own = torch.randperm(rows, device="cuda")[:batch] if permuted else None
    asked = Heads(DeferredLinear(x, linear, make), 2, 64, rope_1d(slots, 64, 10000.0))
    caches = random(2, rows, 2, length, 64)
    found, others = caches.clone(), caches.clone()
    with poisoned(), torch.no_grad(), select.recorded() as chosen:
        q = select.write_heads(asked, found[0], found[1], slots, own)
    assert set(chosen.values()) == {"CUDA small-M GEMM"}
    made = replace(asked, source=usual(x, linear))
    with torch.no_grad(), select.recorded() as chosen:
        wanted = select.write_heads(made, others[0], others[1], slots, own)
    assert set(chosen.values()) == {"Triton"}
    for one, other in ((q, wanted), (found, others)):
        assert (one - other).float().abs().max() <= 4 * BFLOAT16 * other.float().abs().max()
    written = torch.zeros(caches.shape[1:4], dtype=torch.bool, device="cuda")
    at = torch.arange(batch, device="cuda") if own is None else own
    written[at[:, None], :, slots] = True
    assert torch.equal(found[:, ~written], caches[:, ~written])


def test_heads_that_it_is_not_made_for_are_left_to_others() -> None:
    x, linear = random(1, 3, 1024), random_linear("rms", 3, 24 * 64, 1024)
    slots, cache = torch.arange(3, device="cuda"), random(1, 4, 50, 64)
    rope = rope_1d(slots, 64, 10000.0)
    asked = Heads(DeferredLinear(x, linear, make), 4, 64, rope)
    assert select.small_m_heads(asked, cache, cache, slots) is not None
    short = replace(asked, rope=(rope[0][:2], rope[1]))
    made = replace(asked, source=usual(x, linear))
    for other in (short, made):
        assert select.small_m_heads(other, cache, cache, slots) is None
    assert select.small_m_heads(asked, cache.float(), cache, slots) is None
    assert select.small_m_heads(asked, cache[:, :2], cache, slots) is None
    assert select.small_m_heads(asked, cache, cache, slots.int()) is None


def check_chain(tokens: int, make: Make) -> None:
    """Kernels that begin early must not read what the one before has not written, nor write what it still reads."""
    torch.manual_seed(0)
    ups = [random_linear("rms silu", tokens, 8192, 2048) for _ in range(6)]
    downs = [random_linear("plain", tokens, 2048, 4096) for _ in range(6)]
    start = random(tokens, 2048)

    def chain(one: Make, x: Tensor) -> Tensor:
        for up, down in zip(ups, downs, strict=True):
            x = one(one(x, up), replace(down, residual=x))
        return x

    with torch.no_grad():
        first = chain(make, start.clone())
        assert all(torch.equal(first, chain(make, start.clone())) for _ in range(20))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = chain(make, start.clone())
        for _ in range(20):
            graph.replay()
            assert torch.equal(first, captured)
    exact = chain(lambda x, linear: usual(x, double(linear)), start.double())
    others = chain(usual, start.clone())
    assert (first - exact).norm() < 1.15 * (others - exact).norm() < 0.02 * exact.norm()


def test_a_chain_of_products_gives_the_same_each_time_and_in_a_graph() -> None:
    def narrowed(x: Tensor, linear: FusedLinear) -> Tensor:
        assert select.small_m(x, linear) is not None
        return make(x, linear)

    check_chain(14, narrowed)
