"""Windows of frames that are decoded in the order of their cells (`kernels.live.LiveWindow`): a step, and what it
settles."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diagonal.engine.kernels import tuning
from diagonal.engine.kernels.live import LiveFrame, LiveStep, LiveWindow
from diagonal.engine.kernels.triton.live_step import check_tokens, place
from diagonal.engine.kernels.triton.pdl import options, wait
from diagonal.engine.kernels.visibility import BLOCK, EVERYBODY, NOWHERE, Visibility


def live_window(frame: LiveFrame, window: LiveWindow, tokens_NL: Tensor, inputs: int) -> LiveStep:
    """A step of a window of each sample, once for all layers."""
    check_tokens(frame, tokens_NL)
    batch, length, device = len(frame.rows_B), frame.unused, tokens_NL.device
    made = tokens_NL.new_empty(6, batch, inputs)
    needed_BL = torch.empty(batch, length, dtype=torch.int32, device=device)
    blocks = tokens_NL.new_empty(2, batch, 1)
    columns = tuning.of(device).pointwise.columns
    _live_window[(triton.cdiv(length, columns), batch)](
        *(tokens_NL, frame.rows_B, frame.own_B, frame.before_B, frame.position_B, frame.video_B, frame.filled_B),
        *(window.next_B, made, needed_BL, blocks, tokens_NL.stride(0), inputs, length),
        *(frame.prefix, frame.unit, frame.places, window.first, window.last),
        *(EVERYBODY, NOWHERE, BLOCK, triton.next_power_of_2(inputs), columns),
        **options(device),
    )
    tokens_BS, slots_BS, positions_BS, write_BS, noise_BS, number_BS = made.unbind()
    seen = Visibility(number_BS, needed_BL, blocks[0], blocks[1], frame.rows_B)
    return LiveStep(tokens_BS, slots_BS, positions_BS, write_BS, noise_BS, seen)


def settle(frame: LiveFrame, window: LiveWindow, step: LiveStep, tokens_NL: Tensor) -> None:
    """Move each window behind what was sampled as it had been fed, and one further."""
    check_tokens(frame, tokens_NL)
    batch, inputs = step.tokens_BS.shape
    _settle[(batch,)](
        *(tokens_NL, frame.rows_B, step.tokens_BS, step.slots_BS, window.next_B, tokens_NL.stride(0), inputs),
        *(window.last, triton.next_power_of_2(inputs)),
        **options(tokens_NL.device),
    )


@triton.jit
def _live_window(
    tokens, rows_B, own_B, before_B, position_B, video_B, filled_B, next_B,
    made, needed, blocks, stride, inputs, length, prefix, unit, places, first, last,
    EVERYBODY: tl.constexpr, NOWHERE: tl.constexpr, SLOTS: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """What some slots of a sample need, and in its first thread block what differs from input to input."""
    if PDL:
        wait()
    b = tl.program_id(1).to(tl.int64)
    own, before = tl.load(own_B + b), tl.load(before_B + b)
    end = prefix + tl.minimum(tl.load(filled_B + b), places) * unit

    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_own = (slot >= own) & (slot < own + unit)
    near = in_own | ((slot >= before) & (slot < before + unit))
    number = tl.where(in_own, slot - own, slot - before - unit)
    least = tl.where(slot < end, tl.where(near, number, EVERYBODY), NOWHERE)
    tl.store(needed + b * length + slot, least.to(tl.int32), mask=slot < length)

    if tl.program_id(0) == 0:
        batch = tl.num_programs(1)
        tl.store(blocks + b, tl.minimum(tl.minimum(own, before), end) // SLOTS)
        tl.store(blocks + batch + b, (end + SLOTS - 1) // SLOTS)
        column = tl.arange(0, WIDTH)
        there = column < inputs
        start = tl.load(next_B + b)
        useful = start + column < last
        cell = tl.where(useful, start + column, start)
        write = cell + 1
        slots = place(cell, own, before, unit)
        row = tokens + tl.load(rows_B + b) * stride
        to = made + b * inputs + column
        tl.store(to, tl.load(row + slots, mask=there), mask=there)
        to += batch * inputs
        tl.store(to, slots, mask=there)
        to += batch * inputs
        tl.store(to, tl.load(position_B + b) + cell, mask=there)
        to += batch * inputs
        wanted = useful & (write >= first)
        tl.store(to, tl.where(wanted, place(write, own, before, unit), length), mask=there)
        to += batch * inputs
        tl.store(to, tl.load(video_B + b) + write, mask=there)
        to += batch * inputs
        tl.store(to, cell, mask=there)


@triton.jit
def _settle(tokens, rows_B, fed, slots, next_B, stride, inputs, last, WIDTH: tl.constexpr, PDL: tl.constexpr):
    """One sample: the first input behind the first whose token is not what it was fed as."""
    if PDL:
        wait()
    b = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    there = (column > 0) & (column < inputs)
    row = tokens + tl.load(rows_B + b) * stride
    slot = tl.load(slots + b * inputs + column, mask=there, other=0)
    now = tl.load(row + slot, mask=there, other=0)
    was = tl.load(fed + b * inputs + column, mask=there, other=0)
    right = tl.min(tl.where(there & (now != was), column, inputs), axis=0)
    tl.store(next_B + b, tl.minimum(tl.load(next_B + b) + right, last))
