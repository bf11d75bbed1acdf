"""GEMMs of up to 128 tokens, or of great depth, on Hopper's tensor cores: linear layers in one kernel each, with
activation and residual (wgmma_gemm.cu), in two orientations. Tokens are the 64 rows of wgmma; or its columns, for more
tokens, and for fewer where that is less to compute: tokens that are not there cost power.

Reading the weights is still what takes the time. Such a kernel loads them while the small ones before it run, every
multiprocessor reads about the same part, and nothing is left to be reduced by a kernel after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from diagonal.engine.kernels import tuning
from diagonal.engine.kernels.cuda import nvrtc
from diagonal.engine.linear import FusedLinear

DEEP = 64  # columns of a unit: 128 bytes of a row
SIDE = 8  # rows that lie together in shared memory
ROWS = 256  # of a thread block, at most: the columns of one wgmma
M_TILE = 64  # the rows of one wgmma
MOST_TOKENS = 128


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """What the kernel is compiled for; wgmma_gemm.cu says what the constants are."""

    WEIGHTS_M: bool
    TOKENS: int
    ROWS: int
    SPLIT_K: int
    BIAS: bool
    ACT: int
    ADD: bool
    SPAN: int = 1
    X_STAGES: int = 0
    W_STAGES: int = 0
    GROUPS: int = 1
    M_TILES: int = 1

    @property
    def threads(self) -> int:
        """The consumers' warpgroups, a warp that loads weights, and one that loads tokens."""
        return 128 * self.GROUPS + 64

    @property
    def unit(self) -> int:
        """Bytes of a tile, for each of its rows."""
        return 2 * DEEP * self.SPAN

    @property
    def shared(self) -> int:
        """Bytes of all tiles, of partial sums that two thread blocks exchange, and of mbarriers."""
        tiles = self.unit * (self.X_STAGES * self.TOKENS + self.W_STAGES * self.ROWS)
        partial = 2 * self.computed if self.SPLIT_K == 2 else 0  # half of the sums, of four bytes
        return tiles + partial + 16 * (self.X_STAGES + self.W_STAGES) + 8

    @property
    def computed(self) -> int:
        """Rows times tokens of a thread block, those that are not there included."""
        if self.WEIGHTS_M:
            return M_TILE * self.GROUPS * self.M_TILES * self.TOKENS
        return self.ROWS * M_TILE

    @property
    def constants(self) -> dict[str, int | str]:
        constants = {name: int(value) for name, value in asdict(self).items()}
        width = self.TOKENS if self.WEIGHTS_M else self.ROWS
        return {**constants, "WIDTH": f'"{width}"', **nvrtc.operands("SUM", width // 2, after=3)}


def configure(tokens: int, linear: FusedLinear, multiprocessors: int) -> KernelConfig | None:
    """The kernel for a linear layer of so many tokens; None where there is none, or cuBLAS is as fast."""
    rows, depth = linear.weight_NK.shape
    silu, tuned = linear.act == "silu", _tuned(linear)
    if depth % DEEP or rows % (2 * SIDE if silu else 2) or not 1 <= tokens <= MOST_TOKENS:
        return None
    found = KernelConfig(
        WEIGHTS_M=False,
        TOKENS=-(-tokens // tuned.token_step) * tuned.token_step,
        ROWS=0,
        SPLIT_K=1,
        BIAS=linear.bias_N is not None,
        ACT=nvrtc.ACTIVATIONS[linear.act],
        ADD=linear.residual is not None,
    )
    as_rows = _sized(_rows_of_weights(found, tokens, rows, multiprocessors), depth, tuned)
    if tokens > M_TILE:
        full = as_rows is not None and tuned.least_fill * as_rows.computed <= as_rows.ROWS * as_rows.TOKENS
        return as_rows if full else None
    as_columns = _sized(_columns_of_weights(found, rows, multiprocessors), depth, tuned)
    both = [one for one in (as_columns, as_rows) if one is not None]
    return min(both, key=lambda one: one.computed * -(-rows // one.ROWS), default=None)


def _tuned(linear: FusedLinear) -> tuning.Wgmma:
    return tuning.of(linear.weight_NK.device).wgmma


def _sized(configs: Iterator[KernelConfig], depth: int, tuned: tuning.Wgmma) -> KernelConfig | None:
    """The first whose thread blocks have whole units of the depth, with tiles that fit into shared memory."""
    for some in configs:
        if depth % (DEEP * some.SPLIT_K) == 0:
            own = 2 * some.ROWS * depth // some.SPLIT_K  # bytes of a thread block's weights
            # wgmma reads M_TILE rows of an operand: behind the last one it reads what lies there.
            needed = max(min(own, tuned.weight_bytes), 2 * DEEP * M_TILE)
            behind = 2 * DEEP * M_TILE if some.WEIGHTS_M else 0
            staged = _staged(some, depth // (DEEP * some.SPLIT_K), tuned)
            enough = (one for one in staged if one.W_STAGES * one.ROWS * one.unit >= needed)
            return next((one for one in enough if one.X_STAGES * one.TOKENS * one.unit >= behind), None)
    return None


def _columns_of_weights(found: KernelConfig, rows: int, multiprocessors: int) -> Iterator[KernelConfig]:
    """Tokens are the rows of wgmma: about as many columns, rows of W, for each thread block."""
    silu = nvrtc.ACTIVATIONS["silu"] == found.ACT
    # Few rows for each thread block would mean much of x for each.
    split = 1 if silu or rows > multiprocessors * M_TILE else 2
    sides = 2 * SIDE if silu or split == 2 else SIDE
    own = -(-rows // (sides * (multiprocessors // split))) * sides
    if own <= ROWS:
        yield replace(found, ROWS=own, SPLIT_K=split)


def _rows_of_weights(found: KernelConfig, tokens: int, rows: int, multiprocessors: int) -> Iterator[KernelConfig]:
    """Tokens are the columns of wgmma: about as many rows of W for each thread block, in tiles of which the last need
    not be full. Fewer rows than a tile would mean much of x for each thread block: others are faster. Each eight tokens
    cost power, so there are no more than must be."""
    silu = nvrtc.ACTIVATIONS["silu"] == found.ACT
    outputs = rows // 2 if silu else rows
    for split in (1,) if silu else (2, 1):
        own = -(-outputs // (SIDE * (multiprocessors // split))) * SIDE
        forms = ((1, 1), (2, 1)) if silu else ((1, 1), (1, 2), (2, 2))  # warpgroups, and tiles that each finishes
        fits = next((form for form in forms if M_TILE <= own <= M_TILE * form[0] * form[1]), None)
        if fits is not None:
            groups, tiles = fits
            halves = 2 if silu else 1
            some = replace(found, WEIGHTS_M=True, ROWS=own * halves, SPLIT_K=split)
            some = replace(some, GROUPS=groups, M_TILES=tiles * halves)
            yield replace(some, TOKENS=-(-tokens // (SIDE * split)) * SIDE * split)


def _staged(found: KernelConfig, units: int, tuned: tuning.Wgmma) -> Iterator[KernelConfig]:
    """Sizes of tiles and numbers of stages that fit into shared memory, best first. Deep tiles mean less waiting for
    each; many stages of x mean that it is there when it is needed; what is left is for weights."""
    rows = found.ROWS
    usual = 4 if rows < tuned.small_rows else 2 if rows <= tuned.large_rows else 1
    most = -(-tuned.x_rows // rows)  # units of x that should be in flight
    for span, part in product((4, 2, 1), (1, 0.75, 0.5)):
        if span > usual or units % span:
            continue
        some = replace(found, SPAN=span, X_STAGES=min(max(3, round(part * most / span)), units // span))
        free = nvrtc.SHARED - some.shared
        yield replace(some, W_STAGES=min(free // (some.ROWS * some.unit + 16), units // span))


def run(x: Tensor, linear: FusedLinear, config: KernelConfig) -> Tensor:
    """The layer as it was configured."""
    rows, depth = linear.weight_NK.shape
    halves = 2 if linear.act == "silu" else 1
    width, own = rows // halves, config.ROWS // halves
    out = x.new_empty(*x.shape[:-1], width) if linear.residual is None else linear.residual
    x_MK = x.view(-1, depth)
    maps = (nvrtc.tensor_map(linear.weight_NK, own, DEEP), nvrtc.tensor_map(x_MK, config.TOKENS, DEEP))
    k_tiles = depth // (DEEP * config.SPAN * config.SPLIT_K)
    arguments = (*maps, linear.bias_N, out, len(x_MK), rows, k_tiles)
    grid = (-(-width // own) * config.SPLIT_K, 1, 1)
    _kernel(config, x.device).launch(grid, config.threads, config.shared, arguments)
    return out


@cache
def _kernel(config: KernelConfig, device: torch.device) -> nvrtc.Kernel:
    path = Path(__file__).with_suffix(".cu")
    return nvrtc.compile_kernel(path, "gemm", config.constants, config.shared, device)
