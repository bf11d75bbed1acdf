"""What the kernel for attention on Hopper computes: on a CPU, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from diagonal.engine.kernels import reference, tuning
from diagonal.engine.kernels.cuda import hopper_attention
from diagonal.engine.kernels.cuda.hopper_attention import Splits, WorkSplit, row_tiles
from diagonal.engine.kernels.visibility import BLOCK, Visibility, whole_blocks
from tests.caches import BOUND, Given, Shape, case, error, members, reduced, rising, seats, splits_for
from tests.cuda_on_cpu import Machine
from tests.gpu import poisoned

CASES: list[tuple[Shape, int, tuple[int, int]]] = [  # B, H, K, S, L, D; tiles; splits of the first ones, and of others
    ((1, 4, 2, 12, 1216, 128), 1, (1, 1)),  # an odd number of rounds
    ((1, 4, 2, 12, 1216, 128), 1, (2, 2)),  # two thread blocks on a multiprocessor
    ((2, 4, 2, 37, 704, 128), 1, (3, 3)),  # queries that end within a block
    ((1, 3, 1, 75, 896, 128), 2, (1, 1)),  # three heads, in blocks that are not full
    ((1, 4, 1, 70, 704, 128), 2, (5, 2)),  # five blocks: tiles of three and of two
    ((1, 4, 1, 70, 704, 128), 3, (2, 1)),  # and of two and one
    ((1, 4, 4, 5, 1216, 64), 1, (2, 2)),  # no heads share keys
    ((1, 8, 2, 21, 1216, 64), 1, (1, 1)),
    ((1, 8, 1, 14, 64, 64), 1, (2, 2)),  # one round, and a part that has none
]


def given(shape: Shape) -> Given:
    return as_in_graphs(*case(shape, torch.bfloat16, "cpu"))


def as_in_graphs(qkv: tuple[Tensor, Tensor, Tensor], seen: Visibility) -> Given:
    """Queries side by side, numbers of 64 bits."""
    return (qkv[0].contiguous(), *qkv[1:]), replace(seen, whole=seen.whole.long(), extent=seen.extent.long())


def attended(machine: Machine, qkv: tuple[Tensor, Tensor, Tensor], seen: Visibility, work: WorkSplit) -> Tensor:
    """With everything at once and with everything late, which is the same."""
    machine.fresh = [qkv[0], seen.needed_L]
    for (_, *caches), rule in members(qkv, seen):
        later = int(rule.whole) * BLOCK  # the step itself may write these
        machine.fresh += [head[later:] for cache in caches for head in cache.flatten(0, 1) if later < len(head)]
    made = []
    for machine.late in (0, 1, 2):
        with poisoned():
            splits = splits_for(qkv[0], work)
            hopper_attention.run(qkv, seen, splits, work)
        made.append(reduced(*splits))
    assert torch.equal(made[0], made[1])
    return made[0].transpose(1, 2)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("shape", "tiles", "splits"), CASES, ids=str)
def test_the_kernel_agrees_with_its_twin(
    shape: Shape, tiles: int, splits: tuple[int, int], ordered: bool, machine: Machine
) -> None:
    """Queries in the order of their slots, as plans have them, or in any."""
    qkv, seen = given(shape)
    if ordered:
        seen = replace(seen, slots_S=torch.cat([seen.slots_S[:-1].sort().values, seen.slots_S[-1:]]))
    out = attended(machine, qkv, seen, WorkSplit(row_tiles(*qkv[:2]), tiles, *splits))
    assert error(out, qkv, seen) < BOUND[torch.bfloat16]
    assert not out[:, :, -1].any()  # the padding row


SEATS: list[tuple[Shape, int, tuple[int, int]]] = [
    ((3, 4, 2, 12, 1216, 128), 1, (1, 1)),
    ((4, 4, 2, 5, 704, 128), 1, (3, 3)),
    ((2, 4, 1, 70, 704, 128), 2, (5, 2)),
    ((3, 4, 4, 5, 1216, 64), 1, (2, 2)),
]


@pytest.mark.parametrize(("shape", "tiles", "splits"), SEATS, ids=str)
def test_samples_that_differ_are_attended_with_as_if_alone(
    shape: Shape, tiles: int, splits: tuple[int, int], machine: Machine
) -> None:
    """Slots, holes, extents and rows of the cache of their own; other rows are no numbers."""
    qkv, seen = as_in_graphs(*seats(shape, torch.bfloat16, "cpu"))
    out = attended(machine, qkv, seen, WorkSplit(row_tiles(*qkv[:2]), tiles, *splits))
    for sample, (one, rule) in enumerate(members(qkv, seen)):
        assert error(out[sample : sample + 1], one, rule) < BOUND[torch.bfloat16]
    assert not out[:, :, -1].any() and out.isfinite().all()


@pytest.mark.parametrize("chosen", range(16))
def test_what_samples_share_need_not_be_said_for_each(chosen: int, machine: Machine) -> None:
    """Any of slots, needed ones and counts may have a dimension for samples, or not."""
    (q, k, v), seen = given((2, 4, 2, 9, 704, 128))
    work = WorkSplit(1, 1, 2, 2)
    wanted = attended(machine, (q, k, v), seen, work)
    names = ("slots_S", "needed_L", "whole", "extent")
    several = {name: torch.stack([getattr(seen, name)] * 2) for bit, name in enumerate(names) if chosen & (1 << bit)}
    rows = torch.tensor([1, 0])
    rule = replace(seen, **several, rows_B=rows)
    assert torch.equal(attended(machine, (q[rows], k, v), rule, work), wanted[rows])


def test_stages_are_used_again() -> None:
    """More than twice in these cases, of both widths: both parities of their barriers."""
    for (shape, tiles, (splits, _)), paired in ((CASES[0], False), (CASES[1], True), (CASES[7], False)):
        (q, k, _), seen = given(shape)
        groups = WorkSplit(row_tiles(q, k), tiles).groups
        found = hopper_attention.KernelConfig(shape[5], q.shape[1] // k.shape[1], groups, SPLIT_KV=splits > 1)
        assert found.paired == paired and int(seen.extent) * BLOCK // (found.keys * splits) > 2 * found.stages


def test_rounds_that_a_block_does_not_see_are_passed_over(machine: Machine) -> None:
    """Those behind it and those in which nothing is written: what lies there is not multiplied with, or the result
    would be no number."""
    q, (k, v) = torch.randn(1, 4, 32, 128).bfloat16(), torch.randn(2, 1, 1, 1280, 128).bfloat16()
    slots = torch.cat([torch.arange(100, 116), torch.arange(1000, 1016)])  # two blocks of rows
    needed = torch.arange(1280, dtype=torch.int32)
    needed[512:768], needed[1016:] = torch.iinfo(torch.int32).max, torch.iinfo(torch.int32).max
    seen = Visibility(slots, needed, torch.tensor([1]), torch.tensor([16]))
    k[:, :, 512:768] = v[:, :, 512:768] = torch.nan
    qkv, work = (q, k, v), WorkSplit(2, 1)
    out = attended(machine, qkv, seen, work)
    assert error(out, qkv, seen) < BOUND[torch.bfloat16]
    v[:, :, 768:] = torch.nan  # which the second block of rows sees
    out_BSHD = torch.empty_like(out.transpose(1, 2))
    hopper_attention.run(qkv, seen, Splits(out_BSHD), work)
    assert not out_BSHD[:, :16].isnan().any() and out_BSHD[:, 16:].isnan().all()


@pytest.mark.parametrize("case", [1, 2, 4, 7], ids=lambda case: str(CASES[case]))
def test_scores_may_grow_from_round_to_round(case: int, machine: Machine) -> None:
    """What was mixed before is rescaled then: far from everywhere, as scores of most rounds are not so much greater."""
    shape, tiles, splits = CASES[case]
    (q, k, v), seen = given(shape)
    qkv = (q, rising(k), v)
    out = attended(machine, qkv, seen, WorkSplit(row_tiles(q, k), tiles, *splits))
    assert error(out, qkv, seen) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("whole", [0, 3, 9])
def test_blocks_that_all_see_need_not_be_said_to_be(whole: int, machine: Machine) -> None:
    """Looked at one by one or not, keys have the same weights."""
    (q, k, v), seen = given(CASES[0][0])
    slots = torch.randperm(200)[:12] + 9 * BLOCK  # all see nine blocks, which are written
    needed = torch.arange(1216, dtype=torch.int32)
    seen = Visibility(slots, needed, torch.full_like(seen.whole, whole), torch.full_like(seen.extent, 13))
    qkv = (q, k.nan_to_num(0), v.nan_to_num(0))
    assert error(attended(machine, qkv, seen, WorkSplit(1, 1)), qkv, seen) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("extent", [0, 5])
@pytest.mark.parametrize("splits", [1, 3])
def test_nothing_written_is_nothing_seen(extent: int, splits: int, machine: Machine) -> None:
    qkv, seen = given((2, 4, 2, 37, 704, 128))
    nothing = torch.full_like(seen.needed_L, torch.iinfo(torch.int32).max)
    seen = replace(seen, needed_L=nothing, whole=seen.whole * 0, extent=torch.full_like(seen.extent, extent))
    assert not attended(machine, qkv, seen, WorkSplit(row_tiles(*qkv[:2]), 1, splits)).any()


PROMPTS: list[tuple[Shape, int]] = [  # and groups
    ((1, 4, 2, 12, 1216, 128), 1),
    ((1, 6, 2, 130, 192, 64), 2),  # blocks that are not full
    ((2, 4, 1, 200, 256, 128), 3),
    ((1, 2, 2, 700, 704, 64), 1),  # stages are used again
    ((1, 1, 1, 1, 64, 64), 1),
]


@pytest.mark.parametrize(("shape", "groups"), PROMPTS, ids=str)
def test_inputs_of_a_prompt_see_themselves_and_those_before_them(
    shape: Shape, groups: int, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies in blocks behind the prompt is nobody's business, even if it is no number."""
    monkeypatch.setattr(tuning.HOPPER.hopper_attention, "prefill_groups", groups)
    torch.manual_seed(0)
    batch, heads, kv_heads, queries, length, width = shape
    q, (k, v) = torch.randn(batch, heads, queries, width), torch.randn(2, batch, kv_heads, length, width)
    q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
    k[:, :, whole_blocks(queries) :] = v[:, :, whole_blocks(queries) :] = torch.nan
    wanted = reference.prefill_attention(q.double(), k.double(), v.double())
    machine.fresh = [q, k, v]
    for machine.late in (False, True):
        with poisoned():
            out = hopper_attention.prefill(q, k, v)
        assert (out.double() - wanted).abs().max() < BOUND[torch.bfloat16] * wanted.abs().max()
