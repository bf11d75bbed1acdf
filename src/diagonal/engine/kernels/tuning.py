"""Tuned constants of all kernels, one table per GPU architecture.

All were measured on an H200 (docs/log, docs/performance.md, benchmarks/results), the only architecture tuned so far:
others use its table until they have their own. What a kernel can do at all stands in the kernel's module, not here.
Tables are read at every call, so that `benchmarks/variants.py` can compare values:

    --variant engine.kernels.tuning.HOPPER.small_m.large_tokens=16
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import torch


@dataclass(slots=True)
class SmallM:
    """`cuda.small_m_gemm`: GEMMs of up to 16 tokens."""

    large: int = 2048  # matrices with more rows and columns than this ...
    large_tokens: int = 8  # ... are faster elsewhere with more tokens than this
    warps: int = 16  # of a thread block, at most
    chunks: int = 8  # of 32 columns of a warp, at most: more depth means more of x to read for every thread block
    # Percent of shared memory in the carve-out: weights on their way to registers take room in the L1 cache. Not for
    # depths above `large`, where other kernels come between and each change of it costs more than is gained.
    carveout: int = 25


@dataclass(slots=True)
class Wgmma:
    """`cuda.wgmma_gemm`: GEMMs of up to 128 tokens."""

    deep: int = 8192  # matrices deeper than this ...
    deep_rows: int = 4096  # ... with at most so many rows ...
    deep_tokens: int = 9  # ... are as fast or faster elsewhere with fewer tokens than this
    few_tokens: int = 16  # with up to so many, thread blocks of more than `large_rows` rows are slower than others
    small_rows: int = 64  # rows of a thread block up to which tiles are deepest
    large_rows: int = 128  # and up to which they are deeper than one unit of 64 columns
    least_fill: float = 0.7  # computed rows that exist, with more than 64 tokens: with less it is no faster than cuBLAS
    weight_bytes: int = 96 * 1024  # of W that should be in flight at least
    x_rows: int = 768  # rows of W, in units of 64 columns, whose reading (about 3 us) hides the loads of x
    token_step: int = 16  # tokens that share one compiled kernel, where tokens are the rows of wgmma


@dataclass(slots=True)
class SplitKV:
    """`triton.split_kv`: attention of a decode step."""

    rows: int = 64  # of a tile, at most. Wider tiles read keys less often and were slower
    keys: int = 64  # of a KV tile
    exact_keys: int = 16  # of a KV tile in float32, which takes no tensor core and many registers
    blocks_per_sm: int = 2  # thread blocks on a multiprocessor: one computes while the other waits
    least_blocks: int = 4  # blocks of the cache for each of them; with fewer there is one thread block
    splits: int = 64  # at most; the reduction is unrolled for them
    reduce_rows: int = 8  # of a thread block of the reduction, at most
    reduce_entries: int = 128  # rows times splits of it: they are loaded at once
    stages: int = 3  # KV tiles in flight
    few_tiles: int = 6  # KV tiles of a thread block up to which masking all costs less than a second loop
    warps: int = 4


@dataclass(slots=True)
class HopperAttention:
    """`cuda.hopper_attention`: attention of decode steps and prefills."""

    stages: int = 8  # KV tiles in flight, at most
    prefill_groups: int = 2  # warpgroups of a thread block; with three a prefill takes as long


@dataclass(slots=True)
class LatentAttention:
    """Attention of a diffusion call by cuDNN, whose keys may be split."""

    tile: int = 128  # queries of a thread block of cuDNN
    least_gain: float = 0.95  # of the time without: the reduction takes a little too
    queries: int = 1024  # fewer are not worth it


@dataclass(slots=True)
class TextAttention:
    """`triton.text_attention`: tiles of queries and keys."""

    queries: int = 64
    keys: int = 32
    exact_keys: int = 16  # in float32
    warps: int = 4
    stages: int = 3


@dataclass(slots=True)
class Int8:
    """`triton.int8_gemm`."""

    rows: int = 16  # tokens, at most: one tile of the tensor cores; with more, bfloat16 was faster
    depth: int = 128  # of a tile
    warps: int = 8
    multiprocessors: int = 132  # another GPU needs no exact number


@dataclass(slots=True)
class Pointwise:
    """Norms, activations, and what else is elementwise."""

    heads: int = 8  # of a thread block that rotates and writes: enough blocks for all, yet not one for each 128 bytes
    columns: int = 1024  # of a thread block of the activations
    tile: int = 4096  # elements of a thread block of the norms of pictures
    frame_splits: int = 128  # of a frame in the sums of a norm, at most


@dataclass(slots=True)
class RegisterSampling:
    """`triton.sampling` and `cuda.register_sampling`."""

    block: int = 8192  # ids of a block that is read at a time, at most
    # Ids that a thread holds in registers, and threads of a thread block at most.
    held: dict[int, int] = field(default_factory=lambda: {8: 512, 16: 640, 32: 1024, 64: 1024})
    threads: int = 128  # at least
    bins: int = 8192  # 64 powers of 2 of one sign: the window after one that missed has all there is


@dataclass(frozen=True, slots=True)
class Table:
    """All constants of one architecture."""

    small_m: SmallM = field(default_factory=SmallM)
    wgmma: Wgmma = field(default_factory=Wgmma)
    split_kv: SplitKV = field(default_factory=SplitKV)
    hopper_attention: HopperAttention = field(default_factory=HopperAttention)
    latent_attention: LatentAttention = field(default_factory=LatentAttention)
    text_attention: TextAttention = field(default_factory=TextAttention)
    int8: Int8 = field(default_factory=Int8)
    pointwise: Pointwise = field(default_factory=Pointwise)
    sampling: RegisterSampling = field(default_factory=RegisterSampling)


@dataclass(slots=True)
class CPU:
    """`cpu.linear`, on any CPU."""

    # Tokens, at most. With more of bfloat16 oneDNN is faster; in float32 it takes twice as long, up to 772 at least.
    tokens: int = 1024
    half_tokens: int = 16


HOPPER = Table()
PROCESSOR = CPU()
BY_CAPABILITY = {9: HOPPER}  # by the major number of the compute capability


@cache
def of(device: torch.device) -> Table:
    """The table of a device; Hopper's for those that have none."""
    if device.type != "cuda":
        return HOPPER
    return BY_CAPABILITY.get(torch.cuda.get_device_capability(device)[0], HOPPER)
