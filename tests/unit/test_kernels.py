"""The plain forms of the kernels are the models' own maths; the tiles fit the hardware."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from diagonal.engine.kernels import block
from diagonal.engine.kernels.tiles import SHARED, Product, Tiles, choose, estimate
from diagonal.models.layers import RMSNorm, SwiGLU, rope_1d, rotate

H200 = 132  # multiprocessors
DTYPES = [torch.float32, torch.bfloat16]


def _norm(width: int, dtype: torch.dtype) -> RMSNorm:
    norm = RMSNorm(width, eps=1e-5)
    nn.init.normal_(norm.weight, mean=1.0, std=0.3)
    return norm.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_those_of_the_layers(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x, residual = torch.randn(5, 48, dtype=dtype), torch.randn(5, 48, dtype=dtype)
    norm, linear, mlp = _norm(48, dtype), nn.Linear(48, 40, bias=False).to(dtype), SwiGLU(48, 64).to(dtype)
    with torch.no_grad():
        found = block.norm_linear(x, norm.weight, norm.eps, linear.weight)
        assert torch.equal(found, linear(norm(x)))
        hidden = block.norm_gate_up(x, norm.weight, norm.eps, mlp.gate_up.weight)
        found = block.linear_add(hidden, mlp.down.weight, residual)
        assert torch.equal(found, residual + mlp(norm(x)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
def test_rope_cache_is_norm_rotation_and_cache_write(dtype: torch.dtype, normed: bool) -> None:
    torch.manual_seed(2)
    qkv = torch.randn(2, 3, (6 + 2 + 2) * 16, dtype=dtype)
    slots = torch.tensor([7, 0, 10])
    rope = rope_1d(slots, 16, 10000.0)
    before = torch.randn(2, 2, 2, 11, 16, dtype=dtype)
    k_cache, v_cache = before.clone()
    q_norm, k_norm = _norm(16, dtype), _norm(16, dtype)
    with torch.no_grad():
        norm = block.HeadNorm(q_norm.weight, k_norm.weight, q_norm.eps) if normed else None
        found = block.rope_cache(qkv, rope, k_cache, v_cache, slots, norm)
        q, k, v = qkv.unflatten(-1, (-1, 16)).transpose(1, 2).split((6, 2, 2), dim=1)
        if normed:
            q, k = q_norm(q), k_norm(k)
    assert torch.equal(found, rotate(q, rope))
    assert torch.equal(k_cache[:, :, slots], rotate(k, rope))
    assert torch.equal(v_cache[:, :, slots], v)
    others = [slot for slot in range(11) if slot not in slots]
    assert torch.equal(torch.stack([k_cache, v_cache])[:, :, :, others], before[:, :, :, others])


SHAPES = [  # cols, depth, parts
    (2560, 2048, 1),
    (2048, 2048, 1),
    (4096, 2048, 2),
    (2048, 4096, 1),
    (1024, 1024, 1),
    (6144, 4096, 1),
    (14336, 4096, 2),
    (4096, 14336, 1),
    (128, 48, 1),
]


@pytest.mark.parametrize("rows", [1, 16, 17, 64, 120, 300])
@pytest.mark.parametrize("shape", SHAPES)
def test_tiles_fit_the_hardware(rows: int, shape: tuple[int, int, int]) -> None:
    product = Product(rows, *shape)
    tiles = choose(product, H200)
    for side in (tiles.rows, tiles.cols, tiles.depth):
        assert side >= 16 and side.bit_count() == 1
    assert tiles.rows >= min(rows, 128)
    assert tiles.stages >= 3
    assert 2 * tiles.stages * tiles.depth * (tiles.rows + product.parts * tiles.cols) <= SHARED


@pytest.mark.parametrize("shape", SHAPES[:4])
def test_few_rows_of_a_wide_model_take_one_kernel_near_the_floor(shape: tuple[int, int, int]) -> None:
    cols, depth, parts = shape
    product = Product(8, *shape)
    tiles = choose(product, H200)
    assert tiles.splits == 1
    assert estimate(product, tiles, H200) < 1.6 * (2 * cols * parts * depth / 4.3e12)


def test_the_depth_is_split_where_columns_alone_leave_the_gpu_idle() -> None:
    product = Product(rows=1, cols=128, depth=65536)
    tiles = choose(product, H200)
    assert tiles.splits > 1
    whole = Tiles(16, 16, 256, 1, 6, 4)
    assert estimate(product, tiles, H200) < estimate(product, whole, H200)


def test_the_plain_forms_need_no_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None; import diagonal.engine.kernels.block, diagonal.engine.kernels.tiles"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
