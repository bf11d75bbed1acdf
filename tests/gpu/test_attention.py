"""The attention kernel against its twin in float64. Needs a GPU, or Triton's interpreter (TRITON_INTERPRET=1).

The interpreter multiplies bfloat16 as if its bits were whole numbers, so that type is tried on a GPU alone.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)

from diagonal.engine.kernels import tuning
from diagonal.engine.kernels.triton.split_kv import attend, tiling
from diagonal.engine.kernels.visibility import BLOCK, Visibility, attend_reference
from tests.caches import BOUND, NEVER, NOW, Shape, case, error, members, seats, seen_by
from tests.gpu import DEVICE

pytestmark = pytest.mark.gpu

CUDA = torch.cuda.is_available()
on_gpu = pytest.mark.skipif(not CUDA, reason="needs a GPU")

SHAPES: list[Shape] = [  # B, H, K, S, L, D
    (1, 8, 2, 1, 192, 128),  # one query: a tile that is mostly padding
    (2, 4, 4, 5, 128, 16),  # no grouping
    (1, 12, 4, 6, 448, 64),  # groups of 3: tiles cut through a query's group
    (1, 8, 2, 37, 192, 32),  # three tiles of 64 rows
    (3, 6, 2, 2, 64, 64),
]
REAL: list[Shape] = [  # Cosmos, MC-AR, WHAM, doom
    (1, 32, 8, 1, 12864, 128),
    (1, 32, 8, 120, 12864, 128),
    (1, 32, 4, 14, 5568, 64),
    (1, 18, 18, 18, 5568, 128),
    (64, 6, 2, 4, 3136, 64),
]


def _int32(number: int) -> Tensor:
    return torch.tensor([number], dtype=torch.int32, device=DEVICE)


def attended(qkv: tuple[Tensor, Tensor, Tensor], seen: Visibility, processors: int | None = None) -> Tensor:
    """The kernel with every new buffer filled with NaN, so that a place that no thread block writes shows."""
    if processors is None:
        processors = torch.cuda.get_device_properties(DEVICE).multi_processor_count if CUDA else 132
    torch.use_deterministic_algorithms(True)
    try:
        return attend(*qkv, seen, processors)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=on_gpu)])
@pytest.mark.parametrize("processors", [1, 9, 132])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_agrees_with_its_twin(shape: Shape, processors: int, dtype: torch.dtype) -> None:
    qkv, seen = case(shape, dtype)
    out = attended(qkv, seen, processors)
    assert out.dtype == dtype and out.transpose(1, 2).is_contiguous()
    assert error(out, qkv, seen) < BOUND[dtype]
    if shape[3] > 1:
        assert not out[:, :, -1].any()  # the padding row


SEATS: list[Shape] = [(1, 8, 2, 1, 192, 128), (3, 12, 4, 6, 448, 64), (4, 4, 1, 37, 192, 32), (5, 2, 2, 3, 64, 16)]


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=on_gpu)])
@pytest.mark.parametrize("processors", [1, 40])
@pytest.mark.parametrize("shape", SEATS, ids=str)
def test_samples_that_differ_are_attended_with_as_if_alone(shape: Shape, processors: int, dtype: torch.dtype) -> None:
    """Slots, holes, extents and rows of the cache of their own; other rows are no numbers."""
    qkv, seen = seats(shape, dtype)
    out = attended(qkv, seen, processors)
    for sample, (one, rule) in enumerate(members(qkv, seen)):
        assert error(out[sample : sample + 1], one, rule) < BOUND[dtype]
    if shape[3] > 1:
        assert not out[:, :, -1].any() and out[:, :, :-1].isfinite().all()


def test_rows_alone_may_differ() -> None:
    (q, k, v), seen = case((3, 8, 2, 5, 192, 32), torch.float32)
    wanted, rows = attended((q, k, v), seen, 9), torch.tensor([2, 0, 1], device=DEVICE)
    assert torch.equal(attended((q[rows], k, v), replace(seen, rows_B=rows), 9), wanted[rows])
    several = replace(seen, slots_S=seen.slots_S.repeat(3, 1), extent=seen.extent.repeat(3, 1))
    assert torch.equal(attended((q, k, v), several, 9), wanted)


@on_gpu
@pytest.mark.parametrize("shape", REAL, ids=str)
def test_the_kernel_agrees_with_its_twin_in_real_sizes(shape: Shape) -> None:
    qkv, seen = case(shape, torch.bfloat16)
    assert error(attended(qkv, seen), qkv, seen) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("written", [0, 1, 16, 17, 150])
def test_any_number_of_slots_is_shared_among_the_parts(written: int) -> None:
    (q, k, v), seen = case((1, 4, 2, 3, 192, 16), torch.float32)
    k, v = k.nan_to_num(0), v.nan_to_num(0)
    fed = torch.full_like(seen.needed_L, NEVER)
    fed[:written] = 0
    seen = seen_by(seen.slots_S.to(torch.int32).fill_(191), fed, NOW)
    out = attended((q, k, v), seen, processors=9)
    torch.testing.assert_close(out, attend_reference(q, k, v, seen), rtol=1e-5, atol=1e-5)
    assert bool(out.any()) == (written > 0)


@pytest.mark.parametrize("processors", [1, 9])
@pytest.mark.parametrize("whole", [0, 1, 2, 5])
def test_blocks_that_all_see_wholly_need_no_look_at_their_slots(whole: int, processors: int) -> None:
    """Of the five that are: any number of them may be named."""
    (q, k, v), _ = case((1, 4, 2, 3, 448, 16), torch.float32)
    fed = torch.full((448,), NEVER, dtype=torch.int32, device=DEVICE)
    fed[: 5 * BLOCK] = 0
    fed[5 * BLOCK : 5 * BLOCK + 9] = NOW
    slots = torch.tensor([5 * BLOCK - 1, 5 * BLOCK + 4, 447], device=DEVICE)
    seen = seen_by(slots, fed, NOW)
    assert (int(seen.whole), int(seen.extent)) == (5, 6)
    given = (q, k.nan_to_num(0), v.nan_to_num(0))
    out = attended(given, replace(seen, whole=_int32(whole)), processors)
    assert error(out, given, seen) < BOUND[torch.float32]


@on_gpu
def test_a_captured_graph_follows_the_step() -> None:
    (q, k, v), seen = case((1, 8, 2, 4, 320, 64), torch.bfloat16)
    qkv = (q, k.nan_to_num(0), v.nan_to_num(0))
    fed = torch.randint(0, 2 * NOW, (320,), device=DEVICE, dtype=torch.int32)
    attend(*qkv, seen, 132)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(*qkv, seen, 132)
    for step, highest in ((NOW, 100), (NOW - 6, 200), (NOW, 260)):
        seen.slots_S.random_(0, highest)
        now = seen_by(seen.slots_S, fed, step)
        for name in ("needed_L", "whole", "extent"):
            getattr(seen, name).copy_(getattr(now, name))
        graph.replay()
        assert error(out, qkv, seen) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("shape", REAL, ids=str)
@pytest.mark.parametrize("queries", [1, 3, 18, 120])
def test_one_or_two_programs_on_each_processor_fill_the_gpu(shape: Shape, queries: int) -> None:
    batch, heads, kv_heads, _, length, width = shape
    q = torch.empty(batch, heads, queries, width, dtype=torch.bfloat16, device="meta")
    k = torch.empty(batch, kv_heads, length, width, dtype=torch.bfloat16, device="meta")
    found, tuned = tiling(q, k, 132), tuning.HOPPER.split_kv
    rows = queries * heads // kv_heads
    programs = -(-rows // found.rows) * batch * kv_heads
    assert found.rows & (found.rows - 1) == 0 and 16 <= found.rows <= tuned.rows
    apart = length // BLOCK >= tuned.least_blocks * 2 * (132 // programs)
    room = 132 * (2 if apart else 1)
    assert found.splits == 1 or programs * found.splits <= room
    full = programs * (found.splits + 1) > room
    assert full or found.splits in (tuned.splits, length // BLOCK)


def test_what_the_kernel_would_read_wrongly_is_refused() -> None:
    (q, k, v), seen = case((1, 4, 2, 3, 64, 16), torch.float32)
    wide = replace(seen, needed_L=seen.needed_L.float())
    for given, message in [
        ((q, k[:, :, :-1], v, seen), "must be"),
        ((q, k[:, :, :40].contiguous(), v[:, :, :40].contiguous(), seen), "whole blocks"),
        ((q[:, :3], k, v, seen), "multiple of K"),
        ((q[..., :8].contiguous(), k[..., :8].contiguous(), v[..., :8].contiguous(), seen), "width 8"),
        ((q.half(), k, v, seen), "convert q"),
        ((q, k.transpose(2, 3).contiguous().transpose(2, 3), v, seen), "contiguous"),
        ((q[:, :, :2], k, v, seen), r"slots_S of \(3,\) given for 1 samples of 2 queries"),
        ((q, k, v, wide), "needed_L"),
        ((q, k, v, replace(seen, needed_L=seen.needed_L.repeat(2, 1))), r"needed_L of \(2, 64\)"),
        ((q, k, v, replace(seen, rows_B=seen.slots_S)), "rows_B"),
        ((q, k.repeat(2, 1, 1, 1), v.repeat(2, 1, 1, 1), seen), "must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            attend(*given, multiprocessors=1)
