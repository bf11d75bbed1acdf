"""Attention of decoding steps on Hopper against float64, and against the kernel that it takes the place of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from diagonal import Grid, Layout, make_plan
from diagonal.engine.heads import Heads
from diagonal.engine.kernels.cuda import nvrtc
from diagonal.engine.tokens.graphs import _blocks_seen, _fed_blocks

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != nvrtc.HOPPER:
    pytest.skip("no Hopper GPU", allow_module_level=True)

from diagonal.engine.kernels import reference, select, tuning
from diagonal.engine.kernels.cuda import hopper_attention
from diagonal.engine.kernels.triton import split_kv
from diagonal.engine.kernels.visibility import BLOCK, NOWHERE, Visibility
from tests.caches import BOUND, Given, Shape, case, error, members, rising, seats
from tests.gpu import poisoned

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    """Kernels have none."""
    with torch.no_grad():
        yield


SHAPES: list[Shape] = [  # B, H, K, S, L, D
    (1, 32, 8, 48, 1216, 128),  # a number of blocks that is odd
    (1, 32, 8, 96, 2560, 128),
    (2, 8, 2, 37, 704, 128),  # rows that end within a group
    (1, 12, 4, 64, 448, 128),  # groups of three heads
    (1, 4, 1, 120, 64, 128),  # one block
    (1, 8, 1, 2, 320, 128),  # as many heads as can share keys
    (1, 32, 8, 72, 1216, 128),  # five blocks of rows
    (1, 8, 8, 2, 640, 128),  # few rows
    (1, 32, 4, 14, 1216, 64),  # narrow heads
    (2, 18, 18, 21, 704, 64),  # no heads share keys
]
REAL: list[Shape] = [
    (1, 32, 8, 40, 12864, 128),
    (1, 32, 8, 64, 12864, 128),
    (1, 32, 8, 72, 12864, 128),
    (1, 32, 8, 120, 12864, 128),
    (1, 32, 4, 14, 5248, 64),
]

SEATS: list[Shape] = [
    (5, 32, 8, 12, 1216, 128),
    (3, 8, 2, 37, 704, 128),
    (4, 12, 4, 64, 448, 128),
    (8, 6, 2, 12, 1216, 64),
]
PROMPTS: list[Shape] = [
    (1, 18, 18, 300, 640, 128),
    (1, 32, 4, 347, 1216, 64),
    (2, 8, 2, 130, 256, 128),
    (1, 4, 4, 1, 64, 64),
    (1, 8, 8, 1000, 1216, 128),
]


def _given(shape: Shape) -> Given:
    return _as_in_graphs(*case(shape, torch.bfloat16))


def _as_in_graphs(qkv: tuple[Tensor, Tensor, Tensor], seen: Visibility) -> Given:
    """Queries side by side, numbers of 64 bits."""
    made = (qkv[0].contiguous(), *qkv[1:]), replace(seen, whole=seen.whole.long(), extent=seen.extent.long())
    torch.cuda.synchronize()  # keys that all see are read before the kernel before has ended
    return made


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other kernel may help."""

    def refuse(*given: object) -> None:
        raise AssertionError("the other kernel was asked")

    monkeypatch.setattr(split_kv, "_attend", refuse)


def attended(qkv: tuple[Tensor, Tensor, Tensor], seen: Visibility) -> Tensor:
    """The kernel with every new buffer filled with NaN, so that a place that no thread block writes shows."""
    with poisoned():
        return select.decode_attention(*qkv, seen)


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("processors", [1, 9, 132])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_agrees_with_its_twin(
    shape: Shape, processors: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hopper_attention, "GROUPS", (groups,))
    monkeypatch.setattr(select, "_multiprocessors", lambda device: processors)
    qkv, seen = _given(shape)
    out = attended(qkv, seen)
    assert out.dtype == torch.bfloat16 and out.transpose(1, 2).is_contiguous()
    assert error(out, qkv, seen) < BOUND[torch.bfloat16]
    assert not out[:, :, -1].any()  # the padding row


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("processors", [1, 132])
@pytest.mark.parametrize(
    "shape",
    [(5, 32, 8, 12, 1216, 128), (3, 8, 2, 37, 704, 128), (4, 12, 4, 64, 448, 128), (8, 6, 2, 12, 1216, 64)],
    ids=str,
)
def test_samples_that_differ_are_attended_with_as_if_alone(
    shape: Shape, processors: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots, holes, extents and rows of the cache of their own; other rows are no numbers."""
    monkeypatch.setattr(hopper_attention, "GROUPS", (groups,))
    monkeypatch.setattr(select, "_multiprocessors", lambda device: processors)
    qkv, seen = _as_in_graphs(*seats(shape, torch.bfloat16))
    out = attended(qkv, seen)
    for sample, (one, rule) in enumerate(members(qkv, seen)):
        assert error(out[sample : sample + 1], one, rule) < BOUND[torch.bfloat16]
    assert not out[:, :, -1].any() and out.isfinite().all()


@pytest.mark.parametrize("width", [64, 128])
def test_samples_see_what_their_step_writes_itself(width: int) -> None:
    """Attention begins while the kernel that writes keys into rows and slots of their own runs."""
    torch.manual_seed(0)
    batch, inputs, length = 5, 12, 1216
    rows = torch.randperm(batch + 2, device="cuda")[:batch]
    first = torch.tensor([100, 1000, 64, 640, 300], device="cuda")
    slots = first[:, None] + torch.arange(inputs, device="cuda")
    needed = torch.arange(length, device="cuda", dtype=torch.int32).repeat(batch, 1)
    needed[needed >= first[:, None] + inputs] = NOWHERE
    seen = Visibility(slots, needed, first[:, None] // BLOCK, (first[:, None] + inputs + BLOCK - 1) // BLOCK, rows)
    cache = torch.randn(2, batch + 2, 2, length, width, device="cuda").bfloat16()
    heads = Heads(10 * torch.randn(batch, inputs, 10 * width, device="cuda").bfloat16(), 2, width)

    def step(k: Tensor, v: Tensor) -> Tensor:
        return select.decode_attention(select.write_heads(heads, k, v, slots, rows), k, v, seen)

    wanted, found = cache.clone(), cache.clone()
    reference.write_heads(heads, wanted[0], wanted[1], slots, rows)
    torch.cuda.synchronize()
    last = step(wanted[0], wanted[1])  # which writes what is there
    for sample, (one, rule) in enumerate(members((heads.split()[0], wanted[0], wanted[1]), seen)):
        assert error(last[sample : sample + 1], one, rule) < BOUND[torch.bfloat16]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(found[0], found[1])
    for _ in range(20):
        found.copy_(cache)
        torch.cuda.synchronize()
        graph.replay()
        assert torch.equal(last, captured)


@pytest.mark.parametrize("shape", REAL, ids=str)
@pytest.mark.parametrize("ordered", [False, True])
def test_true_sizes_agree_too(shape: Shape, ordered: bool) -> None:
    """Queries in the order of their slots, as plans have them, or in any."""
    qkv, seen = _given(shape)
    if ordered:
        seen = replace(seen, slots_S=torch.cat([seen.slots_S[:-1].sort().values, seen.slots_S[-1:]]))
    assert error(attended(qkv, seen), qkv, seen) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[3], REAL[-1]], ids=str)
def test_scores_may_grow_from_round_to_round(shape: Shape) -> None:
    (q, k, v), seen = _given(shape)
    qkv = (q, rising(k), v)
    torch.cuda.synchronize()
    assert error(attended(qkv, seen), qkv, seen) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("whole", [0, 3, 9])
def test_blocks_that_all_see_need_not_be_said_to_be(whole: int) -> None:
    """Looked at one by one or not, keys have the same weights."""
    (q, k, v), seen = _given((1, 32, 8, 48, 1216, 128))
    slots = torch.randperm(200, device="cuda")[:48] + 9 * BLOCK  # all see nine blocks, which are written
    needed = torch.arange(1216, device="cuda", dtype=torch.int32)
    seen = Visibility(slots, needed, torch.full_like(seen.whole, whole), torch.full_like(seen.extent, 13))
    k[:], v[:] = k.nan_to_num(0), v.nan_to_num(0)
    torch.cuda.synchronize()
    assert error(attended((q, k, v), seen), (q, k, v), seen) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("least", [575, 576, 600])
def test_a_step_sees_what_it_writes_itself(least: int, width: int) -> None:
    """Attention begins while the kernel that writes the step's own keys runs: those it must not have read before."""
    torch.manual_seed(0)
    length, inputs = 1216, 16
    plan = make_plan(Layout(Grid(length, 1, 1), 0, 0), "raster", least)
    whole, extent = _blocks_seen(*_fed_blocks(plan), 1, least)
    slots = torch.arange(least, least + inputs, device="cuda")
    needed = torch.arange(length, device="cuda", dtype=torch.int32)
    needed[least + inputs :] = NOWHERE
    numbers = (torch.tensor([number], device="cuda") for number in (whole, extent + 1))
    seen = Visibility(slots, needed, *numbers)
    cache = torch.randn(2, 1, 8, length, width, device="cuda").bfloat16()
    heads = Heads(10 * torch.randn(1, inputs, 48 * width, device="cuda").bfloat16(), 8, width)

    def step(k: Tensor, v: Tensor) -> Tensor:
        return select.decode_attention(select.write_heads(heads, k, v, slots), k, v, seen)

    wanted, found = cache.clone(), cache.clone()
    select.write_heads(heads, wanted[0], wanted[1], slots)
    torch.cuda.synchronize()
    last = step(wanted[0], wanted[1])  # which writes what is there
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(found[0], found[1])
    for _ in range(20):
        found.copy_(cache)
        torch.cuda.synchronize()
        graph.replay()
        assert torch.equal(last, captured)


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("shape", PROMPTS, ids=str)
def test_prompts_agree_with_float64(shape: Shape, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies behind a prompt's last slot in its cache is nobody's business, even if it is no number."""
    monkeypatch.setattr(tuning.HOPPER.hopper_attention, "prefill_groups", groups)
    torch.manual_seed(0)
    batch, heads, kv_heads, queries, length, width = shape
    q = torch.randn(batch, heads, queries, width, device="cuda").bfloat16()
    k, v = torch.randn(2, batch, kv_heads, length, width, device="cuda").bfloat16()
    k[:, :, queries + BLOCK :], v[:, :, queries + BLOCK :] = torch.nan, torch.nan
    with poisoned():
        found = hopper_attention.prefill(q, k, v)
    wanted = reference.prefill_attention(q.double(), k.double(), v.double())
    assert found.shape == wanted.shape and found.transpose(1, 2).is_contiguous()
    assert (found.double() - wanted).abs().max() < BOUND[torch.bfloat16] * wanted.abs().max()


def test_nothing_written_is_nothing_seen() -> None:
    qkv, seen = _given((1, 32, 8, 48, 1216, 128))
    nothing = replace(seen, needed_L=torch.full_like(seen.needed_L, torch.iinfo(torch.int32).max))
    for extent in (0, int(seen.extent)):
        there = replace(nothing, whole=torch.zeros_like(seen.whole), extent=torch.full_like(seen.extent, extent))
        assert not attended(qkv, there).any()


@pytest.mark.parametrize("shape", [(1, 32, 8, 96, 2560, 128), (1, 32, 4, 14, 5248, 64)], ids=str)
def test_it_gives_the_same_each_time_and_in_a_graph(shape: Shape) -> None:
    qkv, seen = _given(shape)
    first = select.decode_attention(*qkv, seen)
    assert all(torch.equal(first, select.decode_attention(*qkv, seen)) for _ in range(20))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = select.decode_attention(*qkv, seen)
    for _ in range(20):
        graph.replay()
        assert torch.equal(first, captured)


def test_what_it_is_not_made_for_is_left_to_others() -> None:
    (q, k, v), seen = _given((1, 32, 8, 48, 1216, 128))
    assert hopper_attention.supports_step(q, k, v, seen)
    assert not hopper_attention.supports_step(q.transpose(1, 2).contiguous().transpose(1, 2), k, v, seen)
    assert not hopper_attention.supports_step(q.half(), k.half(), v.half(), seen)
    assert not hopper_attention.supports_step(
        q[..., :32].contiguous(), k[..., :32].contiguous(), v[..., :32].contiguous(), seen
    )
    assert not hopper_attention.supports_step(q, k, v, replace(seen, extent=seen.extent.int()))
    assert not hopper_attention.supports_step(
        q, k[:, :1].contiguous(), v[:, :1].contiguous(), seen
    )  # 32 heads share keys
