"""Rotation and cache write in one kernel: against float64 and the plain form; other slots stay as they were."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from diagonal.engine.kernels import block
from diagonal.models.layers import rope_1d
from tests.gpu import BFLOAT16, DEVICE, RUNNABLE, poisoned

pytest.importorskip("triton")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not RUNNABLE, reason="no CUDA device, no TRITON_INTERPRET=1")]

LENGTH = 13
SHAPES = [(1, 1, 1, 1, 16), (2, 3, 6, 2, 16), (1, 5, 32, 4, 64), (2, 2, 9, 3, 128)]  # B, S, H, K, D


def _run(qkv: Tensor, rope: tuple[Tensor, Tensor], cache: Tensor, slots: Tensor, norm: block.HeadNorm | None) -> Tensor:
    from diagonal.engine.kernels.rope import rope_cache

    with poisoned():
        return rope_cache(qkv, rope, cache[0], cache[1], slots, norm)


def _inputs(
    shape: tuple[int, ...], normed: bool, dtype: torch.dtype
) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor, Tensor, block.HeadNorm | None]:
    B, S, H, K, D = shape
    torch.manual_seed(sum(shape))
    qkv = torch.randn(B, S, (H + 2 * K) * D, dtype=dtype, device=DEVICE)
    slots = torch.randperm(LENGTH, device=DEVICE)[:S]
    cache = torch.randn(2, B, K, LENGTH, D, dtype=dtype, device=DEVICE)
    gains = (1 + 0.3 * torch.randn(2, D, device=DEVICE)).to(dtype)
    return qkv, rope_1d(slots, D, 10000.0), cache, slots, block.HeadNorm(gains[0], gains[1], 1e-5) if normed else None


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_kernel_and_plain_form_agree(shape: tuple[int, ...], normed: bool, dtype: torch.dtype) -> None:
    qkv, rope, cache, slots, norm = _inputs(shape, normed, dtype)
    wanted_cache = cache.clone()
    wanted = block.rope_cache(qkv, rope, wanted_cache[0], wanted_cache[1], slots, norm)
    found = _run(qkv, rope, cache, slots, norm)
    bound = 2e-6 if dtype == torch.float32 else BFLOAT16 * (4 if normed else 2)
    assert found.shape == wanted.shape and found.dtype == dtype
    assert (found - wanted).abs().max() <= bound * wanted.abs().max()
    assert (cache[0] - wanted_cache[0]).abs().max() <= bound * wanted_cache[0].abs().max()
    assert torch.equal(cache[1], wanted_cache[1])
    others = [slot for slot in range(LENGTH) if slot not in slots.tolist()]
    assert torch.equal(cache[0][:, :, others], wanted_cache[0][:, :, others])


def test_a_rotation_is_that_of_complex_numbers() -> None:
    """Against another form of the maths, in float64: pairs as complex numbers times e^(i angle)."""
    qkv, rope, cache, slots, _ = _inputs((1, 4, 3, 1, 32), False, torch.float32)
    found = _run(qkv, rope, cache, slots, None)
    low, high = qkv.double().unflatten(-1, (5, 32))[:, :, :3].transpose(1, 2).chunk(2, dim=-1)
    turn = torch.complex(rope[0][:, :16].double(), rope[1][:, :16].double())
    turned = torch.complex(low, high) * turn
    assert (found - torch.cat([turned.real, turned.imag], dim=-1)).abs().max() < 1e-6


def test_a_cache_of_another_dtype_gets_the_rounded_values() -> None:
    qkv, rope, cache, slots, _ = _inputs((2, 3, 4, 2, 16), False, torch.bfloat16)
    wide = cache.float()
    _run(qkv, rope, cache, slots, None)
    _run(qkv, rope, wide, slots.int(), None)
    assert torch.equal(wide, cache.float())


def test_what_the_kernel_cannot_read_is_refused() -> None:
    qkv, rope, cache, slots, _ = _inputs((2, 3, 4, 2, 16), False, torch.float32)
    with pytest.raises(ValueError, match=r"qkv has shape \(2, 3, 64\)"):
        _run(qkv[..., :64].contiguous(), rope, cache, slots, None)
    with pytest.raises(ValueError, match=r"cos: shape \(2, 16\) given, \(3, 16\) needed"):
        _run(qkv, (rope[0][:2], rope[1]), cache, slots, None)
    with pytest.raises(ValueError, match=r"call \.contiguous\(\)"):
        _run(qkv, rope, cache.transpose(-1, -2).contiguous().transpose(-1, -2), slots, None)
    with pytest.raises(ValueError, match="int32 or int64"):
        _run(qkv, rope, cache, slots.float(), None)
    with pytest.raises(ValueError, match="powers of two"):
        _run(
            torch.randn(2, 3, 8 * 12, device=DEVICE), rope, torch.randn(2, 2, 2, LENGTH, 12, device=DEVICE), slots, None
        )
