"""What the kernels must compute, with the same calls, in plain torch on any device."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from diagonal.engine.attention import causal
from diagonal.engine.heads import Heads, Rope, cos_sin, frequencies
from diagonal.engine.heads import rms_norm as rms_norm
from diagonal.engine.kernels.live import LiveFrame, LiveStep, LiveWindow
from diagonal.engine.kernels.visibility import BLOCK, EVERYBODY, NOWHERE, Visibility
from diagonal.planning.frames import UNUSED

FP8_MOST = 448.0  # the greatest value of fp8 with 4 bits of exponent (e4m3)
FP8_SIDE = 16  # GEMMs in fp8 on tensor cores take matrices whose sides are multiples of it
TINY = 1e-12  # a row of zeros has some scale


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / std * weight + bias over the last dimension."""
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def rope_1d(positions: Tensor, head_dim: int, theta: float) -> Rope:
    """cos and sin of position * theta^(-2i/D).

    Whole turns are dropped in float64: a live video counts its positions without end, and in float32 neighbours would
    soon have the same angle.
    """
    exact = positions.cpu() if positions.device.type == "mps" else positions  # where there is no float64
    angles = exact[..., None].double() * frequencies(head_dim, theta, exact.device).double()
    return cos_sin((angles % (2 * math.pi)).float().to(positions.device))


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up: gate is the first half of the last dimension, up the second."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu(x: Tensor) -> Tensor:
    """The tanh form of GELU."""
    return F.gelu(x, approximate="tanh")


def frame_norm(x_BTHWC: Tensor, weight: Tensor, bias: Tensor, eps: float, silu: bool) -> Tensor:
    """(x - mean) / std * weight + bias, mean and std over all of a frame; with SiLU behind it."""
    x_NCHW = x_BTHWC.flatten(0, 1).permute(0, 3, 1, 2)
    normed = F.group_norm(x_NCHW, 1, weight, bias, eps)
    out: Tensor = (F.silu(normed) if silu else normed).permute(0, 2, 3, 1).unflatten(0, x_BTHWC.shape[:2])
    return out


def group_norm_silu(x_NCHW: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """silu of (x - mean) / std * weight + bias, mean and std over a group of channels of a frame."""
    return F.silu(F.group_norm(x_NCHW, groups, weight, bias, eps))


def norm_silu(x: Tensor, weight: Tensor, eps: float, plus: Tensor | None = None) -> Tensor:
    """silu of the RMS norm over the last dimension of x + plus."""
    return F.silu(F.rms_norm(x if plus is None else x + plus, x.shape[-1:], weight, eps=eps))


def add_bias(x: Tensor, bias: Tensor, other: Tensor) -> Tensor:
    """x + bias + other, with one bias for each place of the last dimension."""
    return x + bias + other


def add_norm(
    x_BFNC: Tensor, delta: Tensor | None, gate: Tensor | None, gain: Tensor, shift: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """x + gate * delta (without a gate: x + delta), and its LayerNorm * gain + shift.

    Gates, gains and shifts are (B or 1, F or 1, 1, C), or (C,).
    """
    if delta is not None:
        delta = delta.reshape(x_BFNC.shape)
        x_BFNC = x_BFNC + (delta if gate is None else gate * delta)
    return x_BFNC, F.layer_norm(x_BFNC, x_BFNC.shape[-1:], eps=eps) * gain + shift


def add_gated(x_BFNC: Tensor, delta: Tensor, gate: Tensor) -> Tensor:
    """x + gate * delta."""
    return x_BFNC + gate * delta.reshape(x_BFNC.shape)


def int8_linear(
    x: Tensor, weight_NK: Tensor, scale_N: Tensor, bias_N: Tensor | None, residual: Tensor | None
) -> Tensor:
    """x W^T + bias + residual, where row n of W is scale[n] times its int8 values, rounded to the dtype of x."""
    rounded_NK = torch.mul(weight_NK, scale_N[:, None], out=torch.empty_like(weight_NK, dtype=x.dtype))
    out = F.linear(x, rounded_NK, bias_N)
    return out if residual is None else residual + out


def fp8_rows(x_MK: Tensor) -> tuple[Tensor, Tensor]:
    """Each row over a scale of its own, rounded to fp8 (e4m3), and the scales (M, 1): the greatest value is 448."""
    scale_M1 = x_MK.float().abs().amax(-1, keepdim=True).clamp(min=TINY) / FP8_MOST
    return (x_MK.float() / scale_M1).clamp(-FP8_MOST, FP8_MOST).to(torch.float8_e4m3fn), scale_M1


def fp8_linear(x: Tensor, weight_NK: Tensor, scale_N: Tensor, bias_N: Tensor | None, residual: Tensor | None) -> Tensor:
    """x W^T + bias of rows in fp8, summed in float32: what the tensor cores compute, in plain float32. The residual is
    added to the rounded result."""
    rows_MK, scale_M1 = fp8_rows(x.flatten(0, -2))
    sums = (rows_MK.float() * scale_M1) @ (weight_NK.float() * scale_N[:, None]).t()
    sums = sums if bias_N is None else sums + bias_N.float()
    out: Tensor = sums.to(x.dtype).unflatten(0, x.shape[:-1])
    return out if residual is None else residual + out


def needed_slots(fed_L: Tensor, step: Tensor) -> Tensor:
    """`Visibility.needed_L` at a step, from the steps that first write each slot."""
    slots_L = torch.arange(len(fed_L), dtype=torch.int32, device=fed_L.device)
    return slots_L.masked_fill(fed_L > step, NOWHERE)


def next_step(
    rows_NR: Tensor, cursor: Tensor, fed_L: Tensor, tokens_BL: Tensor, inputs: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The row at the cursor, which moves on; the tokens (B, inputs) at the places that the row begins with; and the
    slots that are needed at the step which is its last entry. The cursor's second element is the kernel's own."""
    row_R = rows_NR[cursor[0]]
    cursor[:1].add_(1)
    return row_R, tokens_BL[:, row_R[:inputs]], needed_slots(fed_L, row_R[-1:])


def live_step(rows_NR: Tensor, cursor: Tensor, frame: LiveFrame, tokens_NL: Tensor, inputs: int) -> LiveStep:
    """The step at the cursor, which moves on, in the rings of all samples; see `live`. The cursor's second element is
    the kernel's own."""
    row_R = rows_NR[cursor[0]]
    cursor[:1].add_(1)
    read_S, slot_S, write_S, step = row_R.split([inputs] * 3 + [1])
    written_BS = torch.where(write_S == UNUSED, frame.unused, frame.place(write_S))
    return LiveStep(
        tokens_NL[frame.rows_B[:, None], frame.place(read_S)],
        frame.place(slot_S),
        frame.position_B[:, None] + slot_S,
        written_BS,
        frame.video_B[:, None] + write_S,
        Visibility(slot_S, live_needed(frame, step), *live_blocks(frame), frame.rows_B),
    )


def live_needed(frame: LiveFrame, step: Tensor) -> Tensor:
    """`Visibility.needed_L` (B, L) at a step of a frame: relative numbers in its own place and in that of the frame
    before, as far as they are fed, and EVERYBODY in front of the ring and in the other places that are filled."""
    slots_L = torch.arange(frame.unused, device=step.device)
    own_BL, before_BL = (slots_L - first_B[:, None] for first_B in (frame.own_B, frame.before_B))
    in_own, in_before = ((one >= 0) & (one < frame.unit) for one in (own_BL, before_BL))
    number_BL = torch.where(in_own, own_BL, before_BL - frame.unit)
    near = in_own | in_before
    fed_BL = frame.fed_U2[torch.where(near, number_BL + frame.unit, 0)]
    needed_BL = torch.where(near, torch.where(fed_BL <= step, number_BL, NOWHERE), EVERYBODY)
    return torch.where(slots_L < frame.end()[:, None], needed_BL, NOWHERE).to(torch.int32)


def live_blocks(frame: LiveFrame) -> tuple[Tensor, Tensor]:
    """`Visibility.whole` and `extent`, (B, 1) each: the blocks in front of all that the frame itself may change, and
    those with slots that are filled."""
    end_B = frame.end()
    whole_B = torch.minimum(torch.minimum(frame.own_B, frame.before_B), end_B) // BLOCK
    return whole_B[:, None], ((end_B + BLOCK - 1) // BLOCK)[:, None]


def live_window(frame: LiveFrame, window: LiveWindow, tokens_NL: Tensor, inputs: int) -> LiveStep:
    """A step of a window of each sample, in the order of the cells: see `live.LiveWindow`. Inputs behind the last that
    is of use repeat the first one."""
    number_BS = window.next_B[:, None] + torch.arange(inputs, device=tokens_NL.device)
    useful_BS = number_BS < window.last
    number_BS = torch.where(useful_BS, number_BS, window.next_B[:, None])
    write_BS = number_BS + 1
    slots_BS = frame.place(number_BS)
    wanted_BS = useful_BS & (write_BS >= window.first)
    written_BS = torch.where(wanted_BS, frame.place(write_BS), frame.unused)
    slots_L = torch.arange(frame.unused, device=tokens_NL.device)
    own_BL, before_BL = (slots_L - first_B[:, None] for first_B in (frame.own_B, frame.before_B))
    in_own, in_before = ((one >= 0) & (one < frame.unit) for one in (own_BL, before_BL))
    needed_BL = torch.where(in_own, own_BL, torch.where(in_before, before_BL - frame.unit, EVERYBODY))
    needed_BL = torch.where(slots_L < frame.end()[:, None], needed_BL, NOWHERE).to(torch.int32)
    return LiveStep(
        tokens_NL[frame.rows_B[:, None], slots_BS],
        slots_BS,
        frame.position_B[:, None] + number_BS,
        written_BS,
        frame.video_B[:, None] + write_BS,
        Visibility(number_BS, needed_BL, *live_blocks(frame), frame.rows_B),
    )


def settle(frame: LiveFrame, window: LiveWindow, step: LiveStep, tokens_NL: Tensor) -> None:
    """Move each window behind the last token that was sampled as it had been fed, and one further: that one was sampled
    after tokens that are right."""
    now_BS = tokens_NL[frame.rows_B[:, None], step.slots_BS]
    right_B = (now_BS == step.tokens_BS)[:, 1:].long().cumprod(1).sum(1)
    window.next_B.add_(right_B + 1).clamp_(max=window.last)


def gather_rows(tables_TLC: Tensor, ids_N: Tensor) -> Tensor:
    """The rows with these ids of each table, (T, N, C)."""
    return tables_TLC[:, ids_N]


def prefill_attention(q_BHSD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor) -> Tensor:
    """Attention of queries whose slots are the first ones of a cache, each to its own slot and those before it."""
    size = q_BHSD.shape[2]
    return causal(q_BHSD, k_BKLD[:, :, :size], v_BKLD[:, :, :size])


def write_heads(heads: Heads, k_NKLD: Tensor, v_NKLD: Tensor, slots_S: Tensor, rows_B: Tensor | None = None) -> Tensor:
    """Norm and rotate queries and keys, write keys and values to their slots of the cache, and return the queries
    (B, H, S, D). Slots are inside the cache, (S,), or (B, S) where samples differ; inputs that share one are equal.
    `rows_B` are the rows of the cache that the samples have; None: sample b has row b."""
    q, k, v = heads.split()
    write_slots(k_NKLD, k, slots_S, rows_B)
    write_slots(v_NKLD, v, slots_S, rows_B)
    return q


def write_slots(cache_NKLD: Tensor, new_BKSD: Tensor, slots_S: Tensor, rows_B: Tensor | None) -> None:
    """Put keys or values into the slots of a cache: the same of all samples, or (B, S)."""
    new_BKSD = new_BKSD.to(cache_NKLD.dtype)
    if slots_S.ndim == 1 and rows_B is None:
        cache_NKLD.index_copy_(2, slots_S, new_BKSD)
        return
    rows_B = torch.arange(len(new_BKSD), device=slots_S.device) if rows_B is None else rows_B
    cache_NKLD[rows_B[:, None], :, slots_S] = new_BKSD.transpose(1, 2)
