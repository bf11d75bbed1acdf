"""Products of many tokens, or of great depth, each one kernel with its activation and its residual (wide.cu).

Reading the weights is still what takes the time. Such a kernel asks for them while the small ones before it run, every
multiprocessor reads the same share, and nothing is left to be added up by a kernel after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product as pairs
from pathlib import Path

import torch
from torch import Tensor

from diagonal.engine.kernels import cuda
from diagonal.engine.product import Product

DEEP = 64  # columns of a unit: 128 bytes of a row
SIDE = 8  # rows that lie together in shared memory
ROWS = 256  # of a program, at most
SMALL, LARGE = 64, 128  # numbers of them below which blocks are deeper
THREADS = 192  # four warps that multiply, one that reads weights, and one that reads tokens
# Of a step, at most: the rows of the tensor cores' product. More would be padded to 128, and the power which that takes
# slows down all kernels (docs/log.md).
TOKENS = 64
LEAST, FEW = 9, 16  # tokens with fewer of which, or up to which with large matrices, others are faster
STEP = 16  # tokens for which one kernel serves
WEIGHTS = 96 * 1024  # bytes of weights that should be under way at least
AHEAD = 768  # rows, in units of all: about 3 microseconds of reading, in which tokens arrive that are asked for


@dataclass(frozen=True, slots=True)
class Cut:
    """What the kernel is compiled for; wide.cu says what the constants are."""

    TOKENS: int
    ROWS: int
    SPLIT: int
    SPAN: int
    X_STAGES: int
    W_STAGES: int
    BIAS: bool
    ACT: int
    ADD: bool

    @property
    def unit(self) -> int:
        """Bytes of a block, for each of its rows."""
        return 2 * DEEP * self.SPAN

    @property
    def shared(self) -> int:
        """Bytes of all blocks, of sums that two programs exchange, and of barriers."""
        blocks = self.unit * (self.X_STAGES * self.TOKENS + self.W_STAGES * self.ROWS)
        mail = 2 * TOKENS * self.ROWS if self.SPLIT == 2 else 0
        return blocks + mail + 16 * (self.X_STAGES + self.W_STAGES) + 8

    @property
    def constants(self) -> dict[str, int | str]:
        numbers = {name: int(value) for name, value in asdict(self).items()}
        return {**numbers, "WIDTH": f'"{self.ROWS}"', **cuda.sums("SUM", self.ROWS // 2, after=3)}


def cut(tokens: int, product: Product, processors: int) -> Cut | None:
    """How a product of so many tokens is cut up, None where this kernel is not made for it."""
    rows, depth = product.weight_NK.shape
    silu = product.act == "silu"
    split = 1 if silu or rows > processors * TOKENS else 2  # few rows for each program would mean much of x for each
    sides = 2 * SIDE if silu or split == 2 else SIDE
    own = -(-rows // (sides * (processors // split))) * sides
    if depth % (DEEP * split) or rows % (2 * SIDE if silu else SIDE) or own > ROWS or tokens > TOKENS:
        return None
    found = Cut(
        TOKENS=-(-tokens // STEP) * STEP,
        ROWS=own,
        SPLIT=split,
        SPAN=1,
        X_STAGES=0,
        W_STAGES=0,
        BIAS=product.bias_N is not None,
        ACT=cuda.ACTIVATIONS[product.act],
        ADD=product.residual is not None,
    )
    share = 2 * own * depth // split  # bytes of a program's weights
    # The tensor cores read as many tokens as there may be, and beyond the last one what lies there.
    needed = max(min(share, WEIGHTS), 2 * DEEP * TOKENS)
    forms = _forms(found, depth // (DEEP * split))
    return next((form for form in forms if form.W_STAGES * form.ROWS * form.unit >= needed), None)


def _forms(found: Cut, units: int) -> Iterator[Cut]:
    """Sizes of blocks and numbers of them that fit into shared memory, best first. Large blocks mean less waiting for
    each; many of x mean that it is there when it is needed; what is left is for weights."""
    usual = 4 if found.ROWS < SMALL else 2 if found.ROWS < LARGE else 1
    most = -(-AHEAD // found.ROWS)  # units of x that should be under way
    for span, share in pairs((4, 2, 1), (1, 0.75, 0.5)):
        if span > usual or units % span:
            continue
        some = replace(found, SPAN=span, X_STAGES=min(max(3, round(share * most / span)), units // span))
        free = cuda.SHARED - some.shared
        yield replace(some, W_STAGES=min(free // (some.ROWS * some.unit + 16), units // span))


def fitting(x: Tensor, product: Product) -> Cut | None:
    """How the kernel would make a product, None where it cannot, or where others are faster."""
    tokens, both = x.numel() // x.shape[-1], product.act is not None and product.residual is not None
    if both or product.norm is not None or tokens < LEAST or not cuda.suits([x, *product.parts()]):
        return None
    if not cuda.hopper(x.device):
        return None
    found = cut(tokens, product, torch.cuda.get_device_properties(x.device).multi_processor_count)
    return None if found is None or (tokens <= FEW and found.ROWS > LARGE) else found


def run(x: Tensor, product: Product, found: Cut) -> Tensor:
    """The product as `fitting` found it."""
    rows, depth = product.weight_NK.shape
    halves = 2 if product.act == "silu" else 1
    width, own = rows // halves, found.ROWS // halves
    out = x.new_empty(*x.shape[:-1], width) if product.residual is None else product.residual
    x_MK = x.view(-1, depth)
    maps = (cuda.tensor_map(product.weight_NK, own, DEEP), cuda.tensor_map(x_MK, found.TOKENS, DEEP))
    given = (*maps, product.bias_N, out, len(x_MK), rows, depth // (DEEP * found.SPAN * found.SPLIT))
    _kernel(found, x.device).launch((-(-width // own) * found.SPLIT, 1, 1), THREADS, found.shared, given)
    return out


@cache
def _kernel(found: Cut, device: torch.device) -> cuda.Kernel:
    return cuda.compile_kernel(Path(__file__).with_suffix(".cu"), "product", found.constants, found.shared, device)
