"""What the kernel for attention on Hopper computes: on a CPU, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from diagonal.engine.kernels import hopper_attention, plain
from diagonal.engine.kernels.hopper_attention import Parts
from diagonal.engine.kernels.visibility import BLOCK, Visibility, whole_blocks
from tests.caches import BOUND, Shape, case, error
from tests.cuda_on_cpu import Machine
from tests.gpu import poisoned

Given = tuple[tuple[Tensor, Tensor, Tensor], Visibility]
CASES: list[tuple[Shape, int, int]] = [  # B, H, K, S, L, D; groups; parts
    ((1, 4, 2, 12, 1216, 128), 1, 1),  # a number of blocks that is odd
    ((2, 4, 2, 37, 704, 128), 2, 3),  # rows that end within a group
    ((1, 3, 1, 70, 896, 128), 3, 1),  # of three heads, more than one program has
    ((1, 4, 4, 5, 1216, 64), 1, 2),  # no heads share keys
    ((1, 8, 2, 21, 1216, 64), 2, 1),
    ((1, 12, 1, 14, 64, 64), 3, 2),  # one block
]


def given(shape: Shape) -> Given:
    """As a graph has them: queries side by side, numbers of 64 bits."""
    (q, k, v), seen = case(shape, torch.bfloat16, "cpu")
    return (q.contiguous(), k, v), replace(seen, whole=seen.whole.long(), extent=seen.extent.long())


def attended(machine: Machine, qkv: tuple[Tensor, Tensor, Tensor], seen: Visibility, count: int) -> Tensor:
    """With so many parts; with everything at once and with everything late, which is the same."""
    q, k, v = qkv
    batch, heads, queries, width = q.shape
    later = int(seen.whole) * BLOCK  # the step itself may write these
    machine.fresh = [q, *(head[later:] for cache in (k, v) for head in cache.flatten(0, 1) if later < len(head))]
    made = []
    for machine.late in (0, 1, 2):
        with poisoned():
            parts: Parts = (q.new_empty(batch, queries, heads, width), None, None)
            if count > 1:
                mixtures = torch.empty(count, batch, queries, heads, width, dtype=torch.float16)
                parts = (mixtures, torch.empty(mixtures.shape[:-1]), torch.empty(mixtures.shape[:-1]))
            hopper_attention.run(qkv, seen, parts)
        made.append(merged(*parts))
    assert torch.equal(made[0], made[1])
    return made[0].transpose(1, 2)


def merged(mixtures: Tensor, lse: Tensor | None, sizes: Tensor | None) -> Tensor:
    """The parts, weighted by the softmax of their log-sum-exps, -inf where a part saw nothing."""
    if lse is None or sizes is None:
        return mixtures
    weights = torch.exp2(lse - lse.max(0).values.clamp(min=-1e30))
    mixed = (mixtures.float() * (weights * sizes)[..., None]).sum(0) / weights.sum(0).clamp(min=1e-30)[..., None]
    return mixed.bfloat16()


@pytest.mark.parametrize(("shape", "groups", "count"), CASES, ids=str)
def test_the_kernel_agrees_with_its_twin(
    shape: Shape, groups: int, count: int, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hopper_attention, "groups", lambda rows: groups)
    qkv, seen = given(shape)
    out = attended(machine, qkv, seen, count)
    assert error(out, qkv, seen) < BOUND[torch.bfloat16]
    assert not out[:, :, -1].any()  # the padding row


def test_stages_are_used_again() -> None:
    """More than twice in these cases, of both widths: both parities of their barriers."""
    for shape, groups, count in (CASES[0], CASES[4]):
        found, extent = hopper_attention.Cut(shape[5], groups, count > 1), int(given(shape)[1].extent)
        assert extent * BLOCK // found.keys > 2 * found.stages


@pytest.mark.parametrize("whole", [0, 3, 9])
def test_blocks_that_all_see_need_not_be_said_to_be(whole: int, machine: Machine) -> None:
    """Looked at one by one or not, keys have the same weights."""
    (q, k, v), seen = given(CASES[0][0])
    slots = torch.randperm(200)[:12] + 9 * BLOCK  # all see nine blocks, which are written
    needed = torch.arange(1216, dtype=torch.int32)
    seen = Visibility(slots, needed, torch.full_like(seen.whole, whole), torch.full_like(seen.extent, 13))
    qkv = (q, k.nan_to_num(0), v.nan_to_num(0))
    assert error(attended(machine, qkv, seen, 1), qkv, seen) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("extent", [0, 5])
@pytest.mark.parametrize("count", [1, 3])
def test_nothing_written_is_nothing_seen(extent: int, count: int, machine: Machine) -> None:
    qkv, seen = given((2, 4, 2, 37, 704, 128))
    nothing = torch.full_like(seen.needed_L, torch.iinfo(torch.int32).max)
    seen = replace(seen, needed_L=nothing, whole=seen.whole * 0, extent=torch.full_like(seen.extent, extent))
    assert not attended(machine, qkv, seen, count).any()


PROMPTS: list[tuple[Shape, int]] = [  # and groups
    ((1, 4, 2, 12, 1216, 128), 1),
    ((1, 6, 2, 130, 192, 64), 2),  # tiles with several heads
    ((2, 4, 1, 200, 256, 128), 3),
    ((1, 2, 2, 700, 704, 64), 1),  # stages are used again
    ((1, 1, 1, 1, 64, 64), 1),
]


@pytest.mark.parametrize(("shape", "groups"), PROMPTS, ids=str)
def test_inputs_of_a_prompt_see_themselves_and_those_before_them(
    shape: Shape, groups: int, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies in blocks behind the prompt is nobody's business, even if it is no number."""
    monkeypatch.setattr(hopper_attention, "groups", lambda rows: groups)
    torch.manual_seed(0)
    batch, heads, kv_heads, queries, length, width = shape
    q, (k, v) = torch.randn(batch, heads, queries, width), torch.randn(2, batch, kv_heads, length, width)
    q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
    k[:, :, whole_blocks(queries) :] = v[:, :, whole_blocks(queries) :] = torch.nan
    wanted = plain.prompt(q.double(), k.double(), v.double())
    machine.fresh = [q, k, v]
    for machine.late in (False, True):
        with poisoned():
            out = hopper_attention.prompt(q, k, v)
        assert (out.double() - wanted).abs().max() < BOUND[torch.bfloat16] * wanted.abs().max()
