"""The step of frames that samples decode together, each in its own ring (`kernels.live`), in one kernel."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagonal.engine.kernels import tuning
from diagonal.engine.kernels.live import LiveFrame, LiveStep
from diagonal.engine.kernels.triton.pdl import options, wait
from diagonal.engine.kernels.visibility import BLOCK, EVERYBODY, NOWHERE, Visibility
from diagonal.planning.frames import UNUSED


def live_step(rows_NR: Tensor, cursor: Tensor, frame: LiveFrame, tokens_NL: Tensor, inputs: int) -> LiveStep:
    """The step at the cursor, which moves on, once for all layers. Rows, slots and numbers of cells are read on the GPU
    and trusted."""
    _check(rows_NR, frame, tokens_NL, inputs)
    batch, length, device = len(frame.rows_B), frame.unused, rows_NR.device
    slot_S, made = rows_NR.new_empty(inputs), rows_NR.new_empty(5, batch, inputs)
    needed_BL = torch.empty(batch, length, dtype=torch.int32, device=device)
    blocks = rows_NR.new_empty(2, batch, 1)
    columns = tuning.of(device).pointwise.columns
    _live_step[(triton.cdiv(length, columns), batch)](
        *(rows_NR, cursor, tokens_NL, frame.rows_B, frame.own_B, frame.before_B, frame.position_B),
        *(frame.video_B, frame.filled_B, frame.fed_U2, slot_S, made, needed_BL, blocks),
        *(tokens_NL.stride(0), inputs, length, frame.prefix, frame.unit, frame.places),
        *(UNUSED, EVERYBODY, NOWHERE, BLOCK, triton.next_power_of_2(inputs), columns),
        **options(device),
    )
    tokens_BS, slots_BS, positions_BS, write_BS, noise_BS = made.unbind()
    seen = Visibility(slot_S, needed_BL, blocks[0], blocks[1], frame.rows_B)
    return LiveStep(tokens_BS, slots_BS, positions_BS, write_BS, noise_BS, seen)


def _check(rows_NR: Tensor, frame: LiveFrame, tokens_NL: Tensor, inputs: int) -> None:
    """Refuse what the kernel would read wrongly: it sees addresses, not shapes."""
    if rows_NR.shape[1:] != (3 * inputs + 1,) or rows_NR.dtype != torch.int64 or not rows_NR.is_contiguous():
        given = f"a table of {tuple(rows_NR.shape)}, {rows_NR.dtype}"
        raise ValueError(f"{given} given; steps of {inputs} inputs are contiguous rows of {3 * inputs + 1} in int64")
    check_tokens(frame, tokens_NL)


def check_tokens(frame: LiveFrame, tokens_NL: Tensor) -> None:
    """Refuse rows of tokens that are too short, or of another type."""
    if tokens_NL.shape[1] <= frame.unused or tokens_NL.dtype != torch.int64 or tokens_NL.stride(1) != 1:
        given = f"tokens of {tuple(tokens_NL.shape)}, {tokens_NL.dtype}"
        raise ValueError(f"{given} given; int64 is needed, with a column for each of {frame.unused} slots and one more")


@triton.jit
def place(number, own, before, unit):
    """The slots of cells of a frame and of the one before."""
    return tl.where(number < 0, before + unit + number, own + number)


@triton.jit
def _live_step(
    rows, cursor, tokens, rows_B, own_B, before_B, position_B, video_B, filled_B, fed_U2,
    relative, made, needed, blocks, stride, inputs, length, prefix, unit, places,
    UNUSED: tl.constexpr, EVERYBODY: tl.constexpr, NOWHERE: tl.constexpr, SLOTS: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """What some slots of a sample need, and in its first thread block what differs from input to input. The last thread
    block to read the cursor moves it on."""
    if PDL:
        wait()
    step, b = tl.load(cursor), tl.program_id(1).to(tl.int64)
    at = rows + step * (3 * inputs + 1)
    own, before = tl.load(own_B + b), tl.load(before_B + b)
    end = prefix + tl.minimum(tl.load(filled_B + b), places) * unit

    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_own = (slot >= own) & (slot < own + unit)
    near = in_own | ((slot >= before) & (slot < before + unit))
    number = tl.where(in_own, slot - own, slot - before - unit)
    fed = tl.load(fed_U2 + unit + number, mask=near, other=0)
    least = tl.where(near, tl.where(fed <= tl.load(at + 3 * inputs), number, NOWHERE), EVERYBODY)
    tl.store(needed + b * length + slot, tl.where(slot < end, least, NOWHERE).to(tl.int32), mask=slot < length)

    if tl.program_id(0) == 0:
        batch = tl.num_programs(1)
        tl.store(blocks + b, tl.minimum(tl.minimum(own, before), end) // SLOTS)
        tl.store(blocks + batch + b, (end + SLOTS - 1) // SLOTS)
        column = tl.arange(0, WIDTH)
        there = column < inputs
        read = tl.load(at + column, mask=there, other=0)
        cell = tl.load(at + inputs + column, mask=there, other=0)
        write = tl.load(at + 2 * inputs + column, mask=there, other=0)
        tl.store(relative + column, cell, mask=there & (b == 0))
        row = tokens + tl.load(rows_B + b) * stride
        to = made + b * inputs + column
        tl.store(to, tl.load(row + place(read, own, before, unit), mask=there), mask=there)
        to += batch * inputs
        tl.store(to, place(cell, own, before, unit), mask=there)
        to += batch * inputs
        tl.store(to, tl.load(position_B + b) + cell, mask=there)
        to += batch * inputs
        tl.store(to, tl.where(write == UNUSED, length, place(write, own, before, unit)), mask=there)
        to += batch * inputs
        tl.store(to, tl.load(video_B + b) + write, mask=there)
    tl.debug_barrier()
    if tl.atomic_add(cursor + 1, 1) == tl.num_programs(0) * tl.num_programs(1) - 1:
        tl.store(cursor, step + 1)
        tl.store(cursor + 1, 0)
