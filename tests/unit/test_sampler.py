from __future__ import annotations

import pytest
import torch
from torch import Tensor

from diagonal import Sampling
from diagonal.engine.sampler import Sampler, sample, weights
from tests.reference_sampling import KINDS, SAMPLINGS, check, chi_square, probabilities

PROBS = torch.tensor([0.5, 0.3, 0.15, 0.05])
LENGTH = 40_000


def _kept(sampling: Sampling, probs: Tensor = PROBS) -> list[int]:
    return weights(probs.log(), sampling).nonzero().flatten().tolist()


def _sampler(sampling: Sampling, seeds: tuple[int, ...] = (0,), ids: tuple[int, int] = (0, 4)) -> Sampler:
    sampler = Sampler(sampling, torch.tensor([ids]), 0, [torch.Generator().manual_seed(seed) for seed in seeds])
    sampler.begin(LENGTH)
    return sampler


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(), [0, 1, 2, 3]),
        (Sampling(top_k=2), [0, 1]),
        (Sampling(top_k=9), [0, 1, 2, 3]),
        (Sampling(top_p=0.4), [0]),
        (Sampling(top_p=0.7), [0, 1]),  # the token that crosses 0.7 stays
        (Sampling(top_p=0.7, keep_crossing=False), [0]),  # WHAM drops it
        (Sampling(top_p=0.1, keep_crossing=False), [0]),  # but keeps the first
        (Sampling(top_p=1.0), [0, 1, 2, 3]),
        (Sampling(top_k=3, top_p=0.7), [0, 1]),
    ],
)
def test_filters_keep_what_their_rule_says(sampling: Sampling, kept: list[int]) -> None:
    assert _kept(sampling) == kept
    shuffled = torch.tensor([2, 0, 3, 1])
    back = [shuffled.tolist().index(index) for index in kept]
    assert _kept(sampling, PROBS[shuffled]) == sorted(back)


def test_top_k_keeps_ties_with_the_kth() -> None:
    assert _kept(Sampling(top_k=1), torch.tensor([0.4, 0.4, 0.2])) == [0, 1]


def test_temperature_divides_the_logits() -> None:
    made = weights(PROBS.log(), Sampling(temperature=0.5))
    torch.testing.assert_close(made / made.sum(), PROBS**2 / (PROBS**2).sum())


def test_zero_temperature_takes_the_most_likely_valid_id() -> None:
    logits = PROBS.log().expand(1, 2, 4)
    assert _sampler(Sampling(temperature=0), ids=(1, 4))(logits, torch.tensor([0, 5])).tolist() == [[1, 1]]


def test_samples_follow_the_probabilities() -> None:
    """Within six standard deviations."""
    drawn = _sampler(Sampling())(PROBS.log().expand(1, LENGTH, 4), torch.arange(LENGTH))
    assert chi_square(drawn[0], PROBS) < 6


def test_filtered_samples_follow_the_softmax_of_the_rest() -> None:
    logits = 2 * torch.randn(60, generator=torch.Generator().manual_seed(0))
    sampling = Sampling(temperature=1.5, top_k=40, top_p=0.9)
    drawn = _sampler(sampling, ids=(0, 60))(logits.expand(1, 10_000, 60), torch.arange(10_000))
    assert chi_square(drawn[0], probabilities(logits, sampling)) < 6


@pytest.mark.parametrize("size", [200, 700])  # below and above the number of logits that are looked at first
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_ids_are_drawn_by_the_rule(sampling: Sampling, kind: str, size: int) -> None:
    check(sample, kind, sampling, size)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(top_p=0.25), [0, 1]),  # what crosses 0.25 has an equal
        (Sampling(top_p=0.7), [0, 1, 2, 3]),
        (Sampling(top_p=0.25, keep_crossing=False), [0, 1]),  # the greatest stay
        (Sampling(top_p=0.7, keep_crossing=False), [0, 1]),
        (Sampling(top_p=0.7, top_k=2), [0, 1]),
    ],
)
def test_equal_probabilities_share_their_fate(sampling: Sampling, kept: list[int]) -> None:
    assert _kept(sampling, torch.tensor([0.3, 0.3, 0.2, 0.2])) == kept


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
@pytest.mark.parametrize("sampling", SAMPLINGS[::4], ids=str)
def test_a_row_without_a_finite_logit_gives_no_id(sampling: Sampling, value: float) -> None:
    ends = torch.tensor([0, 3]), torch.tensor([50, 40])
    assert sample(torch.full((2, 50), value), *ends, torch.tensor([0.0, 0.5]), sampling).tolist() == [-1, -1]


def test_an_excluded_id_is_never_drawn() -> None:
    count = 20_000
    logits = torch.zeros(1, count, 50)
    drawn = _sampler(Sampling(top_k=50), ids=(7, 11))(logits, torch.arange(count))
    assert set(drawn.unique().tolist()) == {7, 8, 9, 10}


def test_valid_ids_depend_on_the_offset_within_the_frame() -> None:
    ids = torch.tensor([[1, 8], [0, 8], [8, 10]])  # first cell not id 0, second any, then an action
    sampler = Sampler(Sampling(temperature=0), ids, 2, [torch.Generator()])
    sampler.begin(8)
    logits = torch.zeros(1, 6, 10)
    logits[..., 0] = 1
    assert sampler(logits, torch.arange(2, 8)).tolist() == [[1, 0, 8, 1, 0, 8]]


def test_a_batch_draws_what_its_members_draw() -> None:
    logits = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(5)
    together = _sampler(Sampling(top_p=0.9), seeds=(4, 5, 6))(logits, positions)
    for index, seed in enumerate((4, 5, 6)):
        alone = _sampler(Sampling(top_p=0.9), seeds=(seed,))(logits[index : index + 1], positions)
        assert torch.equal(alone[0], together[index])


def test_a_position_has_its_number_whatever_the_order_of_the_steps() -> None:
    logits = torch.randn(2, 6, 50, generator=torch.Generator().manual_seed(1))
    at_once = _sampler(Sampling(), (4, 5), (0, 50))(logits, torch.arange(6))
    sampler = _sampler(Sampling(), (4, 5), (0, 50))
    for positions in ([5], [0, 3, 1], [2, 4]):
        assert torch.equal(sampler(logits[:, positions], torch.tensor(positions)), at_once[:, positions])


def test_each_window_has_numbers_of_its_own_in_the_same_place() -> None:
    logits, positions = torch.zeros(1, 30, 1000), torch.arange(30)
    sampler = _sampler(Sampling(), ids=(0, 1000))
    first, table = sampler(logits, positions), sampler._uniform_BL
    sampler.begin(30)
    assert sampler._uniform_BL is table  # a captured graph goes on reading it
    assert not torch.equal(sampler(logits, positions), first)


def test_numbers_must_be_drawn_before_the_first_step() -> None:
    sampler = Sampler(Sampling(), torch.tensor([[0, 4]]), 0, [torch.Generator()])
    with pytest.raises(ValueError, match="begin"):
        sampler(torch.zeros(1, 1, 4), torch.tensor([0]))


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"temperature": -1.0}, "greedy"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_k": 0}, "at least 1"),
        ({"top_p": 0.0}, "above 0"),
        ({"top_p": 1.5}, "at most 1"),
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, float], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Sampling(**wrong)  # type: ignore[arg-type]
