"""The kernels of diffusion transformers against their plain forms in float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from diagonal.engine.attention import WIDE
from diagonal.engine.heads import LatentHeads
from diagonal.engine.kernels import cudnn, reference
from tests.gpu import BFLOAT16, DEVICE, RUNNABLE, poisoned

pytest.importorskip("triton")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not RUNNABLE, reason="no CUDA device, no TRITON_INTERPRET=1")]

DTYPES = [torch.float32, torch.bfloat16]


def _random(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("per", [(1, 1), (1, 3), (2, 1), (2, 3)], ids=str)
@pytest.mark.parametrize("width", [96, 1536])
def test_residuals_and_norms(per: tuple[int, int], width: int, dtype: torch.dtype) -> None:
    from diagonal.engine.kernels.triton import latents

    torch.manual_seed(width)
    x, delta = _random(2, 3, 4, width, dtype=dtype), _random(2, 12, width, dtype=dtype)
    changes = _random(*per, 6, width, dtype=dtype).split(1, dim=2)
    weight, bias = _random(width, dtype=dtype), _random(width, dtype=dtype)
    bound = 3e-6 if dtype == torch.float32 else 3 * BFLOAT16
    cases: list[tuple[Any, ...]] = [
        (x, None, None, changes[0], changes[1]),
        (x, delta, changes[2], weight, bias),
        (x, delta, None, changes[3], changes[4]),
    ]
    for given in cases:
        exact: list[Any] = [None if one is None else one.double() for one in given]
        with poisoned():
            found = partial(latents.add_norm, eps=1e-6)(*given)
        wanted = partial(reference.add_norm, eps=1e-6)(*exact)
        for one, two in zip(found, wanted, strict=True):
            assert one.dtype == dtype and one.shape == x.shape
            assert (one.double() - two).abs().max() <= bound * two.abs().max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 5, 4, 24), (2, 3, 12, 128)], ids=str)  # B, S, H, D
def test_heads_are_normed_rotated_and_written_to_their_places(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    from diagonal.engine.kernels.triton import latents

    batch, inputs, heads, wide = shape
    torch.manual_seed(sum(shape))
    angles = torch.randn(inputs, 1, wide // 2, device=DEVICE)
    norms = [(1 + 0.3 * _random(heads * wide, dtype=torch.float32)).to(dtype) for _ in range(2)]
    qkv = _random(batch, inputs, 3 * heads * wide, dtype=dtype)
    given = LatentHeads(qkv, heads, norms[0], norms[1], 1e-6, (angles.cos(), angles.sin()))
    cache = _random(2, batch, inputs + 4, heads, wide, dtype=dtype)
    before = cache.clone()
    with poisoned():
        q = latents.rope(given, cache[0, :, 2:-2], cache[1, :, 2:-2])
    wanted = given.split()
    bound = 3e-6 if dtype == torch.float32 else 4 * BFLOAT16
    for found, exact in zip((q, cache[0, :, 2:-2], cache[1, :, 2:-2]), wanted, strict=True):
        two = exact.transpose(1, 2)
        assert (found.float() - two.float()).abs().max() <= bound * two.abs().max()
    assert torch.equal(cache[1, :, 2:-2], wanted[2].transpose(1, 2))
    assert torch.equal(cache[:, :, :2], before[:, :, :2]) and torch.equal(cache[:, :, -2:], before[:, :, -2:])


def test_what_the_kernel_would_write_wrongly_is_refused() -> None:
    from diagonal.engine.kernels.triton import latents

    angles = torch.randn(3, 1, 4, device=DEVICE)
    norm, qkv = torch.ones(16, device=DEVICE), torch.randn(1, 3, 48, device=DEVICE)
    heads, place = LatentHeads(qkv, 2, norm, norm, 1e-6, (angles, angles)), torch.zeros(1, 3, 2, 8, device=DEVICE)
    with pytest.raises(ValueError, match="an output of shape"):
        latents.rope(heads, place[:, :2], place)
    short = LatentHeads(qkv, 2, norm, norm, 1e-6, (angles[:2], angles[:2]))
    with pytest.raises(ValueError, match="a rotation of shape"):
        latents.rope(short, place, place)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("across", [False, True])  # heads of a query lie side by side
@pytest.mark.parametrize("count", [2, 3, 4])
def test_splits_of_the_keys_are_reduced_to_one(count: int, across: bool, dtype: torch.dtype) -> None:
    from diagonal.engine.kernels.triton import latents

    torch.manual_seed(count)
    q, k, v = (torch.randn(1, 3, size, 32, device=DEVICE, dtype=torch.float64) for size in (5, 8 * count, 8 * count))
    scores = q @ k.transpose(2, 3) / 32**0.5
    apart = [(scores[..., i::count], v[:, :, i::count]) for i in range(count)]
    mixed = torch.cat([one.softmax(-1) @ values for one, values in apart])
    sums = torch.cat([one.logsumexp(-1) for one, _ in apart])
    mixed = mixed.transpose(1, 2).contiguous().transpose(1, 2) if across else mixed
    with poisoned():
        found = latents.reduce(mixed.to(dtype), sums.float())
    wanted = scores.softmax(-1) @ v
    bound = 3e-6 if dtype == torch.float32 else 3 * BFLOAT16
    assert found.shape == q.shape and (found.double() - wanted).abs().max() <= bound * wanted.abs().max()


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("keys", [4680, 18720])
def test_attention_to_split_keys_is_that_to_all(keys: int) -> None:
    q, k, v = (_random(1, size, 12, 128, dtype=torch.bfloat16) for size in (4680, keys, keys))
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    with torch.inference_mode(), sdpa_kernel(WIDE, set_priority=True):
        found, wanted = cudnn.attend(q, k, v, splits=2), scaled_dot_product_attention(q, k, v)
    assert (found.float() - wanted.float()).norm() < 0.01 * wanted.float().norm()
