"""Products of steps with few tokens, each one kernel with its norm, its activation and its residual (narrow.cu).

A small model's step is as long as its kernels are many: one of these takes the place of up to three, and asks for its
weights while the kernel before it still runs. Large products gain less, and some of them cuBLAS makes faster.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from diagonal.engine.heads import Heads
from diagonal.engine.kernels import cuda, hopper_attention
from diagonal.engine.kernels.early import possible
from diagonal.engine.product import Norm, Pending, Product

SIDE = 8  # tokens, or rows of weights, that the tensor cores take at a time
CHUNK = 32  # columns that a warp takes at a time
WARPS = 16  # of a program, at most
ROUNDS = 8  # chunks of a warp, at most: more depth means more of x to read for every program
TOKENS = 16  # of a step, at most
FEW, SMALL = 8, 2048  # with more tokens than FEW, others are faster if a matrix has more rows and columns than SMALL
REGISTERS = 65536  # of a multiprocessor, on which one program runs
OTHERS = 30  # registers of a thread for what is neither weights nor tokens, about
# Weights on their way to registers take room in the first-level cache: shared memory should be this part of what it can
# be. Not so in large models, where others come between, and each change costs more than is gained.
PERCENT = 25
HEADS = 3  # the rows are heads of queries, keys and values
RMS, LAYER = 1, 2  # norms
OWN = 2  # rows of a layer norm's own beside those of tokens: the tensor cores take 16


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
    HEAD: int = 0
    ROPE: bool = False
    CALL: bool = False

    @property
    def columns(self) -> int:
        """Outputs of a token that a program makes at a time."""
        return SIDE * self.TILES // (2 if cuda.ACTIVATIONS["silu"] == self.ACT else 1)

    @property
    def held(self) -> int:
        """Halves of tokens, or of a norm's own rows, that a thread holds in registers."""
        return 2 if self.NORM == LAYER else self.HALVES if self.NORM == RMS else 1

    def room(self, pieces: int) -> bool:
        """Whether a thread has registers for so many pieces of 16 bytes of each round."""
        needed = 4 * pieces * self.K // (CHUNK * self.WARPS) + OTHERS
        return needed <= REGISTERS // (32 * self.WARPS)

    @property
    def constants(self) -> dict[str, int | str]:
        numbers = {name: int(value) for name, value in asdict(self).items()}
        return {**numbers, "SOON": int(self.room(self.TILES + self.held + 1))}

    @property
    def shared(self) -> int:
        """Bytes for the sums of all warps, twice."""
        lines = SIDE * self.HALVES + (OWN if self.NORM == LAYER and self.HALVES == 1 else 0)
        return 2 * self.WARPS * lines * (SIDE * self.TILES + 4) * 4


def cut(tokens: int, product: Product, processors: int) -> Cut | None:
    """How a product of so many tokens is cut up, None where this kernel is not made for it."""
    rows, depth = product.weight_NK.shape
    chunks, halves = depth // CHUNK, -(-tokens // SIDE)
    if depth % CHUNK or not chunks or not 1 <= tokens <= (FEW if min(rows, depth) > SMALL else TOKENS):
        return None
    warps = max(size for size in range(1, WARPS + 1) if chunks % size == 0)
    rounds = chunks // warps

    def work(tiles: int) -> tuple[int, int]:
        """Rows that the busiest program has, and in how many turns."""
        turns = -(-rows // (SIDE * tiles * processors))
        return turns * tiles, turns

    norm = product.norm
    found = Cut(
        K=depth,
        WARPS=warps,
        TILES=min((1, 2), key=work),
        HALVES=halves,
        NORM=0 if norm is None else LAYER if norm.centred else RMS,
        GAIN=norm is not None and norm.weight is not None,
        SHIFT=norm is not None and norm.bias is not None,
        BIAS=product.bias_N is not None,
        ACT=cuda.ACTIVATIONS[product.act],
        ADD=product.residual is not None,
    )
    outputs = SIDE * halves * found.columns  # one for each thread, or for two
    full = rounds > ROUNDS or not found.room(found.TILES + found.held)
    odd = warps % 2 or (product.act == "silu" and rows % (2 * SIDE))
    crowded = found.NORM == LAYER and tokens + OWN > TOKENS
    return None if full or odd or crowded or outputs > 32 * warps else found


def fitting(x: Tensor, product: Product) -> Cut | None:
    """How the kernel would make a product, None where it cannot, or where others are faster."""
    both = product.act is not None and product.residual is not None
    if both or not cuda.suits(product.parts()) or x.dtype != torch.bfloat16 or x.data_ptr() % 16:
        return None
    processors = _processors(x.device)
    return cut(x.numel() // x.shape[-1], product, processors) if processors else None


def run(x: Tensor, product: Product, found: Cut) -> Tensor:
    """The product as `fitting` found it."""
    rows = len(product.weight_NK)
    width = rows // 2 if product.act == "silu" else rows
    out = x.new_empty(*x.shape[:-1], width) if product.residual is None else product.residual
    _launch(x, product, found, out, (None,) * 5, (0,) * 4)
    return out


def fitting_heads(heads: Heads, k_BKLD: Tensor, v_BKLD: Tensor, slots_S: Tensor) -> Cut | None:
    """How the kernel would make a product of heads, turn them, and write keys and values to the cache; None where it
    cannot."""
    source, rope = heads.source, heads.rope
    if not isinstance(source, Pending) or heads.norm is not None or heads.head_dim % (2 * SIDE):
        return None
    batch, inputs, width = *source.x.shape[:2], heads.head_dim
    wanted = [
        *((part, (inputs, width), torch.float32) for part in rope or ()),
        *((part, (batch, heads.kv_heads, part.shape[2], width), torch.bfloat16) for part in (k_BKLD, v_BKLD)),
        (slots_S, (inputs,), torch.int64),
    ]
    if any(part.shape != shape or part.dtype != kind or not part.is_contiguous() for part, shape, kind in wanted):
        return None
    found = fitting(source.x, source.asked)
    call = hopper_attention.serves(width, k_BKLD)
    return None if found is None else replace(found, ACT=HEADS, HEAD=width, ROPE=rope is not None, CALL=call)


def remember(heads: Heads, k_BKLD: Tensor, v_BKLD: Tensor, slots_S: Tensor, found: Cut) -> Tensor:
    """What `fused.remember` does, and the product before it, as `fitting_heads` found it: queries (B, H, S, D)."""
    assert isinstance(heads.source, Pending)
    x = heads.source.x
    q_BHSD = x.new_empty(len(x), heads.heads, x.shape[1], heads.head_dim)
    numbers = (x.shape[1], k_BKLD.shape[2], heads.heads, heads.kv_heads)
    _launch(x, heads.source.asked, found, q_BHSD, (*(heads.rope or (None, None)), slots_S, k_BKLD, v_BKLD), numbers)
    return q_BHSD


def _launch(
    x: Tensor, product: Product, found: Cut, out: Tensor, tables: tuple[Tensor | None, ...], numbers: tuple[int, ...]
) -> None:
    """`tables` and `numbers` are those of heads."""
    x_MK, rows = x.contiguous().view(-1, found.K), len(product.weight_NK)
    norm = product.norm or Norm(None, None, 0.0, centred=False)
    tiles = -(-rows // (SIDE * found.TILES))
    programs = min(tiles, _processors(x.device))
    tensors = (x_MK, product.weight_NK, norm.weight, norm.bias, product.bias_N, out)
    given = (*tensors, len(x_MK), rows, tiles, float(norm.eps), *tables, *numbers)
    _kernel(found, x.device).launch((programs, 1, 1), 32 * found.WARPS, found.shared, given)


@cache
def _processors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU on which the kernel runs, 0 for others."""
    able = possible(device) and cuda.works(device)
    return torch.cuda.get_device_properties(device).multi_processor_count if able else 0


@cache
def _kernel(found: Cut, device: torch.device) -> cuda.Kernel:
    path = Path(__file__).with_suffix(".cu")
    percent = PERCENT if found.K <= SMALL else -1
    return cuda.compile_kernel(path, "product", found.constants, found.shared, device, percent)
