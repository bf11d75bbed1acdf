"""Products of many tokens, or of great depth, each one kernel with its activation and its residual: wide.cu for as many
tokens as the tensor cores' product has rows; wider.cu, where tokens are its columns, for more, and for fewer where that
is less to compute: numbers that are not there take power.

Reading the weights is still what takes the time. Such a kernel asks for them while the small ones before it run, every
multiprocessor reads about the same share, and nothing is left to be added up by a kernel after it.
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
SMALL, LARGE = 64, 128  # rows of a program for which blocks are deepest, and for which they are deeper than a unit
TOKENS = 64  # of wide.cu, at most: the rows of the tensor cores' product
MANY = 128  # tokens of wider.cu, at most
# With fewer tokens than LEAST others are as fast or faster where a matrix is deeper than DEPTH with up to HEIGHT rows.
LEAST, DEPTH, HEIGHT = 9, 8192, 4096
FEW = 16  # tokens up to which with large matrices others are faster
STEP = 16  # tokens for which one kernel serves
BLOCK = 64  # rows of W that the tensor cores of wider.cu take at a time
FULL = 0.7  # of what wider.cu computes of many tokens, at least: with less it is no faster than cuBLAS
WEIGHTS = 96 * 1024  # bytes of weights that should be under way at least
WAITING = 768  # rows, in units of all: about 3 microseconds of reading, in which tokens arrive that are asked for


@dataclass(frozen=True, slots=True)
class Cut:
    """What a kernel is compiled for; wide.cu and wider.cu say what the constants are."""

    TOKENS: int
    ROWS: int
    SPLIT: int
    BIAS: bool
    ACT: int
    ADD: bool
    SPAN: int = 1
    X_STAGES: int = 0
    W_STAGES: int = 0
    GROUPS: int = 1
    BLOCKS: int = 0  # of wider.cu

    @property
    def file(self) -> str:
        return "wider.cu" if self.BLOCKS else "wide.cu"

    @property
    def threads(self) -> int:
        """Four warps of each group that multiplies, one that reads weights, and one that reads tokens."""
        return 128 * self.GROUPS + 64

    @property
    def unit(self) -> int:
        """Bytes of a block, for each of its rows."""
        return 2 * DEEP * self.SPAN

    @property
    def shared(self) -> int:
        """Bytes of all blocks, of sums that two programs exchange, and of barriers."""
        blocks = self.unit * (self.X_STAGES * self.TOKENS + self.W_STAGES * self.ROWS)
        mail = 2 * self.computed if self.SPLIT == 2 else 0  # half of them, of four bytes
        return blocks + mail + 16 * (self.X_STAGES + self.W_STAGES) + 8

    @property
    def computed(self) -> int:
        """Rows times tokens of a program, those that are not there included."""
        return BLOCK * self.GROUPS * self.BLOCKS * self.TOKENS if self.BLOCKS else self.ROWS * TOKENS

    @property
    def constants(self) -> dict[str, int | str]:
        numbers = {name: int(value) for name, value in asdict(self).items()}
        width = self.TOKENS if self.BLOCKS else self.ROWS
        return {**numbers, "WIDTH": f'"{width}"', **cuda.sums("SUM", width // 2, after=3)}


def cut(tokens: int, product: Product, processors: int) -> Cut | None:
    """How a product of so many tokens is cut up, None where the kernels are not made for it."""
    rows, depth = product.weight_NK.shape
    silu = product.act == "silu"
    if depth % DEEP or rows % (2 * SIDE if silu else 2) or not 1 <= tokens <= MANY:
        return None
    found = Cut(
        TOKENS=-(-tokens // STEP) * STEP,
        ROWS=0,
        SPLIT=1,
        BIAS=product.bias_N is not None,
        ACT=cuda.ACTIVATIONS[product.act],
        ADD=product.residual is not None,
    )
    columns = _sized(_blocks(found, tokens, rows, processors), depth)
    if tokens > TOKENS:
        full = columns is not None and FULL * columns.computed <= columns.ROWS * columns.TOKENS
        return columns if full else None
    both = [one for one in (_sized(_shares(found, rows, processors), depth), columns) if one is not None]
    return min(both, key=lambda one: one.computed * -(-rows // one.ROWS), default=None)


def _sized(shares: Iterator[Cut], depth: int) -> Cut | None:
    """The first whose programs have whole units of the depth, with blocks that fit into shared memory."""
    for some in shares:
        if depth % (DEEP * some.SPLIT) == 0:
            own = 2 * some.ROWS * depth // some.SPLIT  # bytes of a program's weights
            # Behind the last token of wide.cu, or the last row of wider.cu, the tensor cores read what lies there.
            needed = max(min(own, WEIGHTS), 2 * DEEP * TOKENS)
            behind = 2 * DEEP * BLOCK if some.BLOCKS else 0
            forms = _forms(some, depth // (DEEP * some.SPLIT))
            enough = (form for form in forms if form.W_STAGES * form.ROWS * form.unit >= needed)
            return next((form for form in enough if form.X_STAGES * form.TOKENS * form.unit >= behind), None)
    return None


def _shares(found: Cut, rows: int, processors: int) -> Iterator[Cut]:
    """Rows of a program of wide.cu: about as many for each."""
    silu = cuda.ACTIVATIONS["silu"] == found.ACT
    split = 1 if silu or rows > processors * TOKENS else 2  # few rows for each program would mean much of x for each
    sides = 2 * SIDE if silu or split == 2 else SIDE
    own = -(-rows // (sides * (processors // split))) * sides
    if own <= ROWS:
        yield replace(found, ROWS=own, SPLIT=split)


def _blocks(found: Cut, tokens: int, rows: int, processors: int) -> Iterator[Cut]:
    """Rows of a program of wider.cu: about as many for each, in blocks of which the last need not be full. Fewer rows
    than a block would mean much of x for each program: others are faster. Each eight tokens cost power, so there are no
    more than must be."""
    silu = cuda.ACTIVATIONS["silu"] == found.ACT
    outputs = rows // 2 if silu else rows
    for split in (1,) if silu else (2, 1):
        own = -(-outputs // (SIDE * (processors // split))) * SIDE
        forms = ((1, 1), (2, 1)) if silu else ((1, 1), (1, 2), (2, 2))  # groups, and blocks that each finishes
        fits = next((form for form in forms if BLOCK <= own <= BLOCK * form[0] * form[1]), None)
        if fits is not None:
            groups, blocks = fits
            halves = 2 if silu else 1
            some = replace(found, ROWS=own * halves, SPLIT=split, GROUPS=groups, BLOCKS=blocks * halves)
            yield replace(some, TOKENS=-(-tokens // (SIDE * split)) * SIDE * split)


def _forms(found: Cut, units: int) -> Iterator[Cut]:
    """Sizes of blocks and numbers of them that fit into shared memory, best first. Large blocks mean less waiting for
    each; many of x mean that it is there when it is needed; what is left is for weights."""
    usual = 4 if found.ROWS < SMALL else 2 if found.ROWS <= LARGE else 1
    most = -(-WAITING // found.ROWS)  # units of x that should be under way
    for span, share in pairs((4, 2, 1), (1, 0.75, 0.5)):
        if span > usual or units % span:
            continue
        some = replace(found, SPAN=span, X_STAGES=min(max(3, round(share * most / span)), units // span))
        free = cuda.SHARED - some.shared
        yield replace(some, W_STAGES=min(free // (some.ROWS * some.unit + 16), units // span))


def fitting(x: Tensor, product: Product) -> Cut | None:
    """How the kernel would make a product, None where it cannot, or where others are faster."""
    tokens, both = x.numel() // x.shape[-1], product.act is not None and product.residual is not None
    rows, depth = product.weight_NK.shape
    if both or product.norm is not None or (tokens < LEAST and depth > DEPTH and rows <= HEIGHT):
        return None
    if not cuda.suits([x, *product.parts()]) or not cuda.hopper(x.device):
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
    _kernel(found, x.device).launch((-(-width // own) * found.SPLIT, 1, 1), found.threads, found.shared, given)
    return out


@cache
def _kernel(found: Cut, device: torch.device) -> cuda.Kernel:
    path = Path(__file__).with_name(found.file)
    return cuda.compile_kernel(path, "product", found.constants, found.shared, device)
