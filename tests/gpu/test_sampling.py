"""The sampling kernel against the rule and against its twin, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

from diagonal import Sampling
from diagonal.engine.sampler import sample as twin
from tests.reference_sampling import KINDS, SAMPLINGS, check, chi_square, on, possible, probabilities, rows

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)

from diagonal.engine.kernels import select
from diagonal.engine.kernels.cuda import register_sampling
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
    logits, low, high, uniform = rows("float32", count, size, seed=size)
    given = on(DEVICE, (logits.to(dtype), low, high, uniform))
    different = select._sample(*given, sampling) != twin(*given, sampling)
    assert int(different.sum()) <= count // 50  # a uniform number next to a boundary


HELD = [Sampling(), Sampling(top_p=0.8), Sampling(temperature=0.7, top_p=0.9, keep_crossing=False)]


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("size", [100, 1000, 8262, 16_400, 30_000, 64_000, 65_529])
@pytest.mark.parametrize("sampling", HELD, ids=str)
@pytest.mark.parametrize("deviation", [0.3, 1.0, 3.0])
def test_rows_that_a_program_holds_have_a_kernel_that_draws_the_same(
    sampling: Sampling, size: int, deviation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any length, so that rows begin anywhere in 16 bytes; with a small nucleus and with one of most ids."""
    logits, low, high, uniform = rows("float32", 128, size, seed=size)
    given = on(DEVICE, ((logits * deviation / 3).bfloat16(), low, high, uniform))
    if not register_sampling.able(given[0].device):
        pytest.skip("this GPU has none")
    assert register_sampling.configure(given[0], sampling) is not None
    found = select._sample(*given, sampling)
    for _ in range(3):
        assert torch.equal(found, select._sample(*given, sampling))
    monkeypatch.setattr(register_sampling, "configure", lambda logits, sampling: None)
    for other in (select._sample(*given, sampling), twin(*given, sampling)):
        # A uniform number next to a boundary, of which thousands of ids as likely as each other have many.
        assert int((found != other).sum()) <= 12 and int(((found - other).abs() > 9).sum()) <= 3


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [333, 1000])
def test_rows_that_a_program_holds_are_drawn_by_the_rule(kind: str, size: int) -> None:
    for sampling in SAMPLINGS[1::2]:
        logits, low, high, uniform = on(DEVICE, rows(kind, 6, size, seed=size))
        drawn = select._sample(logits.bfloat16(), low, high, uniform, sampling).cpu()
        for row, start in enumerate(low.tolist()):
            ids = possible(logits[row, start : int(high[row])].bfloat16().cpu(), float(uniform[row]), sampling)
            assert min(ids) <= int(drawn[row]) - start <= max(ids), (row, sampling)


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("stride", [8192, 8193, 8194, 8198])
def test_rows_of_any_stride_and_beginning_are_held(stride: int) -> None:
    sampling, size, count = Sampling(top_p=0.8), 8096, 300
    _, low, high, uniform = on(DEVICE, rows("float32", count, size, seed=stride))
    memory = torch.randn(count * stride + 3, generator=torch.Generator().manual_seed(stride)).bfloat16().to(DEVICE)
    for start in (0, 1, 3):
        logits = memory[start : start + count * stride].view(count, stride)[:, :size]
        # A row alone begins with its first 16 bytes, so that its sums are of other ids.
        found, alone = (select._sample(one, low, high, uniform, sampling) for one in (logits, logits.contiguous()))
        assert int((found != alone).sum()) <= 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sampling", [SAMPLINGS[0], SAMPLINGS[7]], ids=str)
def test_tokens_are_drawn_into_their_places(sampling: Sampling, dtype: torch.dtype) -> None:
    """As a batch of rows would be: valid ids and random numbers are those of the place, and the rest stays."""
    batch, inputs, length, size = 2, 5, 40, 200
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, inputs, size, generator=generator).to(DEVICE, dtype)
    low, uniform = torch.randint(90, (length,), generator=generator), torch.rand(batch, length, generator=generator)
    ids, uniform = torch.stack([low, low + 100]).to(DEVICE), uniform.to(DEVICE)
    places = torch.tensor([3, 39, 0, 17, 8], device=DEVICE)
    tokens = torch.full((batch, length + 3), -7, device=DEVICE)[:, :length]  # a view, as a window's tokens are
    select.sample_into(tokens, logits, ids, uniform, places, sampling)
    first, end = ids[:, places].repeat(1, batch)
    wanted = select._sample(logits.flatten(0, 1), first, end, uniform[:, places].flatten(), sampling)
    assert torch.equal(tokens[:, places].flatten(), wanted)
    others = [place for place in range(length) if place not in places.tolist()]
    assert (tokens[:, others] == -7).all()


@pytest.mark.parametrize("guesses", [0, 1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sampling", [SAMPLINGS[8], SAMPLINGS[12]], ids=str)
@pytest.mark.skipif(CUDA, reason="compiled kernels keep their constants")
def test_the_search_ends_where_it_must_however_few_guesses_it_has(
    sampling: Sampling, dtype: torch.dtype, guesses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threshold is exact, so what is drawn cannot depend on the way to it."""
    logits, low, high, uniform = rows("float32", 4, 1000, seed=guesses)
    given = logits.to(dtype), low, high, uniform
    drawn = select._sample(*given, sampling)
    monkeypatch.setattr(kernels, "GUESSES", type(kernels.GUESSES)(guesses))
    assert torch.equal(select._sample(*given, sampling), drawn)


@pytest.mark.parametrize("size", [1, 2, 3, 17])
def test_rows_of_held_ids_are_drawn_by_the_rule(size: int) -> None:
    logits = torch.randn(6, size, generator=torch.Generator().manual_seed(size))
    given = logits, torch.zeros(6, dtype=torch.long), torch.full((6,), size), torch.linspace(0, 0.99, 6)
    for sampling in SAMPLINGS[::3]:
        assert torch.equal(select._sample(*on(DEVICE, given), sampling).cpu(), twin(*given, sampling))


def test_draws_follow_the_probabilities() -> None:
    """Within six standard deviations."""
    count = 10_000 if CUDA else 300
    logits = 2 * torch.randn(20, generator=torch.Generator().manual_seed(0))
    sampling = Sampling(temperature=1.5, top_p=0.9)
    low, high = torch.zeros(count, dtype=torch.long), torch.full((count,), 20)
    uniform = torch.rand(count, generator=torch.Generator().manual_seed(1))
    drawn = select._sample(*on(DEVICE, (logits.repeat(count, 1), low, high, uniform)), sampling).cpu()
    assert chi_square(drawn, probabilities(logits, sampling)) < 6


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
@pytest.mark.parametrize("sampling", SAMPLINGS[::4], ids=str)
def test_a_row_without_a_finite_logit_gives_no_id(sampling: Sampling, value: float) -> None:
    given = torch.full((2, 50), value), torch.tensor([0, 3]), torch.tensor([50, 40]), torch.tensor([0.0, 0.5])
    assert select._sample(*on(DEVICE, given), sampling).tolist() == [-1, -1]


def test_ids_that_do_not_lie_side_by_side_are_refused() -> None:
    ends = torch.zeros(2, dtype=torch.long), torch.full((2,), 9)
    with pytest.raises(ValueError, match="side by side"):
        select._sample(torch.zeros(9, 2).T, *ends, torch.zeros(2), Sampling())


@pytest.mark.skipif(not CUDA, reason="graphs need a CUDA device")
def test_the_kernel_runs_inside_a_cuda_graph() -> None:
    """Captured once, it reads new logits and numbers: no host sync, no size that depends on them."""
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
