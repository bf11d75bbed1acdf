"""The C++ library for a CPU against float64: linear layers, heads, attention, and sampling."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from diagonal.checkpoints.int8 import int8_rows
from diagonal.engine.heads import HeadNorm, Heads
from diagonal.engine.kernels import reference, select
from diagonal.engine.kernels.cpu import attention, library, linear, packing
from diagonal.engine.kernels.targets import Targets
from diagonal.engine.kernels.visibility import BLOCK, NOWHERE, Visibility, attend_reference
from diagonal.engine.linear import Activation, DeferredLinear, FusedLinear, Norm
from diagonal.engine.sampler import sample, sample_into
from diagonal.models.layers import rope_1d
from diagonal.planning.sampling import Sampling
from tests.reference_sampling import KINDS, SAMPLINGS, check, rows

pytestmark = pytest.mark.skipif(not library.available(), reason="needs a C++ compiler")

DTYPES = [torch.float32, torch.bfloat16]
SHAPES = [(640, 384), (100, 37), (2, 5), (96, 300)]
LIMITS = {torch.float32: 3e-6, torch.bfloat16: 2e-2}


def _close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Equal, up to the rounding of a dtype, to what float64 gives."""
    assert found.dtype == dtype and found.shape == expected.shape
    error = (found.double() - expected).abs().max() / expected.abs().max().clamp(min=1)
    assert error < LIMITS[dtype]


def _weight(rows: int, depth: int, dtype: torch.dtype, whole: bool) -> Tensor:
    """A random matrix; `whole`: rows of int8 numbers times a scale, one of which is all zeros."""
    made: Tensor = torch.randn(rows, depth) / depth**0.5
    if whole:
        numbers, scale = int8_rows(made)
        numbers[0] = 0
        made.copy_(numbers.float() * scale.half().float()[:, None])
    return made.to(dtype)


def _layer(weight: Tensor, tokens: int, act: Activation, centred: bool) -> tuple[Tensor, FusedLinear]:
    (rows, depth), dtype = weight.shape, weight.dtype
    norm = Norm(torch.randn(depth).to(dtype), torch.randn(depth).to(dtype) if centred else None, 1e-5, centred)
    out = rows // 2 if act == "silu" else rows
    given = (torch.randn(one).to(dtype) for one in ((1, tokens, depth), (rows,), (1, tokens, out)))
    x, bias, residual = given
    return x, FusedLinear(weight, bias, norm, act, residual)


def _expected(x: Tensor, asked: FusedLinear) -> Tensor:
    """The layer in float64."""
    y, norm, bias = x.double(), asked.norm, asked.bias_N
    if norm is not None:
        gain, shift = (None if one is None else one.double() for one in (norm.weight, norm.bias))
        normed = F.layer_norm if norm.centred else lambda x, shape, w, b, eps: F.rms_norm(x, shape, w, eps)
        y = normed(y, y.shape[-1:], gain, shift, norm.eps)
    y = F.linear(y, asked.weight_NK.double(), None if bias is None else bias.double())
    y = y if asked.act is None else reference.silu_mul(y) if asked.act == "silu" else reference.gelu(y)
    return y if asked.residual is None else asked.residual.double() + y


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("act", [None, "silu", "gelu"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_linear_layers_are_their_equation(
    dtype: torch.dtype, act: Activation, whole: bool, shape: tuple[int, int]
) -> None:
    torch.manual_seed(1)
    weight = _weight(*shape, dtype, whole)
    stored = "int8" if whole and dtype == torch.float32 else str(dtype).removeprefix("torch.")
    for tokens in (1, 2, 3, 6, 7, 13, 14, 15, *(() if dtype == torch.bfloat16 else (29, 130))):
        x, full = _layer(weight, tokens, act, centred=bool(tokens % 2))
        plain = replace(full, norm=None, bias_N=None)
        for asked in (full, plain, replace(full, residual=None), replace(full, norm=None)):
            with torch.no_grad(), select.recorded() as chosen:
                found = select.linear(x, asked)
            assert list(chosen.values()) == [f"C++, {stored}"]
            _close(found, _expected(x, asked), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_layers_are_their_equation(dtype: torch.dtype) -> None:
    torch.manual_seed(8)
    numbers, scale = int8_rows(torch.randn(96, 40))
    x, bias, residual = (torch.randn(one).to(dtype) for one in ((2, 3, 40), (96,), (2, 3, 96)))
    weight = torch.nn.Parameter(numbers, requires_grad=False)
    for factor in (1, 2):
        scale.mul_(factor)
        with torch.no_grad(), select.recorded() as chosen:
            found = select.int8_linear(x, weight, scale, bias, residual)
        assert list(chosen.values()) == ["C++, int8"]
        exact = numbers.double() * scale.double()[:, None]
        _close(found, residual.double() + F.linear(x.double(), exact, bias.double()), dtype)


def test_tokens_do_not_notice_each_other() -> None:
    torch.manual_seed(2)
    for act in (None, "silu"):
        x, asked = _layer(_weight(96, 300, torch.float32, True), 200, act, centred=False)
        asked = replace(asked, residual=None)
        with torch.no_grad():
            together = select.linear(x, asked)
            for tokens in (1, 5, 7, 15, 113):
                assert torch.equal(select.linear(x[:, :tokens], asked), together[:, :tokens])


def test_threads_give_what_one_gives() -> None:
    torch.manual_seed(3)
    x, asked = _layer(_weight(640, 384, torch.float32, True), 9, None, centred=False)
    q, (k, v), seen = torch.randn(1, 6, 9, 64), torch.randn(2, 1, 2, 1280, 64), _seen(1280, 1, 9)
    with torch.no_grad():
        one = select.linear(x, asked), select.decode_attention(q, k, v, seen)
        try:
            torch.set_num_threads(3)
            three = [(select.linear(x, asked), select.decode_attention(q, k, v, seen)) for _ in range(50)]
        finally:
            torch.set_num_threads(1)
    assert all(torch.equal(a, b) for again in three for a, b in zip(again, one, strict=True))


def test_weights_that_change_are_packed_anew() -> None:
    torch.manual_seed(4)
    weight = torch.nn.Parameter(_weight(64, 32, torch.float32, True))
    x, asked = torch.randn(1, 3, 32), FusedLinear(weight, residual=torch.zeros(1, 3, 64))

    def check() -> None:
        with torch.inference_mode():
            _close(select.linear(x, asked), _expected(x, asked), torch.float32)

    check()
    x_before = x.clone().requires_grad_()
    F.linear(x_before, weight).square().sum().backward()
    torch.optim.AdamW([weight], lr=0.1).step()
    check()
    with torch.inference_mode():
        weight.mul_(-2)
    check()
    weight.data = torch.randn(64, 32)
    check()


def test_packed_weights_go_with_their_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    before = packing.packed_bytes()
    weight, x, zero = _weight(64, 32, torch.float32, False), torch.randn(1, 1, 32), torch.zeros(1, 1, 64)
    with torch.no_grad():
        select.linear(x, FusedLinear(weight, residual=zero))
        assert packing.packed_bytes() >= before + weight.nbytes
        del weight
        assert packing.packed_bytes() == before
        monkeypatch.setattr(packing, "MOST", before)
        with select.recorded() as chosen:
            select.linear(x, FusedLinear(_weight(64, 32, torch.float32, False), residual=zero))
    assert list(chosen.values()) == [select.TORCH]


def test_gradients_and_other_numbers_are_left_to_pytorch() -> None:
    weight, x, zero = torch.randn(8, 4, requires_grad=True), torch.randn(1, 2, 4), torch.zeros(1, 2, 8)
    with select.recorded() as chosen:
        select.linear(x, FusedLinear(weight, residual=zero)).sum().backward()
        with torch.no_grad():
            select.linear(x, FusedLinear(weight))
            select.linear(x.double(), FusedLinear(weight.double(), residual=zero.double()))
            select.linear(x, FusedLinear(weight, residual=zero.double()))
            select.linear(torch.randn(1, 2000, 4), FusedLinear(weight, residual=torch.zeros(1, 2000, 8)))
            with torch.autocast("cpu", torch.bfloat16):
                select.linear(x, FusedLinear(weight, residual=zero))
        with torch.inference_mode():
            select.linear(x, FusedLinear(weight * 1, residual=zero))
    assert set(chosen.values()) == {select.TORCH}
    assert weight.grad is not None


def _seen(length: int, least: int, queries: int) -> Visibility:
    """Random slots, of which a fifth are not written yet; `least`: blocks that are wholly written."""
    slots = torch.randperm(length - BLOCK * least)[:queries] + BLOCK * least
    unwritten = torch.rand(length) < 0.2
    unwritten[: BLOCK * least] = False
    needed = torch.arange(length).masked_fill(unwritten, NOWHERE)
    return Visibility(slots, needed, torch.tensor([least]), torch.tensor([-(-length // BLOCK)]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cached", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "queries", "width", "length"),
    [(6, 2, 12, 64, 1000), (6, 2, 1, 64, 2000), (4, 2, 5, 16, 70), (8, 1, 9, 128, 700), (4, 4, 20, 80, 130)],
)
def test_attention_reads_what_is_seen(
    dtype: torch.dtype, cached: torch.dtype, heads: int, kv_heads: int, queries: int, width: int, length: int
) -> None:
    torch.manual_seed(5)
    room = -(-length // BLOCK) * BLOCK
    k, v = torch.randn(2, 2, kv_heads, room, width).to(cached)
    q = torch.randn(2, queries, heads, width).to(dtype).transpose(1, 2)
    for least in (0, 1):
        seen = _seen(length, least, queries)
        with torch.no_grad(), select.recorded() as chosen:
            found = select.decode_attention(q, k, v, seen)
        assert list(chosen.values()) == [select.CPU]
        _close(found, attend_reference(q.double(), k[:, :, :length].double(), v[:, :, :length].double(), seen), dtype)


def test_attention_looks_at_nothing_that_is_not_seen() -> None:
    """Padding rows see nothing and are zeros; what lies beyond the extent, or is seen by none, may be anything."""
    torch.manual_seed(6)
    k, v, q = torch.randn(1, 2, 320, 64), torch.randn(1, 2, 320, 64), torch.randn(1, 4, 3, 64)
    needed = torch.arange(320, dtype=torch.int32)
    needed[70:128] = NOWHERE
    seen = Visibility(torch.tensor([150, -1, 40]), needed, torch.tensor([0]), torch.tensor([3]))
    with torch.no_grad():
        expected = attend_reference(q, k, v, seen)
        k[:, :, 192:], v[:, :, 192:] = torch.nan, torch.nan
        k[:, :, 160:], v[:, :, 160:] = torch.nan, torch.nan  # behind all queries
        found = select.decode_attention(q, k, v, seen)
    _close(found, expected.double(), torch.float32)
    assert found[:, :, 1].abs().max() == 0


def test_who_sees_nothing_gets_zeros() -> None:
    k, q = torch.randn(1, 1, 64, 16), torch.randn(1, 1, 2, 16)
    nothing = torch.full((64,), NOWHERE, dtype=torch.int32)
    for extent in (0, 1):
        seen = Visibility(torch.tensor([3, 4]), nothing, torch.tensor([0]), torch.tensor([extent]))
        with torch.no_grad():
            assert select.decode_attention(q, k, k, seen).abs().max() == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cached", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_heads_are_written(dtype: torch.dtype, cached: torch.dtype, normed: bool, deferred: bool, turned: bool) -> None:
    torch.manual_seed(7)
    slots, width = torch.tensor([7, 0, 63]), 32
    x, layer = _layer(_weight((4 + 2 + 2) * width, 48, dtype, True), 6, None, centred=False)
    x, layer = x.view(2, 3, 48), replace(layer, residual=None)
    weights = (1 + 0.3 * torch.randn(2, width)).to(dtype)
    norm = HeadNorm(weights[0], weights[1], 1e-5) if normed else None
    rope = rope_1d(slots, width, 10000.0) if turned else None
    source = DeferredLinear(x, layer, select.linear) if deferred else torch.randn(2, 3, 8 * width).to(dtype)
    before = torch.randn(2, 2, 2, 64, width).to(cached)
    (k, v), expected = before.clone(), before.clone()
    with torch.no_grad(), select.recorded() as chosen:
        heads = Heads(source, 2, width, rope, norm)
        found = select.write_heads(heads, k, v, slots)
        q = reference.write_heads(heads, expected[0], expected[1], slots)
    assert select.CPU in chosen.values()
    _close(found, q.double(), dtype)
    limit = 5e-2 if torch.bfloat16 in (dtype, cached) else 1e-5
    torch.testing.assert_close(torch.stack([k, v]).float(), expected.float(), rtol=limit, atol=limit)
    others = [slot for slot in range(64) if slot not in slots]
    assert torch.equal(torch.stack([k, v])[:, :, :, others], before[:, :, :, others])


def test_samples_may_differ() -> None:
    """Slots, what is seen, rotations and rows of the cache: each sample gets what it gets alone."""
    torch.manual_seed(9)
    k, v = torch.randn(2, 4, 2, 320, 32)
    rows, width = torch.tensor([2, 0, 3]), 32
    parts = [_seen(length, least, 5) for length, least in ((300, 0), (200, 1), (150, 2))]
    needed = [torch.cat([one.needed_L, torch.full((320 - len(one.needed_L),), NOWHERE)]) for one in parts]
    slots = torch.stack([one.slots_S for one in parts])
    seen = Visibility(
        slots,
        torch.stack(needed),
        torch.stack([one.whole for one in parts]),
        torch.stack([one.extent for one in parts]),
        rows,
    )
    qkv = torch.randn(3, 5, (4 + 2 + 2) * width)
    cos, sin = (torch.stack([rope_1d(one, width, 1e4)[i] for one in slots]) for i in range(2))
    with torch.no_grad():
        caches = k.clone(), v.clone()
        q = linear.run_heads(Heads(qkv, 2, width, (cos, sin)), *caches, slots, None, rows)
        found = attention.attend(q, *caches, seen)
        for b, row in enumerate(rows.tolist()):
            own = [one[row : row + 1].clone() for one in (k, v)]
            heads = Heads(qkv[b : b + 1], 2, width, (cos[b], sin[b]))
            alone = reference.write_heads(heads, own[0], own[1], slots[b])
            torch.testing.assert_close(q[b : b + 1], alone)
            for one, cache in zip(own, caches, strict=True):
                torch.testing.assert_close(cache[row], one[0])
            read = [one[:, :, : len(parts[b].needed_L)].double() for one in own]
            _close(found[b : b + 1], attend_reference(alone.double(), read[0], read[1], parts[b]), torch.float32)
    assert torch.equal(caches[0][1], k[1]) and torch.equal(caches[1][1], v[1])


@pytest.mark.parametrize("size", [200, 700])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_ids_are_drawn_by_the_rule(sampling: Sampling, kind: str, size: int) -> None:
    draw = select.sampler(torch.device("cpu"))
    assert draw is not None
    check(draw, kind, sampling, size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sampling", [SAMPLINGS[0], SAMPLINGS[8], SAMPLINGS[12]], ids=str)
def test_ids_are_those_of_the_twin(sampling: Sampling, dtype: torch.dtype) -> None:
    given = rows("float32", 64, 8262, seed=3)
    given = given._replace(logits=given.logits.to(dtype))
    draw = select.sampler(torch.device("cpu"))
    assert draw is not None
    # In float32 two scores may be as good as equal.
    assert (draw(*given, sampling) != sample(*given, sampling)).sum() <= 1


@pytest.mark.parametrize("apart", [False, True])
def test_tokens_are_drawn_into_their_places(apart: bool) -> None:
    logits, noise = torch.randn(3, 4, 50), torch.Generator().manual_seed(1)
    slots = torch.stack([torch.randperm(20, generator=noise)[:4] for _ in range(3)])
    rows_B = torch.tensor([4, 0, 2]) if apart else None
    ids_2L = torch.stack([torch.arange(20), torch.arange(20) + 25])
    targets = Targets(slots if apart else slots[0], slots + 7, torch.arange(3), ids_2L, rows_B)
    found, wanted = torch.full((2, 5, 20), -7)
    select.sample_into(found, logits, targets, Sampling(top_p=0.9))
    sample_into(wanted, logits, targets, Sampling(top_p=0.9))
    assert torch.equal(found, wanted) and (found == -7).sum() == 100 - 12


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
@pytest.mark.parametrize("sampling", SAMPLINGS[::4], ids=str)
def test_a_row_without_a_finite_logit_gives_no_id(sampling: Sampling, value: float) -> None:
    given = rows("float32", 4, 200, seed=0)
    given.logits[2] = value
    draw = select.sampler(torch.device("cpu"))
    assert draw is not None
    assert (draw(*given, sampling) == -1).tolist() == [False, False, True, False]
