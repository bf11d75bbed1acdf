"""How a product with few rows is cut into programs: a small model of what the memory of the GPU can deliver.

x W^T with W (cols, depth) and 1 to 128 rows of x does 2 * rows flops per weight, 2 bytes in bfloat16: at 16 rows, 16
flops per byte, where an H200 could do 180. So only bytes count, and there are three ways to lose time with them:
- too few on their way. A load takes LATENCY; BANDWIDTH * LATENCY = 3.4 MB must be under way, 26 KB on each of 132
  multiprocessors. A program has all stages of its loop but one under way;
- x again and again. Each program reads all rows of x for its part of the depth, from the L2 cache: with narrow
  programs and many rows more bytes than the weights;
- the second kernel. Where the depth is split over programs, another kernel must add the parts up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# Of an H200. `choose` only compares sums of them with each other, so another GPU needs no exact numbers.
BANDWIDTH = 4.3e12  # bytes per second from memory
L2_BANDWIDTH = 6e12  # bytes per second from the L2 cache to all multiprocessors
SM_BANDWIDTH = 6e10  # bytes per second from the L2 cache to one of them
LATENCY = 0.8e-6  # seconds from asking for bytes to having them, under load
MERGE = 2e-6  # seconds that a second kernel costs before it reads its first byte
SHARED = 100 * 1024  # bytes of shared memory for one program's stages: two programs fit a multiprocessor
HELD = 2  # programs on a multiprocessor at a time


@dataclass(frozen=True, slots=True)
class Tiles:
    """What one program computes at a time, and how it is run."""

    rows: int
    cols: int
    depth: int
    splits: int  # programs that share the depth
    stages: int  # tiles of the loop that are loaded or waited for at a time
    warps: int


@dataclass(frozen=True, slots=True)
class Product:
    """Sizes of x W^T: x (rows, depth), W (parts * cols, depth). A program with a column of one part has it of all."""

    rows: int
    cols: int
    depth: int
    parts: int = 1


def choose(product: Product, multiprocessors: int) -> Tiles:
    """The tiles with the least estimated time; of equals, those with fewer splits and then narrower columns."""
    return min(_candidates(product), key=lambda tiles: estimate(product, tiles, multiprocessors))


def estimate(product: Product, tiles: Tiles, multiprocessors: int) -> float:
    """Seconds: programs come in waves, as many as the GPU holds, then the rest; a merge follows where there is one."""
    programs = ceil_div(product.cols, tiles.cols) * tiles.splits * ceil_div(product.rows, tiles.rows)
    waves, rest = divmod(programs, HELD * multiprocessors)
    seconds = LATENCY + waves * _wave(product, tiles, HELD * multiprocessors, multiprocessors)
    if rest:
        seconds += _wave(product, tiles, rest, multiprocessors)
    if tiles.splits > 1:
        partial = 4 * tiles.splits * product.parts * product.rows * product.cols
        seconds += MERGE + 2 * partial / L2_BANDWIDTH  # written and read again
    return seconds


def _wave(product: Product, tiles: Tiles, programs: int, multiprocessors: int) -> float:
    """Seconds of so many programs at a time: what is slowest of the ways that their bytes take."""
    share = 2 * ceil_div(product.depth, tiles.splits)  # bytes of one row or column that a program reads
    width = product.parts * tiles.cols
    weights, everything = share * width, share * (width + min(tiles.rows, product.rows))
    under_way = 2 * width * tiles.depth * (tiles.stages - 1)
    return max(
        programs * weights / BANDWIDTH,
        programs * everything / L2_BANDWIDTH,
        ceil_div(programs, multiprocessors) * everything / SM_BANDWIDTH,
        weights * LATENCY / under_way,
    )


def _candidates(product: Product) -> Iterator[Tiles]:
    """All that a tensor core takes (16 at least, powers of two) and that fits the shared memory."""
    rows = min(128, max(16, power_of_two(product.rows)))
    for splits in (1, 2, 4, 8):
        for cols in (16, 32, 64, 128):
            line = 2 * (rows + product.parts * cols)  # bytes of a stage per element of depth
            longest = max(16, power_of_two(ceil_div(product.depth, splits)))
            depth = next(depth for depth in (256, 128, 64) if 4 * line * depth <= SHARED or depth == 64)
            depth = min(depth, longest)
            stages = min(6, SHARED // (line * depth))
            if stages >= 3:
                yield Tiles(rows, cols, depth, splits, stages, _warps(rows, product.parts * cols, cols))


def _warps(rows: int, results: int, cols: int) -> int:
    """Every warp reads the rows of x that its results need: with 16 rows each of them reads all, so no more warps than
    groups of 8 columns, the least that a tensor core multiplies. Large tiles need 8 warps to fit the registers."""
    if rows == 16 and cols == 16:
        return 2
    return 4 if rows * results <= 64 * 64 else 8


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << (n - 1).bit_length()
