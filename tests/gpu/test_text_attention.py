"""Attention to a text without its padding, against plain attention to all of its rows in float64.

The interpreter multiplies bfloat16 as if its bits were whole numbers, so that type is tried on a GPU alone.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from diagonal.engine.kernels import tuning
from tests.gpu import BFLOAT16, DEVICE, RUNNABLE, poisoned

pytest.importorskip("triton")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not RUNNABLE, reason="no CUDA device, no TRITON_INTERPRET=1")]

LENGTH = 160
COUNTS = [0, 1, 2, 63, 64, 65, LENGTH - 1, LENGTH]
DTYPES = [torch.float32, *([torch.bfloat16, torch.float16] if DEVICE == "cuda" else [])]
# Weights of the softmax are rounded as well, each for itself.
BOUNDS = {torch.float32: 3e-6, torch.bfloat16: 2 * BFLOAT16, torch.float16: 2e-3}

Shape = tuple[int, int, int, int]  # B, H, S, D


def _case(shape: Shape, dtype: torch.dtype, counts: list[int], length: int = LENGTH) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, and the keys and values of texts that are all alike from their counts on."""
    batch, heads, queries, width = shape
    noise = torch.Generator(DEVICE).manual_seed(sum(shape))
    sizes = [(batch, queries, heads, width), *2 * [(len(counts), length, heads, width)]]
    q, k, v = (torch.randn(*size, generator=noise, device=DEVICE).to(dtype).transpose(1, 2) for size in sizes)
    for index, count in enumerate(counts):
        for part in (k, v):
            part[index, :, count:] = part[index, :, count : count + 1].clone()
    return 2 * q, k, v


def _exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q.double() @ k.double().transpose(2, 3) / q.shape[3] ** 0.5
    mixed: Tensor = scores.softmax(-1) @ v.double()
    return mixed


def _rows(counts: list[int], dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(counts, device=DEVICE, dtype=dtype)


def _hidden(k: Tensor, v: Tensor, counts: list[int]) -> None:
    """Whatever lies behind the first padding row must not matter."""
    for index, count in enumerate(counts):
        k[index, :, count + 1 :] = v[index, :, count + 1 :] = torch.nan


def _check(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    assert found.shape == wanted.shape and found.dtype == dtype
    assert found.transpose(1, 2).is_contiguous()
    assert (found.double() - wanted).abs().max() <= BOUNDS[dtype] * wanted.abs().max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("keys", [16, 64])
def test_one_key_stands_for_all_padding(
    keys: int, count: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diagonal.engine.kernels.triton import text_attention

    for name in ("keys", "exact_keys"):
        monkeypatch.setattr(tuning.HOPPER.text_attention, name, keys)
    q, k, v = _case((1, 2, 130, 64), dtype, [count])
    wanted = _exact(q, k, v)
    _hidden(k, v, [count])
    with poisoned():
        found = text_attention.attend_text(q, k, v, _rows([count]))
    _check(found, wanted, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [16, 32, 64, 128])
@pytest.mark.parametrize(("queries", "length"), [(1, 3), (128, 64), (129, 16), (257, 100)])
def test_any_shape(queries: int, length: int, width: int, dtype: torch.dtype) -> None:
    from diagonal.engine.kernels.triton.text_attention import attend_text

    q, k, v = _case((1, 3, queries, width), dtype, [length // 2], length)
    wanted = _exact(q, k, v)
    _hidden(k, v, [length // 2])
    with poisoned():
        found = attend_text(q, k, v, _rows([length // 2], torch.int32))
    _check(found, wanted, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("counts", [[70, 5], [LENGTH, 0]], ids=str)
def test_texts_of_a_batch_have_their_own_ends(counts: list[int], dtype: torch.dtype) -> None:
    from diagonal.engine.kernels.triton.text_attention import attend_text

    q, k, v = _case((2, 3, 67, 128), dtype, counts)
    wanted = _exact(q, k, v)
    _hidden(k, v, counts)
    with poisoned():
        found = attend_text(q, k, v, _rows(counts))
    _check(found, wanted, dtype)
    for index, count in enumerate(counts):  # and what a text gives does not depend on its company
        alone = attend_text(q[index, None], k[index, None], v[index, None], _rows([count]))
        assert torch.equal(alone[0], found[index])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_text_may_serve_all_videos(dtype: torch.dtype) -> None:
    from diagonal.engine.kernels.triton.text_attention import attend_text

    q, k, v = _case((3, 2, 40, 64), dtype, [90])
    wanted = _exact(q, k, v)
    k, v, rows = k.expand(3, -1, -1, -1), v.expand(3, -1, -1, -1), _rows([90])
    for given in (rows, rows.expand(3)):
        with poisoned():
            found = attend_text(q, k, v, given)
        _check(found, wanted, dtype)


def test_other_layouts_of_keys_and_values_are_read_as_they_are() -> None:
    """Values are half of a wider matrix, as a model makes them; keys are contiguous."""
    from diagonal.engine.kernels.triton.text_attention import attend_text

    q, k, v = _case((1, 2, 20, 64), torch.float32, [33])
    wide = torch.cat([torch.full_like(v, torch.nan), v], 1).transpose(1, 2).contiguous()
    with poisoned():
        found = attend_text(q.contiguous(), k.contiguous(), wide.transpose(1, 2)[:, 2:], _rows([33]))
    _check(found, _exact(q, k, v), torch.float32)


def test_what_the_kernel_would_read_wrongly_is_refused() -> None:
    from diagonal.engine.kernels.triton.text_attention import attend_text

    q, k, v = _case((2, 2, 4, 64), torch.float32, [5, 6], 16)
    rows = _rows([5, 6])
    with pytest.raises(ValueError, match=r"must be \(B, H, S, D\) and twice"):
        attend_text(q, k[:1], v, rows)
    with pytest.raises(ValueError, match=r"must be \(B, H, S, D\) and twice"):
        attend_text(q, k[:, :1], v[:, :1], rows)
    with pytest.raises(ValueError, match="heads of width 24"):
        attend_text(q[..., :24], k[..., :24], v[..., :24], rows)
    with pytest.raises(ValueError, match="must be of one"):
        attend_text(q, k.bfloat16(), v, rows)
    with pytest.raises(ValueError, match="a strided head"):
        attend_text(q, k.mT.contiguous().mT, v, rows)
    for wrong in (rows.float(), rows[:, None], torch.cat([rows, rows])):
        with pytest.raises(ValueError, match="one whole number for each text"):
            attend_text(q, k, v, wrong)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_a_recorded_call_serves_prompts_of_any_length() -> None:
    from diagonal.engine.kernels.triton.text_attention import attend_text

    q, k, v = _case((1, 12, 4680, 128), torch.bfloat16, [128], 512)
    rows, graph = _rows([128]), torch.cuda.CUDAGraph()
    attend_text(q, k, v, rows)
    with torch.cuda.graph(graph):
        out = attend_text(q, k, v, rows)
    for count in (511, 3, 512, 128):
        for part in (k, v):
            part.copy_(torch.randn_like(part))
            part[:, :, count:] = part[:, :, count : count + 1].clone()
        rows.fill_(count)
        graph.replay()
        _check(out, _exact(q, k, v), torch.bfloat16)
