from __future__ import annotations

import torch
from torch import Tensor

from diagonal.engine.attention import attend
from diagonal.engine.kernels.reference import needed_slots
from diagonal.engine.kernels.visibility import NOWHERE, Visibility, attend_reference

NEVER = torch.iinfo(torch.int32).max


def _int32(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def test_a_query_sees_written_slots_up_to_its_own() -> None:
    # Slot 3 is a hole that step 6 will fill.
    needed = needed_slots(_int32(0, 0, 4, 6, 5, 0, NEVER), _int32(5))
    assert needed.tolist() == [0, 1, 2, NOWHERE, 4, 5, NOWHERE]
    seen = Visibility(torch.tensor([1, 4, -1]), needed, _int32(0), _int32(1))
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
    (q, k, v), seen = _case([5, -1, 12], 20)
    clean = attend_reference(q, k, v, seen)
    unseen = ~seen.mask().any(0)
    k[:, :, unseen] = v[:, :, unseen] = 1e9
    assert torch.equal(attend_reference(q, k, v, seen), clean)
    assert not clean[:, :, 1].any() and clean[:, :, 0].all()
