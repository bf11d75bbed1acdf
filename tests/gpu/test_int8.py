"""Products with int8 weights against float64: few rows and many columns, odd sizes, every form of the kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal.catalog.names import find
from diagonal.checkpoints import int8_rows
from diagonal.checkpoints.quantize import quantize
from diagonal.engine.kernels import reference, select, tuning
from tests.gpu import BFLOAT16, DEVICE, RUNNABLE, logits_errors, poisoned

pytest.importorskip("triton")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not RUNNABLE, reason="no CUDA device, no TRITON_INTERPRET=1")]

# Rows, columns, depth. A whole number of tiles or not; on a GPU also the sizes of real models.
SMALL = [(1, 16, 512), (3, 40, 64), (16, 33, 515), (7, 70, 1030)]
LARGE = [(12, 2048, 2048), (12, 6144, 4096), (12, 8262, 1024), (16, 28672, 4096), (8, 4096, 14336), (16, 64000, 4096)]
SHAPES = SMALL + (LARGE if DEVICE == "cuda" else [])


def _kernel() -> Any:
    from diagonal.engine.kernels.triton import int8_gemm

    return int8_gemm


def _case(rows: int, cols: int, depth: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    torch.manual_seed(rows + cols + depth)
    x = torch.randn(rows, depth, device=DEVICE).to(dtype)
    weight, scale = int8_rows(torch.randn(cols, depth, device=DEVICE) * depth**-0.5)
    bias, residual = (torch.randn(*shape, device=DEVICE).to(dtype) for shape in ((cols,), (rows, cols)))
    return x, weight, scale, bias, residual


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("more", [(False, False), (True, False), (False, True), (True, True)], ids=str)
def test_products_agree_with_float64(shape: tuple[int, int, int], more: tuple[bool, bool]) -> None:
    x, weight, scale, bias, residual = _case(*shape, torch.bfloat16)
    added = [part if given else None for part, given in zip((bias, residual), more, strict=True)]
    with poisoned():
        found = _kernel().linear(x, weight, scale, *added)
    exact = (x.double() @ weight.double().T) * scale.double()
    for part in added:
        exact = exact if part is None else exact + part.double()
    assert found.shape == shape[:2] and found.dtype == x.dtype
    # One rounding of the result; the sums of float32 are off by far less.
    bound = BFLOAT16 * exact.abs() + 1e-5 * shape[2] ** 0.5
    assert bool(((found.double() - exact).abs() <= bound).all())


@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_every_form_of_the_kernel_gives_the_same(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever columns, splits and stages are chosen."""
    kernel = _kernel()
    x, weight, scale, _, _ = _case(16, 144, 700, torch.float16)
    form = (width, max(1, 64 // width), 4)
    monkeypatch.setattr(kernel, "tiles", lambda _: form)
    with poisoned():
        found = kernel.linear(x, weight, scale)
    exact = (x.double() @ weight.double().T) * scale.double()
    assert (found.double() - exact).abs().max() <= 2**-9 * exact.abs().max()


def test_tiles_fill_the_machine_and_its_memory_pipes() -> None:
    kernel, tuned = _kernel(), tuning.HOPPER.int8
    for cols in (2048, 2560, 4096, 6144, 8262, 16384, 28672, 64000):
        width, splits, stages = kernel.tiles(cols)
        programs = -(-cols // width)
        held = min(programs / tuned.multiprocessors, 3)
        under_way = held * width * tuned.depth * splits * (stages - 1)
        assert splits * width // 8 >= tuned.warps  # no warp repeats what another does
        assert programs >= 128 and under_way >= 26 * 1024
        assert stages * splits * tuned.depth * (width + 2 * tuned.rows) <= 192 * 1024


@pytest.mark.parametrize(("batch", "dtype"), [(2, torch.bfloat16), (6, torch.bfloat16), (2, torch.float32)])
def test_batches_are_flattened_and_the_rest_is_left_to_the_reference(
    batch: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "serves", lambda x: True)
    x, weight, scale, bias, residual = _case(3 * batch, 40, 64, dtype)
    exact = (x.double() @ weight.double().T) * scale.double() + bias.double() + residual.double()
    shaped = (x.view(batch, 3, 64), residual.view(batch, 3, 40))
    found = select.int8_linear(shaped[0], weight, scale, bias, shaped[1])
    assert found.shape == (batch, 3, 40) and found.dtype == dtype
    assert (found.flatten(0, 1).double() - exact).abs().max() <= 3 * BFLOAT16 * exact.abs().max()
    if batch == 6 or dtype == torch.float32:
        assert torch.equal(found, reference.int8_linear(shaped[0], weight, scale, bias, shaped[1]))


def test_what_the_kernel_cannot_read_is_refused() -> None:
    linear = _kernel().linear
    x, weight, scale, bias, residual = _case(3, 40, 64, torch.bfloat16)
    with pytest.raises(ValueError, match="the last of them equal"):
        linear(x[:, :32], weight, scale)
    with pytest.raises(ValueError, match="17 rows"):
        linear(x[:1].repeat(17, 1), weight, scale)
    with pytest.raises(ValueError, match=r"torch\.float32; this kernel takes 1 to 16 of bfloat16"):
        linear(x.float(), weight, scale)
    with pytest.raises(ValueError, match="int8 and float32 are needed"):
        linear(x, weight, scale.bfloat16())
    with pytest.raises(ValueError, match=r"scale: shape \(39,\) given"):
        linear(x, weight, scale[1:])
    with pytest.raises(ValueError, match=r"bias: shape \(1,\) given"):
        linear(x, weight, scale, bias[:1])
    with pytest.raises(ValueError, match="residual: shape"):
        linear(x, weight, scale, None, residual[:2])
    with pytest.raises(ValueError, match=r"x: shape .* contiguous"):
        linear(x.T.contiguous().T, weight, scale)


@pytest.mark.skipif(DEVICE == "cpu", reason="at true size")
@pytest.mark.parametrize("name", ["mcar/300m", "wham/200m"])
def test_logits_of_a_quantised_model_are_those_of_its_plain_form(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device(DEVICE):
        torch.manual_seed(0)
        model = find("models", name).config.build().eval()
    quantize(model, "int8")
    without, found = logits_errors(model, 16, monkeypatch)
    assert found < 0.03 and found < 1.1 * without
