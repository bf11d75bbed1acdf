"""Norms over frames against their plain form in float64."""

from __future__ import annotations

import pytest
import torch

from diagonal.engine.kernels import reference, select_pixels, tuning
from tests.gpu import BFLOAT16, DEVICE, RUNNABLE, poisoned

pytest.importorskip("triton")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not RUNNABLE, reason="no CUDA device, no TRITON_INTERPRET=1")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 2, 3, 4), (2, 3, 7, 5, 12), (1, 2, 40, 30, 24), (1, 1, 96, 128, 64)], ids=str)
def test_a_frame_is_normed_by_itself(
    shape: tuple[int, ...], silu: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One part or many, the last of them shorter; frames of other means and sizes of numbers beside each other."""
    from diagonal.engine.kernels.triton import frame_norm

    monkeypatch.setattr(tuning.HOPPER.pointwise, "tile", 1024)  # splits of several tiles in small frames too
    monkeypatch.setattr(tuning.HOPPER.pointwise, "frame_splits", 6)
    torch.manual_seed(sum(shape))
    each = torch.randn(*shape[:2], 1, 1, 1, device=DEVICE)
    x = ((torch.randn(*shape, device=DEVICE) + 3 * each) * each.exp()).to(dtype)
    weight, bias = (torch.randn(shape[-1], device=DEVICE).to(dtype) for _ in range(2))
    with poisoned():
        found = frame_norm.frame_norm(x, weight, bias, 1e-6, silu)
    wanted = reference.frame_norm(x.double(), weight.double(), bias.double(), 1e-6, silu)
    assert found.dtype == dtype and found.shape == x.shape and found.is_contiguous()
    bound = 1e-5 if dtype == torch.float32 else BFLOAT16
    assert (found.double() - wanted).abs().max() <= bound * wanted.abs().max()


def test_large_numbers_that_are_nearly_alike_keep_their_differences() -> None:
    from diagonal.engine.kernels.triton import frame_norm

    x = 1000 + torch.randn(1, 2, 16, 16, 8, device=DEVICE)
    one, zero = torch.ones(8, device=DEVICE), torch.zeros(8, device=DEVICE)
    found = frame_norm.frame_norm(x, one, zero, 1e-6, False)
    wanted = reference.frame_norm(x.double(), one.double(), zero.double(), 1e-6, False)
    assert (found.double() - wanted).abs().max() <= 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("shape", "groups"), [((2, 8, 3, 5), 4), ((1, 24, 17, 9), 8), ((3, 48, 20, 30), 2), ((1, 768, 14, 24), 32)], ids=str
)
def test_groups_of_channels_are_normed_by_themselves(
    shape: tuple[int, ...], groups: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One part or many, the last of them shorter; channels of other means beside each other."""
    from diagonal.engine.kernels.triton import frame_norm

    monkeypatch.setattr(tuning.HOPPER.pointwise, "frame_splits", 6)
    torch.manual_seed(sum(shape))
    each = torch.randn(*shape[:2], 1, 1, device=DEVICE)
    x = ((torch.randn(*shape, device=DEVICE) + 3 * each) * each.exp()).to(dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    weight, bias = (torch.randn(shape[1], device=DEVICE).to(dtype) for _ in range(2))
    with poisoned():
        found = frame_norm.group_norm_silu(x, weight, bias, groups, 1e-6)
    wanted = reference.group_norm_silu(x.double(), weight.double(), bias.double(), groups, 1e-6)
    assert found.dtype == dtype and found.is_contiguous(memory_format=torch.channels_last)
    bound = 1e-5 if dtype == torch.float32 else BFLOAT16
    assert (found.double() - wanted).abs().max() <= bound * wanted.abs().max()


def test_large_numbers_of_a_group_keep_their_differences() -> None:
    from diagonal.engine.kernels.triton import frame_norm

    x = (1000 + torch.randn(1, 8, 16, 16, device=DEVICE)).contiguous(memory_format=torch.channels_last)
    one, zero = torch.ones(8, device=DEVICE), torch.zeros(8, device=DEVICE)
    found = frame_norm.group_norm_silu(x, one, zero, 2, 1e-6)
    wanted = reference.group_norm_silu(x.double(), one.double(), zero.double(), 2, 1e-6)
    assert (found.double() - wanted).abs().max() <= 1e-3


def test_frames_that_lie_otherwise_are_left_to_others() -> None:
    from diagonal.engine.kernels.triton import frame_norm

    x, one = torch.randn(2, 8, 3, 5, device=DEVICE), torch.ones(8, device=DEVICE)
    with torch.no_grad():
        found = select_pixels.group_norm_silu(x, one, one, 4, 1e-6)
    assert torch.equal(found, reference.group_norm_silu(x, one, one, 4, 1e-6))
    with pytest.raises(ValueError, match="channels last"):
        frame_norm.group_norm_silu(x, one, one, 4, 1e-6)
