"""Tokens from rows that a thread block holds in registers. The kernel runs here on a CPU (tests/cuda_on_cpu)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from diagonal import Sampling
from diagonal.engine.kernels import tuning
from diagonal.engine.kernels.cuda import register_sampling
from diagonal.engine.kernels.targets import Targets
from diagonal.engine.sampler import sample as twin
from diagonal.engine.sampler import sample_into
from tests.cuda_on_cpu import Machine
from tests.reference_sampling import KINDS, SAMPLINGS, Rows, agree, rows

THREADS, IDS = 64, 16  # fewer than on a GPU: a CPU runs them one after the other
SIZE = 550  # ids: of both warps, and of both pieces of a lane


def configure(ids: int, dtype: torch.dtype, sampling: Sampling) -> register_sampling.KernelConfig | None:
    return register_sampling.configure(torch.empty(1, ids, dtype=dtype, device="meta"), sampling)


MADE_FOR = [one for one in SAMPLINGS if configure(200, torch.bfloat16, one) is not None]
BINS = tuning.HOPPER.sampling.bins
NARROW = {"tiny": 256}  # bins of rows whose keys are many; of others 16
ONE_LOOK = 6  # waits for each other, if the first window holds the crossing

Draw = Callable[[Rows, Sampling, int], tuple[Tensor, int]]


@pytest.fixture
def draw(machine: Machine) -> Draw:
    """Tokens, and how often threads have waited for each other."""

    def drawn(given: Rows, sampling: Sampling, bins: int) -> tuple[Tensor, int]:
        logits_RV, low_R, high_R, seeds_R, positions_R = given
        found = register_sampling.configure(logits_RV, sampling)
        assert found is not None
        found = replace(found, THREADS=THREADS, IDS=IDS, BINS=bins)
        assert logits_RV.shape[1] + register_sampling.BEFORE <= found.THREADS * found.IDS
        out, slots_R = torch.full((1, len(logits_RV)), -7), torch.arange(len(logits_RV))
        ids_2R, rows_R = torch.stack([low_R, high_R]), torch.zeros_like(slots_R)
        targets = Targets(slots_R[:, None], positions_R[:, None], seeds_R, ids_2R, rows_R)
        machine.fresh = [logits_RV]
        register_sampling.run(out, logits_RV, targets, sampling, found)
        return out[0], machine.waits

    return drawn


def _part(given: Rows, stride: int, start: int = 0) -> Rows:
    """The rows as parts of longer ones, which go on with what is no number."""
    count, size = given[0].shape
    longer = torch.full((start + count * stride,), torch.nan, dtype=torch.bfloat16)
    logits = longer[start:].view(count, stride)[:, :size].copy_(given[0])
    return given._replace(logits=logits)


def _all(logits: Tensor) -> Rows:
    """Rows of which every id is valid."""
    count, size = logits.shape
    seeds, positions = torch.arange(2 * count).view(2, count) + 7
    return Rows(logits.bfloat16(), torch.zeros(count).long(), torch.full((count,), size), seeds, positions)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", MADE_FOR, ids=str)
def test_the_kernel_draws_by_the_rule(kind: str, sampling: Sampling, draw: Draw) -> None:
    given = _part(rows(kind, 6, SIZE, seed=SAMPLINGS.index(sampling)), SIZE + 3)
    agree(given, draw(given, sampling, BINS)[0], sampling)


@pytest.mark.parametrize("kind", ["float32", "ties", "two", "wide", "tiny", "rising", "peaked"])
@pytest.mark.parametrize("sampling", [SAMPLINGS[7], SAMPLINGS[8]], ids=str)
def test_windows_of_any_width_lead_to_the_same_id(kind: str, sampling: Sampling, draw: Draw) -> None:
    """With few bins it takes several looks, to either side; where the crossing is cannot depend on the way to it."""
    given = _part(rows(kind, 6, SIZE, seed=1), SIZE)
    narrow, more = draw(given, sampling, NARROW.get(kind, 16))
    agree(given, narrow, sampling)
    wide, waits = draw(given, sampling, BINS)
    assert torch.equal(narrow, wide)
    assert more > waits or kind in ("two", "wide", "peaked")  # whose crossing the guess is next to, or no window is


def test_a_normal_row_takes_one_look(draw: Draw) -> None:
    given = _all(torch.randn(8, SIZE, generator=torch.Generator().manual_seed(0)).bfloat16() + 4)  # away from zero
    found, waits = draw(given, Sampling(top_p=0.8), BINS)
    assert waits == 8 * ONE_LOOK
    assert torch.equal(found, twin(*given, Sampling(top_p=0.8)))


@pytest.mark.parametrize(("every", "lift", "top_p"), [(7, 5.5, 0.99), (SIZE, 5.8, 0.3)], ids=["below", "above"])
def test_a_guess_that_misses_is_mended(every: int, lift: float, top_p: float, draw: Draw) -> None:
    """Some far above the rest: what crosses is far below where a normal distribution has it, or far above."""
    logits = torch.linspace(2, 2.5, SIZE).flip(0)
    logits[::every] += lift
    given = _all(logits.expand(40, -1))
    found, waits = draw(given, Sampling(top_p=top_p), BINS)
    assert waits > 40 * ONE_LOOK
    assert torch.equal(found, twin(*given, Sampling(top_p=top_p)))


@pytest.mark.parametrize("shift", [-0.2, 0.0, 0.2])
def test_a_crossing_next_to_zero_is_found(shift: float, draw: Draw) -> None:
    """Numbers lie close there: a window has no room for both signs."""
    logits = torch.randn(16, SIZE, generator=torch.Generator().manual_seed(1)) + shift
    given = _all(logits)
    for top_p in (0.75, 0.85):
        agree(given, draw(given, Sampling(top_p=top_p), BINS)[0], Sampling(top_p=top_p))


@pytest.mark.parametrize("start", [0, 1, 5, 8, 15])
def test_rows_may_begin_anywhere_in_their_first_16_bytes(start: int, draw: Draw) -> None:
    """And the ids before and after are not theirs, even if they are greater."""
    sampling, logits = Sampling(top_p=0.8), rows("bfloat16", 6, SIZE, seed=start)[0]
    given = _part(_all(torch.nan_to_num(logits.float())), SIZE + 5, start)
    around = given[0].as_strided((6, SIZE + 5), (SIZE + 5, 1))
    around[:, SIZE:] = 100
    assert torch.equal(draw(given, sampling, BINS)[0], twin(*given, sampling))


@pytest.mark.parametrize("value", [torch.nan, -torch.inf, torch.inf])
@pytest.mark.parametrize("sampling", MADE_FOR[::3], ids=str)
def test_a_row_without_a_finite_greatest_logit_gives_no_id(sampling: Sampling, value: float, draw: Draw) -> None:
    logits = torch.full((2, 50), -1.0 if value > 0 else value).bfloat16()
    logits[:, 20] = value
    given = _all(logits)._replace(low=torch.tensor([0, 3]), high=torch.tensor([50, 40]))
    assert draw(given, sampling, BINS)[0].tolist() == [-1, -1]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_p=0.8)], ids=str)
def test_what_is_no_number_has_no_weight(sampling: Sampling, draw: Draw) -> None:
    given = rows("ties", 6, SIZE, seed=2)
    logits = torch.nan_to_num(given.logits.bfloat16())
    with_nan, without = logits.clone(), logits.clone()
    with_nan[:, ::3], without[:, ::3] = torch.nan, -torch.inf
    found = draw(given._replace(logits=with_nan), sampling, BINS)[0]
    assert torch.equal(found, twin(*given._replace(logits=without), sampling))


@pytest.mark.parametrize("at", [0, 255, 256, 511, 512, 767, 1016])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_p=0.9)], ids=str)
def test_one_id_is_found_wherever_it_is_held(at: int, sampling: Sampling, draw: Draw) -> None:
    logits = torch.full((3, 1017), -torch.inf).bfloat16()
    logits[:, at] = -3.0
    assert draw(_all(logits), sampling, BINS)[0].tolist() == [at] * 3


@pytest.mark.parametrize("sampling", [Sampling(temperature=1.5), Sampling(top_p=0.8)], ids=str)
def test_it_draws_what_its_twin_draws(sampling: Sampling, draw: Draw) -> None:
    given = rows("float32", 64, 1000, seed=3)
    given = given._replace(logits=given.logits.bfloat16())
    found = draw(given, sampling, BINS)[0]
    assert torch.equal(found, twin(*given, sampling))
    assert torch.equal(found, draw(given, sampling, BINS)[0])


def test_an_id_too_unlikely_to_be_drawn_gets_no_noise(machine: Machine, draw: Draw) -> None:
    """At 38 powers of 2 below the greatest: by noise without end it would be drawn, by what there is never."""
    logits = torch.full((4, SIZE), -27.0)
    logits[:, 5] = 0
    assert draw(_all(logits), Sampling(), BINS)[0].tolist() == [5] * 4
    machine.changes = {"exponential(noise_hash(key, now - early))": "now - early == 5 ? 1.f : 0x1p-60f"}
    assert draw(_all(logits), Sampling(), BINS)[0].tolist() == [5] * 4
    assert draw(_all(logits + 0.9 * (logits < 0)), Sampling(), BINS)[0].tolist() == [0] * 4


@pytest.mark.parametrize("first", [0, 7, 300, 549])
def test_of_equal_scores_the_first_id_wins(first: int, machine: Machine, draw: Draw) -> None:
    machine.changes = {"exponential(noise_hash(key, now - early))": "1.f"}
    logits = torch.randn(6, SIZE, generator=torch.Generator().manual_seed(0)) - 8
    logits[:, first:] = torch.where(torch.arange(SIZE - first) % 3 == 0, 1.0, logits[:, first:])
    assert draw(_part(_all(logits), SIZE + 3), Sampling(), BINS)[0].tolist() == [first] * 6


@pytest.mark.parametrize("apart", [False, True])
def test_tokens_go_where_its_twin_writes_them(apart: bool, machine: Machine) -> None:
    """A step of samples at the same place, and of samples that differ in slots, positions and rows."""
    generator, sampling = torch.Generator().manual_seed(5), Sampling(top_p=0.9)
    logits = torch.randn(3, 4, 200, generator=generator).bfloat16()
    low = torch.randint(90, (9,), generator=generator)
    slots = torch.rand(3, 9, generator=generator).argsort(-1)[:, :4]
    seeds, ids = torch.tensor([5, 2**62, 5]), torch.stack([low, low + 100])
    targets = Targets(slots[0], slots[0] + 100, seeds, ids)
    if apart:
        targets = Targets(slots, slots + torch.tensor([[0], [7], [90]]), seeds, ids, torch.tensor([3, 0, 2]))
    found, wanted = torch.full((2, 4, 12), -7)[:, :, :9]  # views, as a window's tokens are
    assert register_sampling.reads(found, targets)
    config = register_sampling.configure(logits.flatten(0, 1), sampling)
    assert config is not None
    register_sampling.run(found, logits.flatten(0, 1), targets, sampling, config)
    sample_into(wanted, logits, targets, sampling)
    assert torch.equal(found, wanted) and int((wanted != -7).sum()) == 12


def test_what_it_is_not_made_for_is_left_to_others() -> None:
    usual = Sampling(top_p=0.8)
    bfloat16 = torch.bfloat16
    assert configure(8262, bfloat16, usual) == register_sampling.KernelConfig(544, 16, TOP_P=True, KEEP=True, BINS=BINS)
    assert configure(2048, bfloat16, replace(usual, keep_crossing=False)) == register_sampling.KernelConfig(
        288, 8, True, KEEP=False, BINS=BINS
    )
    assert configure(100, bfloat16, Sampling()) == register_sampling.KernelConfig(
        128, 8, TOP_P=False, KEEP=True, BINS=BINS
    )
    assert configure(16_384, bfloat16, usual) == register_sampling.KernelConfig(
        544, 32, TOP_P=True, KEEP=True, BINS=BINS
    )
    assert configure(64_000, bfloat16, usual) == register_sampling.KernelConfig(
        1024, 64, TOP_P=True, KEEP=True, BINS=BINS
    )
    assert configure(65_529, bfloat16, usual) is not None and configure(65_530, bfloat16, usual) is None
    assert configure(4096, torch.float32, usual) is None
    assert configure(4096, bfloat16, Sampling(temperature=0)) is None
    assert configure(4096, bfloat16, Sampling(top_k=10)) is None
    tokens = torch.zeros(2, 5, dtype=torch.long)
    targets = Targets(tokens[0], tokens[0], tokens[:, 0].contiguous(), tokens)
    assert register_sampling.reads(tokens, targets) and not register_sampling.reads(tokens.int(), targets)
    assert not register_sampling.reads(tokens, replace(targets, seeds_B=tokens[:, 0]))
    assert not register_sampling.able(torch.device("cpu"))
