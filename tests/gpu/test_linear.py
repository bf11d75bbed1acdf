"""Products with few rows: against float64, whole and split, for shapes that do not fill their tiles."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from diagonal.engine.kernels import block
from diagonal.engine.kernels.tiles import Tiles
from tests.gpu import BFLOAT16, DEVICE, RUNNABLE, poisoned

pytest.importorskip("triton")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not RUNNABLE, reason="no CUDA device, no TRITON_INTERPRET=1")]

EPS = 1e-5
KINDS = ["norm_linear", "norm_gate_up", "linear_add"]
TILES = [
    Tiles(16, 16, 32, splits=1, stages=3, warps=4),
    Tiles(32, 32, 64, splits=2, stages=3, warps=4),
    Tiles(16, 64, 16, splits=4, stages=4, warps=4),
    Tiles(64, 16, 32, splits=3, stages=3, warps=8),
]


def _inputs(rows: int, cols: int, depth: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, norm weight, weight and residual. x is of bfloat16 numbers and the norm of powers of two: products of the two
    need no rounding, so that float32 results show what the kernel does and not what bfloat16 can hold."""
    x = torch.randn(rows, depth).mul(3).bfloat16().to(dtype)
    norm = 2.0 ** torch.randint(-2, 3, (depth,)).to(dtype)
    weight = (torch.randn(cols, depth) / depth**0.5).bfloat16()
    residual = torch.randn(rows, cols).to(dtype)
    return x, norm, weight, residual


def _exact(kind: str, x: Tensor, norm: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    x, norm, weight, residual = (tensor.double() for tensor in (x, norm, weight, residual))
    if kind == "linear_add":
        return x @ weight.T + residual
    product = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * norm @ weight.T
    if kind == "norm_linear":
        return product
    gate, up = product.chunk(2, dim=-1)
    return gate * gate.sigmoid() * up


def _found(kind: str, x: Tensor, norm: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    from diagonal.engine.kernels import linear

    x, norm, weight, residual = (tensor.to(DEVICE) for tensor in (x, norm, weight, residual))
    with poisoned():
        if kind == "norm_linear":
            return linear.norm_linear(x, norm, EPS, weight).cpu()
        if kind == "norm_gate_up":
            return linear.norm_gate_up(x, norm, EPS, weight).cpu()
        return linear.linear_add(x, weight, residual).cpu()


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tiles", [None, *TILES], ids=str)
@pytest.mark.parametrize("shape", [(1, 40, 96), (17, 66, 80), (33, 128, 160)], ids=str)
def test_float32_results_are_exact(
    kind: str, tiles: Tiles | None, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from diagonal.engine.kernels import linear

    torch.manual_seed(sum(shape))
    if tiles is not None:
        monkeypatch.setattr(linear, "_tiles", lambda product, device: tiles)
    inputs = _inputs(*shape, torch.float32)
    found = _found(kind, *inputs)
    assert found.dtype == torch.float32
    assert _error(found, _exact(kind, *inputs)) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 16, 120])
def test_bfloat16_results_are_rounded_once(kind: str, rows: int) -> None:
    torch.manual_seed(rows)
    inputs = _inputs(rows, 96, 256, torch.bfloat16)
    found = _found(kind, *inputs)
    assert found.dtype == torch.bfloat16
    assert _error(found, _exact(kind, *inputs)) < BFLOAT16


@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_form_agrees(kind: str) -> None:
    """With a norm weight as models have it: the kernel rounds x * g, the plain form x * r and its product with g."""
    torch.manual_seed(5)
    x, _, weight, residual = _inputs(7, 64, 192, torch.bfloat16)
    norm = (1 + 0.3 * torch.randn(192)).bfloat16()
    found = _found(kind, x, norm, weight, residual)
    if kind == "linear_add":
        plain = block.linear_add(x, weight, residual)
    elif kind == "norm_linear":
        plain = block.norm_linear(x, norm, EPS, weight)
    else:
        plain = block.norm_gate_up(x, norm, EPS, weight)
    assert found.dtype == plain.dtype
    assert _error(found, plain.double()) < 4 * BFLOAT16


def test_a_split_depth_gives_the_same_bits_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from diagonal.engine.kernels import linear

    torch.manual_seed(6)
    monkeypatch.setattr(linear, "_tiles", lambda product, device: TILES[2])
    inputs = _inputs(3, 64, 256, torch.float32)
    assert torch.equal(_found("norm_linear", *inputs), _found("norm_linear", *inputs))


def test_a_float32_residual_stays_float32() -> None:
    torch.manual_seed(7)
    x, norm, weight, _ = _inputs(2, 32, 64, torch.bfloat16)
    residual = torch.randn(2, 32)
    found = _found("linear_add", x, norm, weight, residual)
    assert found.dtype == torch.float32
    assert _error(found, _exact("linear_add", x, norm, weight, residual)) < 1e-5


def test_what_the_kernels_cannot_read_is_refused() -> None:
    x, norm, weight, residual = _inputs(2, 32, 64, torch.bfloat16)
    with pytest.raises(ValueError, match="float32; these kernels take bfloat16"):
        _found("norm_linear", x, norm, weight.float(), residual)
    with pytest.raises(ValueError, match=r"call \.contiguous\(\)"):
        _found("linear_add", torch.randn(64, 2).bfloat16().T, norm, weight, residual)
    with pytest.raises(ValueError, match="the last equal"):
        _found("linear_add", x[:, :32].contiguous(), norm, weight, residual)
    with pytest.raises(ValueError, match=r"the product has \(2, 32\)"):
        _found("linear_add", x, norm, weight, residual[:, :16].contiguous())
    with pytest.raises(ValueError, match="norm's weight"):
        _found("norm_linear", x, norm[:32], weight, residual)
    with pytest.raises(ValueError, match="even number"):
        _found("norm_gate_up", x, norm, weight[:31], residual)
