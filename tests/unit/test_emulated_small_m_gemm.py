"""What the small-M GEMM computes: on a CPU, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from diagonal.engine.heads import Heads
from diagonal.engine.kernels import reference, select
from diagonal.engine.kernels.cuda import small_m_gemm
from diagonal.engine.kernels.select import linear as make
from diagonal.engine.linear import DeferredLinear, FusedLinear
from diagonal.models.layers import rope_1d
from tests.cuda_on_cpu import Machine
from tests.gpu import poisoned
from tests.linears import NEAREST, check_linear, double, random, random_linear, usual

Case = tuple[str, int, int, int, int]  # kind, tokens, rows, depth, processors
CASES: list[Case] = [
    ("plain", 1, 40, 128, 4),
    ("plain", 14, 200, 256, 8),
    ("rms", 8, 40, 512, 2),
    ("rms", 14, 64, 768, 2),
    ("layer", 14, 200, 512, 4),
    ("scaled layer", 1, 72, 256, 4),
    ("affine", 8, 200, 1024, 8),
    ("silu", 14, 256, 128, 4),
    ("gelu", 8, 200, 128, 2),
    ("bias", 1, 203, 512, 4),  # rows that are no whole tiles
    ("residual", 14, 136, 128, 4),
    ("biased residual", 8, 64, 256, 2),
    ("rms silu bias", 14, 96, 512, 2),
]


def asked_for(case: Case) -> tuple[FusedLinear, small_m_gemm.KernelConfig]:
    kind, tokens, rows, depth, processors = case
    linear = random_linear(kind, tokens, rows, depth, "cpu")
    if "scaled" in kind and linear.norm is not None:
        linear = replace(linear, norm=replace(linear.norm, weight=1 + random(depth, scale=0.3, device="cpu")))
    found = small_m_gemm.configure(tokens, linear, processors)
    assert found is not None
    return linear, found


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_agree_with_float64(case: Case, late: bool, machine: Machine) -> None:
    torch.manual_seed(0)
    linear, found = asked_for(case)
    x = random(case[1], case[3], device="cpu") + 0.5
    own = linear if linear.residual is None else replace(linear, residual=linear.residual.clone())
    machine.processors, machine.late = case[4], late
    machine.fresh = [x] if own.residual is None else [x, own.residual]
    with poisoned():
        check_linear(small_m_gemm.run(x, own, found), x, linear)


@pytest.mark.parametrize(("tokens", "kind"), [(8, "layer"), (1, "affine"), (14, "affine gelu")])
@pytest.mark.parametrize("mean", [-3.0, 3.0])
def test_a_mean_that_is_larger_than_what_differs_from_it_is_taken_away(
    tokens: int, kind: str, mean: float, machine: Machine
) -> None:
    """It is part of all sums until the end."""
    torch.manual_seed(1)
    case = (kind, tokens, 128, 512, 4)
    linear, found = asked_for(case)
    x = random(tokens, 512, device="cpu") + mean
    machine.processors, machine.fresh = 4, [x]
    check_linear(small_m_gemm.run(x, linear, found), x, linear)


def test_layer_norms_leave_two_rows_free() -> None:
    linear = random_linear("layer", 16, 128, 512, "cpu")
    assert [small_m_gemm.configure(tokens, linear, 4) is None for tokens in (8, 9, 14, 15, 16)] == [False] * 3 + [
        True
    ] * 2
    assert small_m_gemm.configure(16, random_linear("rms", 16, 128, 512, "cpu"), 4) is not None


def test_these_are_all_kinds_of_configurations() -> None:
    found = [asked_for(case)[1] for case in CASES]
    assert {(one.TILES, one.HALVES) for one in found} == {(1, 1), (1, 2), (2, 1), (2, 2)}
    assert {(one.NORM, one.GAIN, one.SHIFT) for one in found if one.NORM} == {
        (1, True, False),
        (2, False, False),
        (2, True, False),
        (2, True, True),
    }
    outputs = [small_m_gemm.SIDE * one.HALVES * one.columns / (32 * one.WARPS) for one in found]
    assert min(outputs) < 0.5 < max(outputs) == 1  # threads for each: two and some more, or one
    assert {one.K // (one.WARPS * small_m_gemm.CHUNK) for one in found} == {1, 2}
    turns = [-(-case[2] // (small_m_gemm.SIDE * one.TILES * case[4])) for case, one in zip(CASES, found, strict=True)]
    assert min(turns) == 1 and max(turns) > 2  # tiles of a thread block


@pytest.mark.parametrize(
    ("kind", "batch", "inputs", "width", "heads", "kv_heads", "head"),
    [
        ("rms", 1, 1, 512, 3, 1, 16),
        ("rms", 2, 7, 256, 4, 2, 64),
        ("affine bias", 1, 14, 512, 2, 2, 32),
        ("rms bias", 1, 8, 128, 1, 1, 128),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_heads_are_made_rotated_and_written(
    kind: str, batch: int, inputs: int, width: int, heads: int, kv_heads: int, head: int, late: bool, machine: Machine
) -> None:
    torch.manual_seed(inputs)
    length, x = 50, random(batch, inputs, width, device="cpu")
    linear = random_linear(kind, inputs, (heads + 2 * kv_heads) * head, width, "cpu")
    slots = torch.randperm(length)[:inputs]
    rope = rope_1d(slots, head, 10000.0) if "rms" in kind else None
    asked = Heads(DeferredLinear(x, linear, make), kv_heads, head, rope)
    caches = random(2, batch, kv_heads, length, head, device="cpu")
    found = caches.clone()
    config = select.small_m_heads(asked, found[0], found[1], slots)
    assert config is not None and (head, rope is not None) == (config.HEAD, config.ROPE)
    machine.late, machine.fresh = late, [x, found[0], found[1]]
    with poisoned():
        q = small_m_gemm.run_heads(asked, found[0], found[1], slots, None, config)
    others = caches.double()
    wanted = reference.write_heads(
        replace(asked, source=usual(x.double(), double(linear))), others[0], others[1], slots
    )
    pairs: list[tuple[Tensor, Tensor]] = [(q, wanted), (found, others)]
    for one, other in pairs:
        assert (one.double() - other).abs().max() <= 4 * NEAREST * other.abs().max()
    left = [slot for slot in range(length) if slot not in slots.tolist()]
    assert torch.equal(found[:, :, :, left], caches[:, :, :, left])


@pytest.mark.parametrize(("batch", "inputs", "turned"), [(4, 2, True), (3, 5, True), (2, 7, False), (5, 1, True)])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("permuted", [False, True])
def test_samples_have_slots_and_cache_rows_of_their_own(
    batch: int, inputs: int, turned: bool, several: bool, permuted: bool, machine: Machine
) -> None:
    torch.manual_seed(inputs)
    length, rows, x = 50, batch + 3, random(batch, inputs, 256, device="cpu")
    linear = random_linear("rms", batch * inputs, 6 * 32, 256, "cpu")
    slots = torch.stack([torch.randperm(length)[:inputs] for _ in range(batch)]) if several else torch.arange(inputs)
    own = torch.randperm(rows)[:batch] if permuted else None
    rope = rope_1d(slots, 32, 10000.0) if turned else None
    asked = Heads(DeferredLinear(x, linear, make), 2, 32, rope)
    caches = random(2, rows if permuted else batch, 2, length, 32, device="cpu")
    found = caches.clone()
    config = select.small_m_heads(asked, found[0], found[1], slots, own)
    assert config is not None
    machine.fresh = [x, found[0], found[1], slots]
    with poisoned():
        q = small_m_gemm.run_heads(asked, found[0], found[1], slots, own, config)
    others = caches.double()
    source = usual(x.double(), double(linear))
    wanted = reference.write_heads(replace(asked, source=source), others[0], others[1], slots, own)
    pairs: list[tuple[Tensor, Tensor]] = [(q, wanted), (found, others)]
    for one, other in pairs:
        assert (one.double() - other).abs().max() <= 4 * NEAREST * other.abs().max()
    written = torch.zeros(caches.shape[1:4], dtype=torch.bool)
    written[(torch.arange(batch) if own is None else own)[:, None], :, slots] = True
    assert torch.equal(found[:, ~written], caches[:, ~written])


def test_rows_and_slots_of_other_shapes_are_left_to_others(machine: Machine) -> None:
    x, linear = random(2, 3, 256, device="cpu"), random_linear("rms", 6, 6 * 32, 256, "cpu")
    slots, cache = torch.arange(3), random(2, 2, 50, 32, device="cpu")
    asked = Heads(DeferredLinear(x, linear, make), 2, 32, rope_1d(slots, 32, 10000.0))
    several = replace(asked, rope=rope_1d(slots.repeat(2, 1), 32, 10000.0))
    rows = torch.tensor([1, 0])
    for heads in (asked, several):
        for one in (slots, slots.repeat(2, 1)):
            assert select.small_m_heads(heads, cache, cache, one) is not None
            assert select.small_m_heads(heads, cache, cache, one, rows) is not None
            assert select.small_m_heads(heads, cache, cache, one, rows.int()) is None
            assert select.small_m_heads(heads, cache[:1], cache[:1], one) is None
        assert select.small_m_heads(heads, cache, cache, slots.repeat(3, 1)) is None
