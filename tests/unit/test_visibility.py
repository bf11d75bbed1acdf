from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from diagonal.engine.attention import attend
from diagonal.engine.kernels.reference import needed_slots
from diagonal.engine.kernels.visibility import (
    BLOCK,
    EVERYBODY,
    NOWHERE,
    PADDING,
    Visibility,
    attend_reference,
    attend_slots,
)
from tests.caches import Shape, case, members, seats

NEVER = torch.iinfo(torch.int32).max
Attend = Callable[[Tensor, Tensor, Tensor, Visibility], Tensor]


def _int32(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def test_a_query_sees_written_slots_up_to_its_own() -> None:
    # Slot 3 is a hole that step 6 will fill.
    needed = needed_slots(_int32(0, 0, 4, 6, 5, 0, NEVER), _int32(5))
    assert needed.tolist() == [0, 1, 2, NOWHERE, 4, 5, NOWHERE]
    seen = Visibility(torch.tensor([1, 4, PADDING]), needed, _int32(0), _int32(1))
    assert seen.mask().int().tolist() == [[1, 1, 0, 0, 0, 0, 0], [1, 1, 1, 0, 1, 0, 0], [0] * 7]


def _case(slots: list[int], length: int) -> tuple[tuple[Tensor, Tensor, Tensor], Visibility]:
    noise = torch.Generator().manual_seed(0)
    q = torch.randn(2, 6, len(slots), 16, generator=noise, dtype=torch.float64)
    k, v = (torch.randn(2, 2, length, 16, generator=noise, dtype=torch.float64) for _ in range(2))
    fed = torch.randint(0, 9, (length,), generator=noise, dtype=torch.int32)
    fed[0] = 0
    return (q, k, v), Visibility(torch.tensor(slots), needed_slots(fed, _int32(4)), _int32(0), _int32(1))


def test_the_twin_is_masked_grouped_attention() -> None:
    (q, k, v), seen = _case([3, 0, 17, 9], 20)
    torch.testing.assert_close(attend_reference(q, k, v, seen), attend(q, k, v, seen.mask()), rtol=0, atol=1e-12)


def test_padding_rows_are_zero_and_what_nobody_sees_does_not_matter() -> None:
    (q, k, v), seen = _case([5, PADDING, 12], 20)
    clean = attend_reference(q, k, v, seen)
    unseen = ~seen.mask().any(0)
    k[:, :, unseen] = v[:, :, unseen] = 1e9
    assert torch.equal(attend_reference(q, k, v, seen), clean)
    assert not clean[:, :, 1].any() and clean[:, :, 0].all()


SHAPES: list[Shape] = [(1, 4, 2, 5, 192, 16), (3, 6, 2, 4, 320, 16), (4, 2, 2, 1, 64, 32)]  # B, H, K, S, L, D


@pytest.mark.parametrize("attended", [attend_reference, attend_slots])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_samples_that_differ_are_attended_with_as_if_alone(shape: Shape, attended: Attend) -> None:
    (q, k, v), seen = seats(shape, torch.float64, "cpu")
    qkv = (q, k.nan_to_num(0), v.nan_to_num(0))
    out = attended(*qkv, seen)
    assert seen.mask().shape == (shape[0], shape[3], shape[4])
    for sample, (one, rule) in enumerate(members(qkv, seen)):
        wanted = attend(*one, rule.mask()).nan_to_num(0)
        torch.testing.assert_close(out[sample : sample + 1], wanted, rtol=0, atol=1e-12)
    if shape[3] > 1:
        assert not out[:, :, -1].any() and out[:, :, :-1].all()  # the last query is padding


def test_what_samples_share_need_not_be_said_for_each() -> None:
    """Any of the four may have a dimension for samples, or not."""
    (q, k, v), seen = case((3, 4, 2, 5, 192, 16), torch.float64, "cpu")
    qkv = (q, k.nan_to_num(0), v.nan_to_num(0))
    wanted = attend_reference(*qkv, seen)
    names = ("slots_S", "needed_L", "whole", "extent")
    for chosen in range(16):
        several = {
            name: torch.stack([getattr(seen, name)] * 3) for bit, name in enumerate(names) if chosen & (1 << bit)
        }
        rule = replace(seen, **several)
        for attended in (attend_reference, attend_slots):
            torch.testing.assert_close(attended(*qkv, rule), wanted, rtol=0, atol=1e-12)
    rows = torch.tensor([2, 0, 1])
    for attended in (attend_reference, attend_slots):
        found = attended(q[rows], *qkv[1:], replace(seen, rows_B=rows))
        torch.testing.assert_close(found, wanted[rows], rtol=0, atol=1e-12)


def test_slots_behind_the_extent_are_not_read() -> None:
    qkv, seen = seats((3, 4, 2, 5, 320, 16), torch.float64, "cpu")
    found = attend_slots(*qkv, seen)  # where they are no numbers
    clean = attend_reference(qkv[0], qkv[1].nan_to_num(0), qkv[2].nan_to_num(0), seen)
    torch.testing.assert_close(found, clean, rtol=0, atol=1e-12)
    assert not attend_slots(*qkv, replace(seen, extent=torch.zeros_like(seen.extent))).any()


def test_padding_is_before_everybody_and_nobody_sees_nowhere() -> None:
    needed = torch.full((BLOCK,), EVERYBODY, dtype=torch.int32)
    needed[-1] = NOWHERE
    mask = Visibility(torch.tensor([PADDING, -12, 2**30]), needed, _int32(0), _int32(1)).mask()
    assert mask.sum(1).tolist() == [0, BLOCK - 1, BLOCK - 1]
