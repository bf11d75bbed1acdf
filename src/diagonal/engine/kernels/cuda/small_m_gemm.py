"""Small-M GEMMs: linear layers of up to 16 tokens in one kernel each, with norm, activation, residual, and for heads
RoPE and the cache write (small_m_gemm.cu).

A decode step of a small model is bound by the number of its kernels: one of these takes the place of up to three, and
loads its weights while the kernel before it still runs. Large matrices gain less, and some of them are faster in
cuBLAS. Which layers come here is decided by `select`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from diagonal.engine.heads import Heads
from diagonal.engine.kernels import tuning
from diagonal.engine.kernels.cuda import nvrtc
from diagonal.engine.kernels.device import launches_early
from diagonal.engine.kernels.visibility import sample_stride
from diagonal.engine.linear import DeferredLinear, FusedLinear, Norm

SIDE = 8  # tokens, or rows of weights, of an mma tile
CHUNK = 32  # columns that a warp takes at a time
TOKENS = 16  # at most
REGISTERS = 65536  # of a multiprocessor, on which one thread block runs
OTHERS = 30  # registers of a thread for what is neither weights nor tokens, about
HEADS = 3  # the activation's number where the rows are heads of queries, keys and values
RMS, LAYER = 1, 2  # norms
NORM_ROWS = 2  # of a layer norm itself beside those of tokens: an mma tile has 16


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """What the kernel is compiled for; small_m_gemm.cu says what the constants are."""

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
    HEAD: int = 0
    ROPE: bool = False
    LAUNCH_NEXT: bool = False

    @property
    def columns(self) -> int:
        """Outputs of a token that a thread block makes at a time."""
        return SIDE * self.TILES // (2 if nvrtc.ACTIVATIONS["silu"] == self.ACT else 1)

    @property
    def held(self) -> int:
        """Halves of tokens, or of a norm's own rows, that a thread holds in registers."""
        return 2 if self.NORM == LAYER else self.HALVES if self.NORM == RMS else 1

    def room(self, vectors: int) -> bool:
        """Whether a thread has registers for so many vectors of 16 bytes of each chunk."""
        needed = 4 * vectors * self.K // (CHUNK * self.WARPS) + OTHERS
        return needed <= REGISTERS // (32 * self.WARPS)

    @property
    def constants(self) -> dict[str, int | str]:
        constants = {name: int(value) for name, value in asdict(self).items()}
        return {**constants, "SOON": int(self.room(self.TILES + self.held + 1))}

    @property
    def shared(self) -> int:
        """Bytes for the sums of all warps, double-buffered."""
        lines = SIDE * self.HALVES + (NORM_ROWS if self.NORM == LAYER and self.HALVES == 1 else 0)
        return 2 * self.WARPS * lines * (SIDE * self.TILES + 4) * 4


def configure(tokens: int, linear: FusedLinear, multiprocessors: int) -> KernelConfig | None:
    """The kernel for a linear layer of so many tokens; None where there is none, or another is faster."""
    rows, depth = linear.weight_NK.shape
    tuned = tuning.of(linear.weight_NK.device).small_m
    most = tuned.large_tokens if min(rows, depth) > tuned.large else TOKENS
    chunks, halves = depth // CHUNK, -(-tokens // SIDE)
    if depth % CHUNK or not chunks or not 1 <= tokens <= most:
        return None
    warps = max(size for size in range(1, tuned.warps + 1) if chunks % size == 0)

    def work(tiles: int) -> tuple[int, int]:
        """Rows of the busiest thread block, and its number of tiles."""
        steps = -(-rows // (SIDE * tiles * multiprocessors))
        return steps * tiles, steps

    norm = linear.norm
    found = KernelConfig(
        K=depth,
        WARPS=warps,
        TILES=min((1, 2), key=work),
        HALVES=halves,
        NORM=0 if norm is None else LAYER if norm.centred else RMS,
        GAIN=norm is not None and norm.weight is not None,
        SHIFT=norm is not None and norm.bias is not None,
        BIAS=linear.bias_N is not None,
        ACT=nvrtc.ACTIVATIONS[linear.act],
        ADD=linear.residual is not None,
    )
    outputs = SIDE * halves * found.columns  # one for each thread, or for two
    full = chunks // warps > tuned.chunks or not found.room(found.TILES + found.held)
    odd = warps % 2 or (linear.act == "silu" and rows % (2 * SIDE))
    crowded = found.NORM == LAYER and tokens + NORM_ROWS > TOKENS
    return None if full or odd or crowded or outputs > 32 * warps else found


def supports_heads(heads: Heads, k_NKLD: Tensor, v_NKLD: Tensor, slots_S: Tensor, rows_B: Tensor | None) -> bool:
    """Whether the kernel can rotate such heads and write them to such a cache."""
    rope, width = heads.rope, heads.head_dim
    if heads.norm is not None or width % (2 * SIDE):
        return False
    batch, inputs = heads.given.shape[:2]
    of_rope, of_slots = ((batch,) if several else () for several in (_several(heads), slots_S.ndim > 1))
    cache = (batch if rows_B is None else len(k_NKLD), heads.kv_heads, k_NKLD.shape[2], width)
    wanted = [
        *((one, (*of_rope, inputs, width), torch.float32) for one in rope or ()),
        *((one, cache, torch.bfloat16) for one in (k_NKLD, v_NKLD)),
        (slots_S, (*of_slots, inputs), torch.int64),
        *((one, (batch,), torch.int64) for one in (rows_B,) if one is not None),
    ]
    return all(one.shape == shape and one.dtype == kind and one.is_contiguous() for one, shape, kind in wanted)


def _several(heads: Heads) -> bool:
    """Whether samples have rotations of their own."""
    return heads.rope is not None and heads.rope[0].ndim > 2


def configure_heads(config: KernelConfig, heads: Heads, launch_next: bool) -> KernelConfig:
    """The same with RoPE and the cache write; the attention after it is launched early if it can wait itself."""
    return replace(config, ACT=HEADS, HEAD=heads.head_dim, ROPE=heads.rope is not None, LAUNCH_NEXT=launch_next)


def run(x: Tensor, linear: FusedLinear, config: KernelConfig) -> Tensor:
    """The layer as it was configured."""
    rows = len(linear.weight_NK)
    width = rows // 2 if linear.act == "silu" else rows
    out = x.new_empty(*x.shape[:-1], width) if linear.residual is None else linear.residual
    _launch(x, linear, config, out, (None,) * 6, (0,) * 6)
    return out


def run_heads(
    heads: Heads, k_NKLD: Tensor, v_NKLD: Tensor, slots_S: Tensor, rows_B: Tensor | None, config: KernelConfig
) -> Tensor:
    """A deferred layer of heads with RoPE and the cache write, as it was configured: queries (B, H, S, D)."""
    assert isinstance(heads.source, DeferredLinear)
    x = heads.source.x
    inputs = x.shape[1]
    q_BHSD = x.new_empty(len(x), heads.heads, inputs, heads.head_dim)
    strides = (inputs * heads.head_dim if _several(heads) else 0, sample_stride(slots_S))
    sizes = (inputs, k_NKLD.shape[2], heads.heads, heads.kv_heads, *strides)
    tables = (*(heads.rope or (None, None)), slots_S, rows_B, k_NKLD, v_NKLD)
    _launch(x, heads.source.linear, config, q_BHSD, tables, sizes)
    return q_BHSD


def _launch(
    x: Tensor,
    linear: FusedLinear,
    config: KernelConfig,
    out: Tensor,
    tables: tuple[Tensor | None, ...],
    sizes: tuple[int, ...],
) -> None:
    """`tables` and `sizes` are those of heads."""
    x_MK, rows = x.contiguous().view(-1, config.K), len(linear.weight_NK)
    norm = linear.norm or Norm(None, None, 0.0, centred=False)
    tiles = -(-rows // (SIDE * config.TILES))
    grid = (min(tiles, multiprocessors(x.device)), 1, 1)
    tensors = (x_MK, linear.weight_NK, norm.weight, norm.bias, linear.bias_N, out)
    arguments = (*tensors, len(x_MK), rows, tiles, float(norm.eps), *tables, *sizes)
    _kernel(config, x.device).launch(grid, 32 * config.WARPS, config.shared, arguments)


@cache
def multiprocessors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU on which the kernel runs, 0 for others."""
    able = launches_early(device) and nvrtc.works(device)
    return torch.cuda.get_device_properties(device).multi_processor_count if able else 0


@cache
def _kernel(config: KernelConfig, device: torch.device) -> nvrtc.Kernel:
    tuned = tuning.of(device).small_m
    small = tuned.large >= config.K
    carveout = tuned.carveout if small else -1
    path = Path(__file__).with_suffix(".cu")
    return nvrtc.compile_kernel(path, "gemm", config.constants, config.shared, device, carveout)
