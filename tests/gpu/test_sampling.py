"""The sampling kernel against the rule and against its twin, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

from diagonal import Sampling
from diagonal.engine import noise
from diagonal.engine.kernels.targets import Targets
from diagonal.engine.sampler import sample as twin
from diagonal.engine.sampler import sample_into
from tests.reference_sampling import KINDS, SAMPLINGS, Rows, agree, check, on, p_value, probabilities, rows

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)

import triton
import triton.language as tl

from diagonal.engine.kernels import select
from diagonal.engine.kernels.cuda import register_sampling
from diagonal.engine.kernels.triton import noise as triton_noise
from diagonal.engine.kernels.triton import sampling as kernels

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
pytestmark = [
    pytest.mark.gpu,
    # The interpreter is numpy, which remarks on infinities that are never used.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_the_kernel_draws_by_the_rule(kind: str, sampling: Sampling) -> None:
    check(select._sample, kind, sampling, 200, DEVICE)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "infinite", "two", "rising"])
@pytest.mark.parametrize("sampling", SAMPLINGS[1::3], ids=str)
def test_rows_of_many_blocks_are_drawn_by_the_rule(
    kind: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_tile", lambda ids, most: (64, 4))
    check(select._sample, kind, sampling, 333, DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1000, 8262, 64_000] if CUDA else [1000, 8262])
@pytest.mark.parametrize("sampling", [SAMPLINGS[0], SAMPLINGS[8], SAMPLINGS[12]], ids=str)
def test_the_kernel_draws_what_its_twin_draws(sampling: Sampling, size: int, dtype: torch.dtype) -> None:
    count = 128 if CUDA else 4
    given = rows("float32", count, size, seed=size)
    given = on(DEVICE, given._replace(logits=given.logits.to(dtype)))
    different = select._sample(*given, sampling) != twin(*given, sampling)
    assert int(different.sum()) <= count // 50  # two scores next to each other, or an id next to the end of top-p


HELD = [Sampling(), Sampling(top_p=0.8), Sampling(temperature=0.7, top_p=0.9, keep_crossing=False)]


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("size", [100, 1000, 8262, 16_400, 30_000, 64_000, 65_529])
@pytest.mark.parametrize("sampling", HELD, ids=str)
@pytest.mark.parametrize("deviation", [0.3, 1.0, 3.0])
def test_rows_that_a_program_holds_have_a_kernel_that_draws_the_same(
    sampling: Sampling, size: int, deviation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any length, so that rows begin anywhere in 16 bytes; with a small nucleus and with one of most ids."""
    given = rows("float32", 128, size, seed=size)
    given = on(DEVICE, given._replace(logits=(given.logits * deviation / 3).bfloat16()))
    if not register_sampling.able(given[0].device):
        pytest.skip("this GPU has none")
    assert register_sampling.configure(given[0], sampling) is not None
    found = select._sample(*given, sampling)
    for _ in range(3):
        assert torch.equal(found, select._sample(*given, sampling))
    monkeypatch.setattr(register_sampling, "configure", lambda logits, sampling: None)
    for other in (select._sample(*given, sampling), twin(*given, sampling)):
        assert int((found != other).sum()) <= 2  # two scores next to each other, or an id next to the end of top-p


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [333, 1000])
def test_rows_that_a_program_holds_are_drawn_by_the_rule(kind: str, size: int) -> None:
    given = rows(kind, 6, size, seed=size)
    given = given._replace(logits=given.logits.bfloat16())
    for sampling in SAMPLINGS[1::2]:
        agree(given, select._sample(*on(DEVICE, given), sampling).cpu(), sampling)


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("stride", [8192, 8193, 8194, 8198])
def test_rows_of_any_stride_and_beginning_are_held(stride: int) -> None:
    sampling, size, count = Sampling(top_p=0.8), 8096, 300
    given = on(DEVICE, rows("float32", count, size, seed=stride))
    memory = torch.randn(count * stride + 3, generator=torch.Generator().manual_seed(stride)).bfloat16().to(DEVICE)
    for start in (0, 1, 3):
        logits = memory[start : start + count * stride].view(count, stride)[:, :size]
        # A row alone begins with its first 16 bytes, so that its sums are of other ids.
        forms = given._replace(logits=logits), given._replace(logits=logits.contiguous())
        found, alone = (select._sample(*one, sampling) for one in forms)
        assert int((found != alone).sum()) <= 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sampling", [SAMPLINGS[0], SAMPLINGS[7]], ids=str)
@pytest.mark.parametrize("apart", [False, True])
def test_tokens_are_drawn_into_their_places(sampling: Sampling, dtype: torch.dtype, apart: bool) -> None:
    """As its twin writes them, be the samples at the same place or each at its own; the rest stays."""
    batch, inputs, length, size = 2, 5, 40, 200
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, inputs, size, generator=generator).to(DEVICE, dtype)
    low = torch.randint(90, (length,), generator=generator)
    slots, seeds = torch.rand(batch, length, generator=generator).argsort(-1)[:, :inputs], torch.tensor([3, 2**62])
    ids, slots, seeds = (one.to(DEVICE) for one in (torch.stack([low, low + 100]), slots, seeds))
    targets = Targets(slots[0], slots[0] + 77, seeds, ids)
    if apart:
        starts, places = torch.tensor([[77], [0]], device=DEVICE), torch.tensor([3, 1], device=DEVICE)
        targets = Targets(slots, slots + starts, seeds, ids, places)
    found, wanted = (torch.full((4, length + 3), -7, device=DEVICE)[:, :length] for _ in range(2))  # as a window's are
    select.sample_into(found, logits, targets, sampling)
    sample_into(wanted, logits, targets, sampling)
    assert torch.equal(found, wanted) and int((wanted != -7).sum()) == batch * inputs


def _noise(seeds: torch.Tensor, positions: torch.Tensor, ids: int) -> torch.Tensor:
    """E of the first ids, by a kernel for Triton's noise alone."""
    out = torch.empty(len(seeds), ids, device=seeds.device)
    _exponentials[(len(seeds),)](seeds, positions, out, ids, BLOCK=triton.next_power_of_2(ids))
    return out


@triton.jit
def _exponentials(seeds, positions, out, count, BLOCK: tl.constexpr):
    row, ids = tl.program_id(0), tl.arange(0, BLOCK)
    low, high = triton_noise.key(tl.load(seeds + row), tl.load(positions + row))
    tl.store(out + row * count + ids, triton_noise.exponential(low, high, ids), mask=ids < count)


def test_noise_is_that_of_its_twin() -> None:
    """A hash that differs in one bit gives another number altogether."""
    seeds = torch.tensor([0, 1, 12345, 2**31, 2**40 + 7, 2**63 - 1], device=DEVICE)
    positions = torch.tensor([0, 335, 2**20, 2**31, 1, 2**33 + 5], device=DEVICE)
    wanted = noise.exponential(noise.keys(seeds, positions)[:, None], torch.arange(3000, device=DEVICE))
    torch.testing.assert_close(_noise(seeds, positions, 3000), wanted, atol=0, rtol=5e-5)


@pytest.mark.parametrize("guesses", [0, 1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sampling", [SAMPLINGS[8], SAMPLINGS[12]], ids=str)
@pytest.mark.skipif(CUDA, reason="compiled kernels keep their constants")
def test_the_search_ends_where_it_must_however_few_guesses_it_has(
    sampling: Sampling, dtype: torch.dtype, guesses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threshold is exact, so what is drawn cannot depend on the way to it."""
    given = rows("float32", 4, 1000, seed=guesses)
    given = given._replace(logits=given.logits.to(dtype))
    drawn = select._sample(*given, sampling)
    monkeypatch.setattr(kernels, "GUESSES", type(kernels.GUESSES)(guesses))
    assert torch.equal(select._sample(*given, sampling), drawn)


@pytest.mark.parametrize("size", [1, 2, 3, 17])
def test_rows_of_held_ids_are_drawn_by_the_rule(size: int) -> None:
    logits = torch.randn(6, size, generator=torch.Generator().manual_seed(size))
    given = Rows(logits, torch.zeros(6).long(), torch.full((6,), size), *torch.arange(12).view(2, 6))
    for sampling in SAMPLINGS[::3]:
        assert torch.equal(select._sample(*on(DEVICE, given), sampling).cpu(), twin(*given, sampling))


def test_draws_follow_the_probabilities() -> None:
    count = 100_000 if CUDA else 300
    logits = 2 * torch.randn(20, generator=torch.Generator().manual_seed(0))
    sampling = Sampling(temperature=1.5, top_p=0.9)
    low, high, numbers = torch.zeros(count, dtype=torch.long), torch.full((count,), 20), torch.arange(count)
    given = Rows(logits.repeat(count, 1), low, high, numbers % 10, numbers // 10)
    drawn = select._sample(*on(DEVICE, given), sampling).cpu()
    assert p_value(drawn, probabilities(logits, sampling)) > 1e-3


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
@pytest.mark.parametrize("sampling", SAMPLINGS[::4], ids=str)
def test_a_row_without_a_finite_logit_gives_no_id(sampling: Sampling, value: float) -> None:
    ends = torch.tensor([0, 3]), torch.tensor([50, 40])
    given = Rows(torch.full((2, 50), value), *ends, *torch.arange(4).view(2, 2))
    assert select._sample(*on(DEVICE, given), sampling).tolist() == [-1, -1]


def test_ids_that_do_not_lie_side_by_side_are_refused() -> None:
    ends = torch.zeros(2, dtype=torch.long), torch.full((2,), 9)
    with pytest.raises(ValueError, match="side by side"):
        select._sample(torch.zeros(9, 2).T, *ends, *ends, Sampling())


@pytest.mark.skipif(not CUDA, reason="graphs need a CUDA device")
def test_the_kernel_runs_inside_a_cuda_graph() -> None:
    """Captured once, it reads new logits, seeds and positions: no host sync, no size that depends on them."""
    sampling = Sampling(top_k=50, top_p=0.9)
    given = on("cuda", rows("float32", 16, 4000, seed=0))
    select._sample(*given, sampling)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = select._sample(*given, sampling)
    for seed in (1, 2):
        for tensor, fresh in zip(given, rows("float32", 16, 4000, seed), strict=True):
            tensor.copy_(fresh)
        drawn.fill_(-7)
        graph.replay()
        assert torch.equal(drawn, select._sample(*given, sampling))
