from __future__ import annotations

import pytest
import torch
from torch import Tensor

from diagonal import Sampling
from diagonal.engine.kernels.targets import Targets
from diagonal.engine.sampler import Sampler, sample, sample_into, seeds, weights
from tests.reference_sampling import KINDS, SAMPLINGS, Rows, check, p_value, probabilities

PROBS = torch.tensor([0.5, 0.3, 0.15, 0.05])
LENGTH = 100_000
UNLIKELY = 1e-3  # seeds are fixed: what passes once always does


def _kept(sampling: Sampling, probs: Tensor = PROBS) -> list[int]:
    return weights(probs.log(), sampling).nonzero().flatten().tolist()


def _sampler(sampling: Sampling, seeds: tuple[int, ...] = (0,), ids: tuple[int, int] = (0, 4)) -> Sampler:
    sampler = Sampler(sampling, torch.tensor([ids]), 0, torch.tensor(seeds))
    sampler.begin(LENGTH, 0)
    return sampler


def _draws(logits_V: Tensor, sampling: Sampling, seeds_R: Tensor, positions_R: Tensor) -> Tensor:
    count, size = len(seeds_R), len(logits_V)
    low_R, high_R = torch.zeros(count).long(), torch.full((count,), size)
    return sample(logits_V.expand(count, -1), low_R, high_R, seeds_R, positions_R, sampling)


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


FOLLOWED = [
    Sampling(),
    Sampling(temperature=1.5, top_k=40, top_p=0.9),
    Sampling(top_p=0.8),
    Sampling(top_p=0.8, keep_crossing=False),
    Sampling(temperature=0.5, top_k=7),
]


@pytest.mark.parametrize("sampling", FOLLOWED, ids=str)
@pytest.mark.parametrize("vary", ["positions", "seeds", "both"])
def test_samples_follow_the_softmax_of_what_the_filters_leave(sampling: Sampling, vary: str) -> None:
    """Of one sample at many positions, of many samples at one, and of windows of a batch."""
    logits = 1.3 * torch.randn(60, generator=torch.Generator().manual_seed(0))
    numbers, same = torch.arange(LENGTH), torch.full((LENGTH,), 5)
    keys = {"positions": (same, numbers), "seeds": (numbers, same), "both": (numbers % 250, numbers // 250)}[vary]
    assert p_value(_draws(logits, sampling, *keys), probabilities(logits, sampling)) > UNLIKELY


@pytest.mark.parametrize("apart", [(0, 1), (1, 0), (1, 1), (1, -1), (0, 336), (0, 1024)])
def test_tokens_of_neighbours_are_independent(apart: tuple[int, int]) -> None:
    """Pairs of them, at seeds and positions so far apart, follow the products of their probabilities."""
    seeds_R, positions_R = torch.arange(LENGTH) % 100, 1 + torch.arange(LENGTH) // 100
    one = _draws(PROBS.log(), Sampling(), seeds_R, positions_R)
    other = _draws(PROBS.log(), Sampling(), seeds_R + apart[0], positions_R + apart[1])
    assert p_value(4 * one + other, torch.outer(PROBS, PROBS).flatten()) > UNLIKELY


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
    given = Rows(torch.full((2, 50), value), torch.tensor([0, 3]), torch.tensor([50, 40]), *torch.arange(4).view(2, 2))
    assert sample(*given, sampling).tolist() == [-1, -1]


def test_an_excluded_id_is_never_drawn() -> None:
    count = 20_000
    logits = torch.zeros(1, count, 50)
    drawn = _sampler(Sampling(top_k=50), ids=(7, 11))(logits, torch.arange(count))
    assert set(drawn.unique().tolist()) == {7, 8, 9, 10}


def test_valid_ids_depend_on_the_offset_within_the_frame() -> None:
    ids = torch.tensor([[1, 8], [0, 8], [8, 10]])  # first cell not id 0, second any, then an action
    sampler = Sampler(Sampling(temperature=0), ids, 2, torch.tensor([0]))
    sampler.begin(8, 0)
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


def test_a_position_has_its_noise_whatever_the_order_of_the_steps() -> None:
    logits = torch.randn(2, 6, 50, generator=torch.Generator().manual_seed(1))
    at_once = _sampler(Sampling(), (4, 5), (0, 50))(logits, torch.arange(6))
    sampler = _sampler(Sampling(), (4, 5), (0, 50))
    for positions in ([5], [0, 3, 1], [2, 4]):
        assert torch.equal(sampler(logits[:, positions], torch.tensor(positions)), at_once[:, positions])


def test_windows_that_overlap_share_the_noise_of_what_they_share() -> None:
    logits, slots = torch.zeros(1, 30, 1000), torch.arange(30)
    sampler = _sampler(Sampling(), ids=(0, 1000))
    first = sampler(logits, slots)
    read = [sampler._ids_2L, sampler._start]  # by captured graphs, which go on reading them
    sampler.begin(30, 20)
    second = sampler(logits, slots)
    assert torch.equal(second[:, :10], first[:, 20:]) and not torch.equal(second, first)
    assert all(one is other for one, other in zip(read, (sampler._ids_2L, sampler._start), strict=True))


def test_seeds_are_adopted_in_place_and_nobody_elses_change() -> None:
    given = _sampler(Sampling(), (4, 5))
    sampler = given.owned()
    read = sampler.seeds_B
    sampler.adopt(_sampler(Sampling(), (8, 9)))
    assert sampler.seeds_B is read and read.tolist() == [8, 9] and given.seeds_B.tolist() == [4, 5]


def test_samples_may_differ_in_slots_positions_and_rows() -> None:
    """A step of samples that are not at the same place is a step of each."""
    logits = torch.randn(3, 2, 50, generator=torch.Generator().manual_seed(1))
    slots, positions = torch.tensor([[0, 5], [3, 1], [4, 2]]), torch.tensor([[9, 70], [8, 2], [3, 1]])
    low = torch.arange(7)
    seeds_B, rows, ids = torch.tensor([3, 4, 3]), torch.tensor([4, 0, 2]), torch.stack([low, low + 40])
    tokens = torch.full((5, 7), -7)
    sample_into(tokens, logits, Targets(slots, positions, seeds_B, ids, rows), Sampling())
    wanted = torch.full((5, 7), -7)
    for index, row in enumerate(rows.tolist()):
        alone = Targets(slots[index], positions[index], seeds_B[index : index + 1], ids)
        sample_into(wanted[row : row + 1], logits[index : index + 1], alone, Sampling())
    assert torch.equal(tokens, wanted) and int((tokens != -7).sum()) == 6


def test_a_window_must_begin_before_its_first_step() -> None:
    sampler = Sampler(Sampling(), torch.tensor([[0, 4]]), 0, torch.tensor([0]))
    with pytest.raises(ValueError, match="begin"):
        sampler(torch.zeros(1, 1, 4), torch.tensor([0]))


def test_seeds_count_up_or_are_given_one_each() -> None:
    cpu = torch.device("cpu")
    assert seeds(2**63 - 3, 3, cpu).tolist() == [2**63 - 3, 2**63 - 2, 2**63 - 1]
    assert seeds([5, 0], 2, cpu).tolist() == [5, 0]


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
