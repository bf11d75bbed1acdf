from __future__ import annotations

import pytest
import torch
from torch import Tensor

from diagonal import Sampling
from diagonal.engine.sampler import Sampler, filter_logits

PROBS = torch.tensor([0.5, 0.3, 0.15, 0.05])


def _kept(sampling: Sampling, probs: Tensor = PROBS) -> list[int]:
    return torch.isfinite(filter_logits(probs.log(), sampling)).nonzero().flatten().tolist()


def _sampler(sampling: Sampling, seeds: tuple[int, ...] = (0,), ids: tuple[int, int] = (0, 4)) -> Sampler:
    return Sampler(sampling, torch.tensor([ids]), 0, [torch.Generator().manual_seed(seed) for seed in seeds])


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
    torch.testing.assert_close(filter_logits(PROBS.log(), Sampling(temperature=0.5)), PROBS.log() * 2)


def test_zero_temperature_takes_the_most_likely_valid_id() -> None:
    logits = PROBS.log().expand(1, 2, 4)
    assert _sampler(Sampling(temperature=0), ids=(1, 4))(logits, torch.tensor([0, 5])).tolist() == [[1, 1]]


def test_samples_follow_the_probabilities() -> None:
    count = 40_000
    drawn = _sampler(Sampling())(PROBS.log().expand(1, count, 4), torch.zeros(count, dtype=torch.long))
    frequency = drawn.bincount(minlength=4) if drawn.ndim == 1 else drawn[0].bincount(minlength=4)
    # Five standard deviations of the largest one.
    torch.testing.assert_close(frequency / count, PROBS, atol=5 * 0.5 / count**0.5, rtol=0)


def test_an_excluded_id_is_never_drawn() -> None:
    count = 20_000
    logits = torch.zeros(1, count, 50)
    drawn = _sampler(Sampling(top_k=50), ids=(7, 11))(logits, torch.zeros(count, dtype=torch.long))
    assert set(drawn.unique().tolist()) == {7, 8, 9, 10}


def test_valid_ids_depend_on_the_offset_within_the_frame() -> None:
    ids = torch.tensor([[1, 8], [0, 8], [8, 10]])  # first cell not id 0, second any, then an action
    sampler = Sampler(Sampling(temperature=0), ids, 2, [torch.Generator()])
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
