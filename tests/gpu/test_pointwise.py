"""The small kernels against their references and float64; other slots of the cache stay as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from diagonal.engine.heads import HeadNorm, Heads
from diagonal.engine.kernels import reference
from diagonal.engine.kernels.live import LiveWindow
from diagonal.models.layers import rope_1d
from diagonal.planning.plan import NEVER
from tests.gpu import BFLOAT16, DEVICE, RUNNABLE, poisoned
from tests.live import Ring, frame_of, random_rows, step_tensors

pytest.importorskip("triton")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not RUNNABLE, reason="no CUDA device, no TRITON_INTERPRET=1")]

LENGTH = 13
SHAPES = [(1, 1, 1, 1, 16), (2, 3, 6, 2, 16), (1, 5, 32, 4, 64), (2, 2, 9, 3, 128)]  # B, S, H, K, D
DTYPES = [torch.float32, torch.bfloat16]


def _kernels() -> Any:
    from diagonal.engine.kernels.triton import pointwise

    return pointwise


def _step_kernels() -> Any:
    from diagonal.engine.kernels.triton import decode_step

    return decode_step


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


@pytest.mark.parametrize("width", [16, 48, 1024, 2304])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norms_and_activations_agree_with_float64(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(width)
    x, weight, bias = _random(2, 3, width, dtype=dtype), 1 + 0.3 * _random(width), _random(width)
    weight, bias = weight.to(dtype), bias.to(dtype)
    kernels, bound = _kernels(), 2e-6 if dtype == torch.float32 else 3 * BFLOAT16
    cases = [
        ("rms_norm", (x, weight, 1e-5), (x.double(), weight.double(), 1e-5)),
        ("layer_norm", (x, weight, bias, 1e-5), (x.double(), weight.double(), bias.double(), 1e-5)),
        ("layer_norm", (x, None, None, 1e-5), (x.double(), None, None, 1e-5)),
        ("silu_mul", (x,), (x.double(),)),
        ("gelu", (x,), (x.double(),)),
        ("norm_silu", (x, weight, 1e-6), (x.double(), weight.double(), 1e-6)),
        ("norm_silu", (x, weight, 1e-6, bias), (x.double(), weight.double(), 1e-6, bias.double())),
        ("add_bias", (x, bias, x), (x.double(), bias.double(), x.double())),
    ]
    for name, given, exact in cases:
        with poisoned():
            found = getattr(kernels, name)(*given)
        wanted = getattr(reference, name)(*exact)
        assert found.dtype == dtype and found.shape == wanted.shape
        assert (found.double() - wanted).abs().max() <= bound * wanted.abs().max(), name


@pytest.mark.parametrize(("offset", "bound"), [(0, 3e-6), (-30, 3e-6), (1e4, 2e-3)])
def test_a_layer_norm_of_numbers_far_from_zero_is_as_good(offset: float, bound: float) -> None:
    """But for the digits that the numbers themselves have lost."""
    x = _random(5, 2304) + offset
    found, wanted = _kernels().layer_norm(x, None, None, 1e-5), reference.layer_norm(x.double(), None, None, 1e-5)
    assert (found.double() - wanted).abs().max() <= bound * wanted.abs().max()


@pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter rounds otherwise")
def test_a_norm_rounds_as_its_reference() -> None:
    x, weight = _random(7, 1024, dtype=torch.bfloat16), _random(1024, dtype=torch.bfloat16)
    found, wanted = _kernels().rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5)
    assert (found == wanted).float().mean() > 0.99


@pytest.mark.parametrize("size", [1, 100, 3000])
def test_steps_are_taken_one_after_the_other(size: int) -> None:
    """Each with the tokens at the places that it begins with, and the slots that its queries need."""
    fed = torch.randint(0, 20, (size,), device=DEVICE, dtype=torch.int32)
    fed[::7] = NEVER
    rows, steps = torch.arange(60, device=DEVICE).view(4, 15), torch.tensor([0, 7, 19, 30], device=DEVICE)
    rows[:, -1] = steps
    cursor = torch.zeros(2, dtype=torch.long, device=DEVICE)
    tokens = torch.randint(1000, (3, 70), device=DEVICE)
    for number in range(4):
        with poisoned():
            row, read, needed = _step_kernels().next_step(rows, cursor, fed, tokens[:, :61], 4)
        assert torch.equal(row, rows[number]) and cursor.tolist() == [number + 1, 0]
        assert torch.equal(read, tokens[:, rows[number, :4]])
        wanted = reference.needed_slots(fed, steps[number])
        assert needed.dtype == wanted.dtype and torch.equal(needed, wanted)


@pytest.mark.parametrize("width", [1, 64, 2304])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_are_taken_from_tables(width: int, dtype: torch.dtype) -> None:
    tables, ids = _random(2, 50, width, dtype=dtype), torch.tensor([3, 49, 0, -1, 3], device=DEVICE)
    with poisoned():
        found = _step_kernels().gather_rows(tables, ids)
    assert torch.equal(found, reference.gather_rows(tables, ids))
    outside = _step_kernels().gather_rows(tables, torch.tensor([7, 50, -51], device=DEVICE))
    assert torch.equal(outside[:, 0], tables[:, 7]) and outside[:, 1:].isnan().all()


@pytest.mark.parametrize("shape", [(1,), (2, 33), (3, 700)], ids=str)
@pytest.mark.parametrize("width", [16, 96, 128])
def test_positions_are_rotations_however_far_they_are(shape: tuple[int, ...], width: int) -> None:
    positions = torch.randint(10**9, shape, device=DEVICE) // 10 ** torch.randint(9, shape, device=DEVICE)
    with poisoned():
        found = _step_kernels().rope_1d(positions, width, 10000.0)
    for one, wanted in zip(found, reference.rope_1d(positions, width, 10000.0), strict=True):
        assert one.shape == (*shape, width)
        assert (one - wanted).abs().max() < 1e-6


def _heads(shape: tuple[int, ...], normed: bool, dtype: torch.dtype) -> tuple[Heads, Tensor, Tensor]:
    batch, inputs, heads, kv_heads, width = shape
    torch.manual_seed(sum(shape))
    slots = torch.randperm(LENGTH, device=DEVICE)[:inputs]
    gains = (1 + 0.3 * _random(2, width)).to(dtype)
    norm = HeadNorm(gains[0], gains[1], 1e-5) if normed else None
    qkv = _random(batch, inputs, (heads + 2 * kv_heads) * width, dtype=dtype)
    cache = _random(2, batch, kv_heads, LENGTH, width, dtype=dtype)
    return Heads(qkv, kv_heads, width, rope_1d(slots, width, 10000.0), norm), cache, slots


def _run(heads: Heads, cache: Tensor, slots: Tensor, rows: Tensor | None = None) -> Tensor:
    with poisoned():
        found: Tensor = _step_kernels().write_heads(heads, cache[0], cache[1], slots, rows, False)
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_heads_are_written_as_by_the_reference(
    shape: tuple[int, ...], normed: bool, turned: bool, dtype: torch.dtype
) -> None:
    heads, cache, slots = _heads(shape, normed, dtype)
    if not turned:
        heads = Heads(heads.qkv(), heads.kv_heads, heads.head_dim, None, heads.norm)
    wanted_cache = cache.clone()
    wanted = reference.write_heads(heads, wanted_cache[0], wanted_cache[1], slots)
    found = _run(heads, cache, slots)
    bound = 2e-6 if dtype == torch.float32 else BFLOAT16 * (4 if normed else 2)
    assert found.shape == wanted.shape and found.dtype == dtype
    assert (found - wanted).abs().max() <= bound * wanted.abs().max()
    assert (cache[0] - wanted_cache[0]).abs().max() <= bound * wanted_cache[0].abs().max()
    assert torch.equal(cache[1], wanted_cache[1])
    others = [slot for slot in range(LENGTH) if slot not in slots.tolist()]
    assert torch.equal(cache[0][:, :, others], wanted_cache[0][:, :, others])


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 6, 2, 16), (3, 5, 4, 4, 32)], ids=str)
def test_samples_have_slots_and_cache_rows_of_their_own(shape: tuple[int, ...], several: bool, permuted: bool) -> None:
    heads, cache, slots = _heads(shape, True, torch.float32)
    batch, inputs, _, _, width = shape
    slots = torch.stack([torch.randperm(LENGTH, device=DEVICE)[:inputs] for _ in range(batch)]) if several else slots
    rows = torch.randperm(batch + 2, device=DEVICE)[:batch] if permuted else None
    cache = torch.cat([cache, cache[:, :2]], 1) if permuted else cache
    heads = Heads(heads.qkv(), heads.kv_heads, width, rope_1d(slots, width, 10000.0), heads.norm)
    wanted_cache = cache.clone()
    wanted = reference.write_heads(heads, wanted_cache[0], wanted_cache[1], slots, rows)
    found = _run(heads, cache, slots, rows)
    assert (found - wanted).abs().max() <= 2e-6 * wanted.abs().max()
    assert (cache[0] - wanted_cache[0]).abs().max() <= 2e-6 * wanted_cache[0].abs().max()
    assert torch.equal(cache[1], wanted_cache[1])


RINGS = [Ring(0, 6, 30), Ring(5, 40, 4), Ring(70, 64, 40), Ring(3, 13, 1), Ring(0, 1, 64)]


@pytest.mark.parametrize("ring", RINGS, ids=str)
@pytest.mark.parametrize(("batch", "inputs"), [(1, 1), (5, 12)])
def test_steps_are_taken_in_the_rings_of_all_samples(ring: Ring, batch: int, inputs: int) -> None:
    """The same tensors as the reference gives."""
    from diagonal.engine.kernels.triton.live_step import live_step

    torch.manual_seed(ring.unit)
    frame, rows = frame_of(ring, batch, DEVICE), random_rows(ring, inputs).to(DEVICE)
    tokens = torch.randint(1000, (batch + 4, frame.unused + 2), device=DEVICE)[:, : frame.unused + 1]
    cursor, others = torch.zeros(2, 2, dtype=torch.long, device=DEVICE)
    for number in range(len(rows)):
        with poisoned():
            found = live_step(rows, cursor, frame, tokens, inputs)
        assert cursor.tolist() == [number + 1, 0]
        wanted = reference.live_step(rows, others, frame, tokens, inputs)
        for one, other in zip(step_tensors(found), step_tensors(wanted), strict=True):
            assert one.dtype == other.dtype and torch.equal(one, other)


@pytest.mark.parametrize("ring", RINGS, ids=str)
@pytest.mark.parametrize(("batch", "inputs"), [(2, 1), (5, 12)])
def test_windows_are_fed_and_settled_in_the_rings_of_all_samples(ring: Ring, batch: int, inputs: int) -> None:
    """The same tensors as the reference gives, and the same windows afterwards."""
    from diagonal.engine.kernels.triton.live_window import live_window, settle

    torch.manual_seed(ring.unit)
    frame, last = frame_of(ring, batch, DEVICE), max(ring.unit - 2, 0)
    tokens = torch.randint(3, (batch + 4, frame.unused + 2), device=DEVICE)[:, : frame.unused + 1]
    next_B = torch.randint(-min(2, ring.unit), last + 1, (batch,), device=DEVICE)
    windows = [LiveWindow(next_B.clone(), first, last) for first in (0, -1) for _ in range(2)]
    for window, other in (windows[:2], windows[2:]):
        with poisoned():
            found = live_window(frame, window, tokens, inputs)
        wanted = reference.live_window(frame, other, tokens, inputs)
        for one, two in zip(step_tensors(found), step_tensors(wanted), strict=True):
            assert one.dtype == two.dtype and torch.equal(one, two)
        tokens[frame.rows_B[:, None], wanted.write_BS] = torch.randint(3, wanted.write_BS.shape, device=DEVICE)
        settle(frame, window, found, tokens)
        reference.settle(frame, other, wanted, tokens)
        assert torch.equal(window.next_B, other.next_B)


def test_tables_and_tokens_of_other_shapes_are_refused() -> None:
    from diagonal.engine.kernels.triton.live_step import live_step

    ring = Ring(5, 40, 4)
    frame, rows = frame_of(ring, 2, DEVICE), random_rows(ring, 3).to(DEVICE)
    cursor, tokens = rows.new_zeros(2), rows.new_zeros(4, frame.unused + 1)
    with pytest.raises(ValueError, match="steps of 2 inputs are contiguous rows of 7"):
        live_step(rows, cursor, frame, tokens, 2)
    with pytest.raises(ValueError, match="and one more"):
        live_step(rows, cursor, frame, tokens[:, 1:], 3)


def test_a_cache_of_another_dtype_gets_the_rounded_values() -> None:
    heads, cache, slots = _heads((2, 3, 4, 2, 16), False, torch.bfloat16)
    wide = cache.float()
    _run(heads, cache, slots)
    _run(heads, wide, slots.int())
    assert torch.equal(wide, cache.float())


def test_what_the_kernel_cannot_read_is_refused() -> None:
    heads, cache, slots = _heads((2, 3, 4, 2, 16), False, torch.float32)
    assert heads.rope is not None
    short = Heads(heads.qkv(), 2, 16, (heads.rope[0][:2], heads.rope[1]))
    with pytest.raises(ValueError, match=r"cos: shape \(2, 16\) given"):
        _run(short, cache, slots)
    with pytest.raises(ValueError, match="contiguous"):
        _run(heads, cache.transpose(-1, -2).contiguous().transpose(-1, -2), slots)
    with pytest.raises(ValueError, match="3 whole numbers are needed"):
        _run(heads, cache, slots.float())
    with pytest.raises(ValueError, match="rows: "):
        _run(heads, cache, slots, slots)
    with pytest.raises(ValueError, match="powers of two"):
        _run(Heads(_random(2, 3, 8 * 12), 2, 12), _random(2, 2, 2, LENGTH, 12), slots)
