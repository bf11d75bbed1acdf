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
from diagonal.engine.sampler import sample as twin
from tests.cuda_on_cpu import Machine
from tests.reference_sampling import KINDS, SAMPLINGS, Rows, possible, rows

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
        logits_RV, low_R, high_R, uniform_R = given
        found = register_sampling.configure(logits_RV, sampling)
        assert found is not None
        found = replace(found, THREADS=THREADS, IDS=IDS, BINS=bins)
        assert logits_RV.shape[1] + register_sampling.BEFORE <= found.THREADS * found.IDS
        out = torch.full((1, len(logits_RV)), -7)
        machine.fresh = [logits_RV]
        register_sampling.run(
            logits_RV, (low_R.long(), high_R.long(), uniform_R.float()[None], None, out), sampling, found
        )
        return out[0], machine.waits

    return drawn


def _part(given: Rows, stride: int, start: int = 0) -> Rows:
    """The rows as parts of longer ones, which go on with what is no number."""
    count, size = given[0].shape
    longer = torch.full((start + count * stride,), torch.nan, dtype=torch.bfloat16)
    logits = longer[start:].view(count, stride)[:, :size].copy_(given[0])
    return logits, *given[1:]


def _check(given: Rows, drawn: Tensor, sampling: Sampling) -> None:
    for row, (logits, start, end, number) in enumerate(zip(*given, strict=True)):
        ids, found = possible(logits[start:end], float(number), sampling), int(drawn[row] - start)
        # Where a trifle decides among many ids, any of those between is as good.
        assert min(ids) <= found <= max(ids), (row, found, ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", MADE_FOR, ids=str)
def test_the_kernel_draws_by_the_rule(kind: str, sampling: Sampling, draw: Draw) -> None:
    given = _part(rows(kind, 6, SIZE, seed=SAMPLINGS.index(sampling)), SIZE + 3)
    _check(given, draw(given, sampling, BINS)[0], sampling)


@pytest.mark.parametrize("kind", ["float32", "ties", "two", "wide", "tiny", "rising", "peaked"])
@pytest.mark.parametrize("sampling", [SAMPLINGS[7], SAMPLINGS[8]], ids=str)
def test_windows_of_any_width_lead_to_the_same_id(kind: str, sampling: Sampling, draw: Draw) -> None:
    """With few bins it takes several looks, to either side; where the crossing is cannot depend on the way to it."""
    given = _part(rows(kind, 6, SIZE, seed=1), SIZE)
    narrow, more = draw(given, sampling, NARROW.get(kind, 16))
    _check(given, narrow, sampling)
    wide, waits = draw(given, sampling, BINS)
    assert torch.equal(narrow, wide)
    assert more > waits or kind in ("two", "wide", "peaked")  # whose crossing the guess is next to, or no window is


def test_a_normal_row_takes_one_look(draw: Draw) -> None:
    normal = torch.randn(8, SIZE, generator=torch.Generator().manual_seed(0)).bfloat16() + 4  # away from zero
    given = normal, torch.zeros(8).long(), torch.full((8,), SIZE), torch.linspace(0, 0.9, 8)
    found, waits = draw(given, Sampling(top_p=0.8), BINS)
    assert waits == 8 * ONE_LOOK
    assert torch.equal(found, twin(*given, Sampling(top_p=0.8)))


@pytest.mark.parametrize(("every", "lift", "top_p"), [(7, 5.5, 0.99), (SIZE, 5.8, 0.3)], ids=["below", "above"])
def test_a_guess_that_misses_is_mended(every: int, lift: float, top_p: float, draw: Draw) -> None:
    """Some far above the rest: what crosses is far below where a normal distribution has it, or far above."""
    logits = torch.linspace(2, 2.5, SIZE).flip(0)
    logits[::every] += lift
    given = (logits[None].bfloat16(), torch.tensor([0]), torch.tensor([SIZE]), torch.tensor([0.999]))
    found, waits = draw(given, Sampling(top_p=top_p), BINS)
    assert waits > ONE_LOOK
    assert torch.equal(found, twin(*given, Sampling(top_p=top_p)))


@pytest.mark.parametrize("shift", [-0.2, 0.0, 0.2])
def test_a_crossing_next_to_zero_is_found(shift: float, draw: Draw) -> None:
    """Numbers lie close there: a window has no room for both signs."""
    logits = torch.randn(16, SIZE, generator=torch.Generator().manual_seed(1)) + shift
    ends = torch.zeros(16, dtype=torch.long), torch.full((16,), SIZE)
    given = (logits.bfloat16(), *ends, torch.linspace(0.01, 0.99, 16))
    for top_p in (0.75, 0.85):
        _check(given, draw(given, Sampling(top_p=top_p), BINS)[0], Sampling(top_p=top_p))


@pytest.mark.parametrize("start", [0, 1, 5, 8, 15])
def test_rows_may_begin_anywhere_in_their_first_16_bytes(start: int, draw: Draw) -> None:
    """And the ids before and after are not theirs, even if they are greater."""
    sampling, (logits, _, _, uniform) = Sampling(top_p=0.8), rows("bfloat16", 6, SIZE, seed=start)
    logits = torch.nan_to_num(logits.float()).bfloat16()
    given = _part((logits, torch.zeros(6).long(), torch.full((6,), SIZE), uniform), SIZE + 5, start)
    around = given[0].as_strided((6, SIZE + 5), (SIZE + 5, 1))
    around[:, SIZE:] = 100
    assert torch.equal(draw(given, sampling, BINS)[0], twin(*given, sampling))


@pytest.mark.parametrize("value", [torch.nan, -torch.inf, torch.inf])
@pytest.mark.parametrize("sampling", MADE_FOR[::3], ids=str)
def test_a_row_without_a_finite_greatest_logit_gives_no_id(sampling: Sampling, value: float, draw: Draw) -> None:
    logits = torch.full((2, 50), -1.0 if value > 0 else value).bfloat16()
    logits[:, 20] = value
    given = logits, torch.tensor([0, 3]), torch.tensor([50, 40]), torch.tensor([0.0, 0.5])
    assert draw(given, sampling, BINS)[0].tolist() == [-1, -1]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_p=0.8)], ids=str)
def test_what_is_no_number_has_no_weight(sampling: Sampling, draw: Draw) -> None:
    logits, low, high, uniform = rows("ties", 6, SIZE, seed=2)
    logits = torch.nan_to_num(logits.bfloat16())
    with_nan, without = logits.clone(), logits.clone()
    with_nan[:, ::3], without[:, ::3] = torch.nan, -torch.inf
    found = draw((with_nan, low, high, uniform), sampling, BINS)[0]
    assert torch.equal(found, twin(without, low, high, uniform, sampling))


@pytest.mark.parametrize("at", [0, 255, 256, 511, 512, 767, 1016])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_p=0.9)], ids=str)
def test_one_id_is_found_wherever_it_is_held(at: int, sampling: Sampling, draw: Draw) -> None:
    logits = torch.full((3, 1017), -torch.inf).bfloat16()
    logits[:, at] = -3.0
    given = logits, torch.zeros(3).long(), torch.full((3,), 1017), torch.tensor([0.0, 0.5, 1.0])  # 1: no sum exceeds it
    assert draw(given, sampling, BINS)[0].tolist() == [at] * 3


@pytest.mark.parametrize("sampling", [Sampling(temperature=1.5), Sampling(top_p=0.8)], ids=str)
def test_it_draws_what_its_twin_draws(sampling: Sampling, draw: Draw) -> None:
    logits, low, high, uniform = rows("float32", 64, 1000, seed=3)
    given = logits.bfloat16(), low, high, uniform
    found = draw(given, sampling, BINS)[0]
    assert int((found != twin(*given, sampling)).sum()) <= 1  # a number next to a boundary
    assert torch.equal(found, draw(given, sampling, BINS)[0])


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
    ends = torch.zeros(2, dtype=torch.long)
    tables: register_sampling.Tables = (ends, ends, torch.zeros(1, 2), None, ends[None])
    assert register_sampling.reads(tables) and not register_sampling.reads((ends.int(), *tables[1:]))
    assert not register_sampling.able(torch.device("cpu"))
