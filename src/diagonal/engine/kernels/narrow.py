"""Products of steps with few tokens, each one kernel with its norm, its activation and its residual (narrow.cu).

A small model's step is as long as its kernels are many: one of these takes the place of up to three, and asks for its
weights while the kernel before it still runs. Large products gain less, and some of them cuBLAS makes faster.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from diagonal.engine.kernels import cuda
from diagonal.engine.kernels.product import Norm, Product

SIDE = 8  # tokens, or rows of weights, that the tensor cores take at a time
CHUNK = 32  # columns that a warp takes at a time
WARPS = 16  # of a program, at most
ROUNDS = 8  # chunks of a warp, at most: it holds them all in registers
NORMED = 8  # chunks of SIDE tokens that it holds beside them, to norm them
HOPPER = 9  # since when a kernel can begin before the one before it has ended
KINDS = {None: 0, "silu": 1, "gelu": 2}


@dataclass(frozen=True, slots=True)
class Cut:
    """What the kernel is compiled for; narrow.cu says what the constants are."""

    K: int
    WARPS: int
    TILES: int
    HALVES: int
    NORM: int
    GAIN: bool
    SHIFT: bool
    BIAS: bool
    ACT: int
    ADD: bool

    @property
    def paired(self) -> bool:
        """Whether each output is made of two rows of weights."""
        return KINDS["silu"] == self.ACT

    @property
    def columns(self) -> int:
        """Outputs of a token that a program makes at a time."""
        return SIDE * self.TILES // (2 if self.paired else 1)

    @property
    def shared(self) -> int:
        """Bytes for the sums of all warps, twice."""
        return 2 * self.WARPS * SIDE * self.HALVES * (SIDE * self.TILES + 4) * 4


def cut(tokens: int, product: Product, processors: int) -> Cut | None:
    """How a product of so many tokens is cut up, None where this kernel is not made for it."""
    rows, depth = product.weight_NK.shape
    chunks, halves = depth // CHUNK, -(-tokens // SIDE)
    if depth % CHUNK or not chunks or halves not in (1, 2):
        return None
    warps = max(size for size in range(1, WARPS + 1) if chunks % size == 0)
    rounds = chunks // warps
    if rounds > ROUNDS or (product.norm is not None and rounds * halves > NORMED):
        return None

    def work(tiles: int) -> tuple[int, int]:
        """Rows that the busiest program has, and in how many turns."""
        turns = -(-rows // (SIDE * tiles * processors))
        return turns * tiles, turns

    paired = product.act == "silu"  # a tile of the first half and one of the second
    tiles = 2 if paired else min((1, 2), key=work)
    norm = product.norm
    found = Cut(
        K=depth,
        WARPS=warps,
        TILES=tiles,
        HALVES=halves,
        NORM=0 if norm is None else 2 if norm.centred else 1,
        GAIN=norm is not None and norm.weight is not None,
        SHIFT=norm is not None and norm.bias is not None,
        BIAS=product.bias_N is not None,
        ACT=KINDS[product.act],
        ADD=product.residual is not None,
    )
    outputs = SIDE * halves * found.columns  # one for each thread, or for two
    return None if warps % 2 or outputs > 32 * warps or (paired and rows % (2 * SIDE)) else found


def fitting(x: Tensor, product: Product) -> Cut | None:
    """How the kernel would make a product, None where it cannot, or where others are faster."""
    alike = all(part.dtype == torch.bfloat16 == x.dtype and part.is_contiguous() for part in product.parts())
    if not alike or x.device.type != "cuda" or _processors(x.device) is None or not x.numel():
        return None
    if product.act is not None and product.residual is not None:
        return None
    return cut(x.numel() // x.shape[-1], product, _processors(x.device) or 1)


def run(x: Tensor, product: Product, found: Cut) -> Tensor:
    """The product as `fitting` found it."""
    x_MK, rows = x.contiguous().view(-1, found.K), len(product.weight_NK)
    width = rows // 2 if product.act == "silu" else rows
    out = x.new_empty(*x.shape[:-1], width) if product.residual is None else product.residual
    norm = product.norm or Norm(None, None, 0.0, centred=False)
    tiles = -(-width // found.columns)
    programs = min(tiles, _processors(x.device) or 1)
    tensors = (x_MK, product.weight_NK, norm.weight, norm.bias, product.bias_N, out)
    kernel = _kernel(found, x.device)
    kernel.launch(programs, 32 * found.WARPS, found.shared, (*tensors, len(x_MK), rows, tiles, float(norm.eps)))
    return out


@cache
def _processors(device: torch.device) -> int | None:
    """Streaming multiprocessors of a GPU on which the kernel runs, None for others."""
    gpu = torch.cuda.get_device_properties(device)
    return gpu.multi_processor_count if gpu.major >= HOPPER and cuda.libraries() is not None else None


@cache
def _kernel(found: Cut, device: torch.device) -> cuda.Kernel:
    constants = {name: int(value) for name, value in asdict(found).items()}
    return cuda.compile_kernel(Path(__file__).with_suffix(".cu"), "product", constants, found.shared, device)
