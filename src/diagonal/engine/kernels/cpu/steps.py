"""Launches what a decode step does beside layers, attention and sampling (`steps.cpp`)."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from diagonal.engine.heads import Rope, frequencies
from diagonal.engine.kernels.cpu.calls import call, made
from diagonal.engine.kernels.cpu.library import numbers
from diagonal.engine.kernels.live import LiveFrame, LiveStep, LiveWindow
from diagonal.engine.kernels.visibility import BLOCK, EVERYBODY, NOWHERE, Visibility
from diagonal.planning.frames import UNUSED

CPU = torch.device("cpu")


def next_step(
    rows_NR: Tensor, cursor: Tensor, fed_L: Tensor, tokens_BL: Tensor, inputs: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The row at the cursor, which moves on, its tokens, and `Visibility.needed_L` at its step."""
    row_R, needed_L = made(rows_NR.shape[1:], torch.int64), made(fed_L.shape, torch.int32)
    read_BS = made((len(tokens_BL), inputs), torch.int64)
    struct = numbers(
        rows_NR.data_ptr(), rows_NR.shape[1], cursor.data_ptr(), fed_L.data_ptr(), len(fed_L),
        tokens_BL.data_ptr(), tokens_BL.stride(0), *read_BS.shape,
        row_R.data_ptr(), read_BS.data_ptr(), needed_L.data_ptr(), NOWHERE,
    )  # fmt: skip
    call("diagonal_next_step", struct)
    return row_R, read_BS, needed_L


def live_step(rows_NR: Tensor, cursor: Tensor, frame: LiveFrame, tokens_NL: Tensor, inputs: int) -> LiveStep:
    """The step at the cursor, which moves on, in the rings of all samples."""
    batch, length = len(frame.rows_B), frame.unused
    slot_S, numbers_5BS = made((inputs,), torch.int64), made((5, batch, inputs), torch.int64)
    needed_BL, blocks = made((batch, length), torch.int32), made((2, batch, 1), torch.int64)
    of_samples = (frame.rows_B, frame.own_B, frame.before_B, frame.position_B, frame.video_B, frame.filled_B)
    struct = numbers(
        rows_NR.data_ptr(), cursor.data_ptr(), tokens_NL.data_ptr(), tokens_NL.stride(0),
        *(one.data_ptr() for one in (*of_samples, frame.fed_U2)),
        batch, inputs, length, frame.prefix, frame.unit, frame.places,
        slot_S.data_ptr(), numbers_5BS.data_ptr(), needed_BL.data_ptr(), blocks.data_ptr(),
        UNUSED, EVERYBODY, NOWHERE, BLOCK,
    )  # fmt: skip
    call("diagonal_live_step", struct)
    seen = Visibility(slot_S, needed_BL, blocks[0], blocks[1], frame.rows_B)
    tokens_BS, slots_BS, positions_BS, write_BS, noise_BS = numbers_5BS.unbind()
    return LiveStep(tokens_BS, slots_BS, positions_BS, write_BS, noise_BS, seen)


def live_window(frame: LiveFrame, window: LiveWindow, tokens_NL: Tensor, inputs: int) -> LiveStep:
    """A step of a window of each sample."""
    batch, length = len(frame.rows_B), frame.unused
    numbers_6BS = made((6, batch, inputs), torch.int64)
    needed_BL, blocks = made((batch, length), torch.int32), made((2, batch, 1), torch.int64)
    of_samples = (frame.rows_B, frame.own_B, frame.before_B, frame.position_B, frame.video_B, frame.filled_B)
    struct = numbers(
        tokens_NL.data_ptr(), tokens_NL.stride(0), *(one.data_ptr() for one in (*of_samples, window.next_B)),
        batch, inputs, length, frame.prefix, frame.unit, frame.places, window.first, window.last,
        numbers_6BS.data_ptr(), needed_BL.data_ptr(), blocks.data_ptr(), EVERYBODY, NOWHERE, BLOCK,
    )  # fmt: skip
    call("diagonal_live_window", struct)
    tokens_BS, slots_BS, positions_BS, write_BS, noise_BS, number_BS = numbers_6BS.unbind()
    seen = Visibility(number_BS, needed_BL, blocks[0], blocks[1], frame.rows_B)
    return LiveStep(tokens_BS, slots_BS, positions_BS, write_BS, noise_BS, seen)


def settle(frame: LiveFrame, window: LiveWindow, step: LiveStep, tokens_NL: Tensor) -> None:
    """Move the windows behind what was right in a step that `live_window` made."""
    struct = numbers(
        tokens_NL.data_ptr(), tokens_NL.stride(0), frame.rows_B.data_ptr(), *step.tokens_BS.shape,
        step.tokens_BS.data_ptr(), step.slots_BS.data_ptr(), window.next_B.data_ptr(), window.last,
    )  # fmt: skip
    call("diagonal_settle", struct)


def gather_rows(tables_TLC: Tensor, ids_N: Tensor) -> Tensor:
    """The rows with these ids of each table, (T, N, C). An id that no row has gives NaN."""
    tables_TLC, ids_N = tables_TLC.contiguous(), ids_N.contiguous()
    count, length, width = tables_TLC.shape
    out_TNC = made((count, len(ids_N), width), tables_TLC.dtype)
    struct = numbers(
        tables_TLC.data_ptr(), count, length, width * tables_TLC.itemsize,
        ids_N.data_ptr(), len(ids_N), out_TNC.data_ptr(),
    )  # fmt: skip
    call("diagonal_gather_rows", struct)
    return out_TNC


def rope_1d(positions: Tensor, head_dim: int, theta: float) -> Rope:
    """cos and sin of position * theta^(-2i/D), with whole turns dropped in float64."""
    positions, table = positions.contiguous(), _frequencies(head_dim, theta)
    cos, sin = (made((*positions.shape, head_dim), torch.float32) for _ in range(2))
    struct = numbers(
        positions.data_ptr(), positions.numel(), table.data_ptr(), head_dim // 2, cos.data_ptr(), sin.data_ptr()
    )
    call("diagonal_rope", struct)
    return cos, sin


@functools.cache
def _frequencies(head_dim: int, theta: float) -> Tensor:
    """They are read by recorded calls, so they stay where they are."""
    return frequencies(head_dim, theta, CPU)
