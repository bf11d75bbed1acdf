"""The noise of sampling: bit for bit what integers without end say, exponential, and of its own for everybody."""

from __future__ import annotations

import math

import pytest
import torch

from diagonal.engine import noise
from tests.reference_sampling import hashed, key, log_exponentials

SEEDS = [0, 1, 2, 12345, 2**31, 2**32 - 1, 2**40 + 7, 2**63 - 1]
POSITIONS = [0, 1, 335, 2**20, 2**31, 2**33 + 5]
IDS = [0, 1, 2, 8191, 8192, 63_999, 2**24 + 1, 2**31 - 1]


def test_the_hash_is_that_of_integers_without_end() -> None:
    seeds, positions = (torch.tensor(one) for one in (SEEDS, POSITIONS))
    keys = noise.keys(seeds[:, None], positions)
    assert [[one % 2**64 for one in row] for row in keys.tolist()] == [[key(s, p) for p in POSITIONS] for s in SEEDS]
    found = noise.hashes(keys[..., None], torch.tensor(IDS))
    assert found.tolist() == [[[hashed(s, p, i) for i in IDS] for p in POSITIONS] for s in SEEDS]


def test_logarithms_are_those_of_float64() -> None:
    found = noise.exponential(noise.keys(torch.tensor(3), torch.tensor(4)), torch.arange(20_000))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double().log(), log_exponentials(3, 4, 0, 20_000), atol=2e-5, rtol=1e-6)


@pytest.mark.parametrize("bits", [0, 1, 2**24 - 1, 2**24, 2**24 + 1, 2**31, 2**32 - 129, 2**32 - 1])
def test_every_hash_has_a_finite_number_above_0(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "hashes", lambda keys, ids: torch.full((1,), bits))
    v = min((bits + 0.5) / 2**32, 1 - 2**-24)
    found = float(noise.exponential(torch.zeros(1).long(), torch.zeros(1).long()))
    assert 2**-33 <= found == pytest.approx(-math.log1p(-v), rel=2e-5)


def test_exponentials_have_the_moments_and_the_tail_of_their_kind() -> None:
    """Within four standard deviations."""
    count = 1_000_000
    e = noise.exponential(noise.keys(torch.tensor(1), torch.arange(1000))[:, None], torch.arange(1000))
    assert abs(e.double().mean() - 1) < 4 / count**0.5
    assert abs(e.double().var() - 1) < 4 * (8 / count) ** 0.5
    for below in (1e-4, 2.0**-8, 1.0, 10.0):
        part = -math.expm1(-below)
        assert abs((e < below).double().mean() - part) < 4 * (part * (1 - part) / count) ** 0.5


@pytest.mark.parametrize("apart", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, -1, 0), (0, 1, -1), (2, 0, 0), (0, 336, 0)])
def test_neighbours_do_not_correlate(apart: tuple[int, int, int]) -> None:
    """Of seeds, positions and ids, one next to the other: within four standard deviations, and so their squares."""
    axes = [torch.arange(count).view(shape) for count, shape in ((40, (-1, 1, 1)), (150, (-1, 1)), (150, (-1,)))]

    def uniform(*shift: int) -> torch.Tensor:
        seeds, positions, ids = (axis + 2 + by for axis, by in zip(axes, shift, strict=True))
        return noise.hashes(noise.keys(seeds, positions), ids).flatten().double() / 2**32

    one, other = uniform(0, 0, 0), uniform(*apart)
    for of in (lambda v: v, lambda v: (v - 0.5) ** 2, lambda v: (v * 2**16) % 1):  # of low bits too
        assert abs(torch.corrcoef(torch.stack([of(one), of(other)]))[0, 1]) < 4 / len(one) ** 0.5
