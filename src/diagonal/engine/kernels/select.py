"""Which implementation serves an operation: the only place that chooses.

Every function here is one operation of a model. It looks at shapes, types and the device, calls a kernel where there is
one that can and is faster, and plain torch (`reference`) where there is none, under gradients, in torch.compile, and
with DIAGONAL_KERNELS=0. What a kernel can take is said by its own module, its tuned constants by `tuning`; the table of
all operations is in README.md. `recorded` tells what was chosen. What only diffusion transformers do has its choice in
`select_latents`, what only tokenizers do in `select_pixels`.

Modules in Triton are imported where they are called: there may be no Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from diagonal.engine.heads import Heads, Rope
from diagonal.engine.kernels import cpu, reference, tuning
from diagonal.engine.kernels.cuda import hopper_attention, nvrtc, register_sampling, small_m_gemm, wgmma_gemm
from diagonal.engine.kernels.device import available, serves
from diagonal.engine.kernels.live import LiveFrame, LiveStep, LiveWindow
from diagonal.engine.kernels.record import active, chosen, describe, recorded
from diagonal.engine.kernels.targets import Targets
from diagonal.engine.kernels.visibility import Visibility, attend_slots
from diagonal.engine.linear import Activation, DeferredLinear, FusedLinear, Norm
from diagonal.planning.sampling import Sampling

__all__ = ["available", "describe", "recorded", "serves"]  # of other modules; everything below is an operation

TORCH, TRITON, SDPA, CPU = "PyTorch", "Triton", "PyTorch SDPA", "C++"
HALVES = (torch.bfloat16, torch.float16)
FP8_CAPABILITY = (8, 9)  # the first whose tensor cores take fp8

# What draws a token from each row of logits: (logits_RV, low_R, high_R, seeds_R, positions_R, sampling).
Draw = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Sampling], Tensor]


def by_triton(operation: str, x: Tensor) -> bool:
    """Whether Triton serves an operation that it can always make."""
    served = serves(x)
    chosen(operation, TRITON if served else TORCH)
    return served


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension."""
    if not by_triton("RMS norm", x):
        return reference.rms_norm(x, weight, eps)
    from diagonal.engine.kernels.triton import pointwise

    return pointwise.rms_norm(x, weight, eps)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / std * weight + bias over the last dimension."""
    if not by_triton("layer norm", x):
        return reference.layer_norm(x, weight, bias, eps)
    from diagonal.engine.kernels.triton import pointwise

    return pointwise.layer_norm(x, weight, bias, eps)


def norm(x: Tensor, asked: Norm) -> Tensor:
    """Either of them."""
    if asked.centred:
        return layer_norm(x, asked.weight, asked.bias, asked.eps)
    return rms_norm(x, asked.gain, asked.eps)


def activation(x: Tensor, act: Activation) -> Tensor:
    """f(x)."""
    if act is None:
        return x
    if not by_triton(f"activation ({act})", x):
        return reference.silu_mul(x) if act == "silu" else reference.gelu(x)
    from diagonal.engine.kernels.triton import pointwise

    return pointwise.silu_mul(x) if act == "silu" else pointwise.gelu(x)


def gather_rows(tables_TLC: Tensor, ids_N: Tensor) -> Tensor:
    """The rows with these ids of each table, (T, N, C)."""
    if cpu.serves(tables_TLC):
        chosen("gather rows", CPU)
        return cpu.steps.gather_rows(tables_TLC, ids_N)
    if not by_triton("gather rows", tables_TLC):
        return reference.gather_rows(tables_TLC, ids_N)
    from diagonal.engine.kernels.triton import decode_step

    return decode_step.gather_rows(tables_TLC, ids_N)


def embed(weight_VC: Tensor, ids: Tensor) -> Tensor:
    """Rows of an embedding, by a kernel after which the first GEMM may launch early."""
    if not serves(ids) and not cpu.serves(weight_VC):
        return F.embedding(ids, weight_VC)
    return gather_rows(weight_VC[None], ids.flatten())[0].view(*ids.shape, -1)


def rope_1d(positions: Tensor, head_dim: int, theta: float) -> Rope:
    """cos and sin (S, D), or (B, S, D) of positions (B, S), of position * theta^(-2i/D)."""
    if cpu.ready(positions):
        chosen("angles of RoPE", CPU)
        return cpu.steps.rope_1d(positions, head_dim, theta)
    if not by_triton("angles of RoPE", positions):
        return reference.rope_1d(positions, head_dim, theta)
    from diagonal.engine.kernels.triton import decode_step

    return decode_step.rope_1d(positions, head_dim, theta)


def next_step(
    rows_NR: Tensor, cursor: Tensor, fed_L: Tensor, tokens_BL: Tensor, inputs: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The row of a plan's table at the cursor, which moves on, its tokens, and `Visibility.needed_L` at its step."""
    if cpu.ready(rows_NR):
        chosen("next step", CPU)
        return cpu.steps.next_step(rows_NR, cursor, fed_L, tokens_BL, inputs)
    if not by_triton("next step", rows_NR):
        return reference.next_step(rows_NR, cursor, fed_L, tokens_BL, inputs)
    from diagonal.engine.kernels.triton import decode_step

    return decode_step.next_step(rows_NR, cursor, fed_L, tokens_BL, inputs)


def live_step(rows_NR: Tensor, cursor: Tensor, frame: LiveFrame, tokens_NL: Tensor, inputs: int) -> LiveStep:
    """The same of frames that samples decode together, each in its own ring: see `live`."""
    if cpu.ready(rows_NR):
        chosen("live step", CPU)
        return cpu.steps.live_step(rows_NR, cursor, frame, tokens_NL, inputs)
    if not by_triton("live step", rows_NR):
        return reference.live_step(rows_NR, cursor, frame, tokens_NL, inputs)
    from diagonal.engine.kernels.triton import live_step as kernels

    return kernels.live_step(rows_NR, cursor, frame, tokens_NL, inputs)


def live_window(frame: LiveFrame, window: LiveWindow, tokens_NL: Tensor, inputs: int) -> LiveStep:
    """A step of a window of each sample, whose tokens are drafts until `settle` says which are right."""
    if cpu.ready(tokens_NL):
        chosen("live window", CPU)
        return cpu.steps.live_window(frame, window, tokens_NL, inputs)
    if not by_triton("live window", tokens_NL):
        return reference.live_window(frame, window, tokens_NL, inputs)
    from diagonal.engine.kernels.triton import live_window as kernels

    return kernels.live_window(frame, window, tokens_NL, inputs)


def settle(frame: LiveFrame, window: LiveWindow, step: LiveStep, tokens_NL: Tensor) -> None:
    """Move the windows behind what was right in this step."""
    if cpu.ready(tokens_NL):
        chosen("settle", CPU)
        return cpu.steps.settle(frame, window, step, tokens_NL)
    if not by_triton("settle", tokens_NL):
        return reference.settle(frame, window, step, tokens_NL)
    from diagonal.engine.kernels.triton import live_window as kernels

    return kernels.settle(frame, window, step, tokens_NL)


# Linear layers.


def linear(x: Tensor, asked: FusedLinear) -> Tensor:
    """f(norm(x) W^T + bias) + residual. Where kernels run the residual may then be gone: the result is added onto it,
    which saves a pass over it and a rounding."""
    what, fused = _linear_name(x, asked), serves(x)
    small = small_m(x, asked) if fused else None
    if small is not None:
        chosen(what, "CUDA small-M GEMM")
        return small_m_gemm.run(x, asked, small)
    if not fused and cpu.serves(x) and (packed := cpu.linear.configure(x, asked)) is not None:
        chosen(what, packed.kind)
        return cpu.linear.run(x, asked, packed)
    x = x if asked.norm is None else norm(x, asked.norm)
    if fused:
        asked = replace(asked, norm=None)
        if (config := wgmma(x, asked)) is not None:
            chosen(what, "CUDA wgmma GEMM")
            return wgmma_gemm.run(x, asked, config)
    residual, alone = asked.residual, asked.act is None and asked.bias_N is None
    plain = fused and residual is None and not torch.is_autocast_enabled(x.device.type)
    if plain and asked.act == "gelu" and asked.bias_N is not None:
        # Many tokens: cuBLAS has an epilogue for the tanh form, which saves two passes over the largest activations.
        chosen(what, "cuBLAS with GELU epilogue")
        made: Tensor = torch._addmm_activation(asked.bias_N, x.flatten(0, -2), asked.weight_NK.t(), use_gelu=True)
        return made.view(*x.shape[:-1], -1)
    if fused and alone and residual is not None and residual.dtype == x.dtype == asked.weight_NK.dtype:
        chosen(what, "cuBLAS onto the residual")
        residual.view(-1, residual.shape[-1]).addmm_(x.flatten(0, -2), asked.weight_NK.t())
        return residual
    chosen(what, TORCH)
    out = activation(F.linear(x, asked.weight_NK, asked.bias_N), asked.act)
    return out if residual is None else residual + out


def _linear_name(x: Tensor, asked: FusedLinear) -> str:
    if not active():  # torch.compile would format a size that is no number yet
        return "linear"
    rows, depth = asked.weight_NK.shape
    return f"linear {rows}x{depth}, {x.numel() // depth} tokens"


def small_m(x: Tensor, asked: FusedLinear) -> small_m_gemm.KernelConfig | None:
    """The small-M GEMM for a layer; None where it cannot, or others are faster."""
    both = asked.act is not None and asked.residual is not None
    if both or not nvrtc.aligned(asked.tensors()) or x.dtype != torch.bfloat16 or x.data_ptr() % 16:
        return None
    multiprocessors = small_m_gemm.multiprocessors(x.device)
    return small_m_gemm.configure(x.numel() // x.shape[-1], asked, multiprocessors) if multiprocessors else None


def wgmma(x: Tensor, asked: FusedLinear) -> wgmma_gemm.KernelConfig | None:
    """The wgmma GEMM for a layer without a norm; None where it cannot, or others are faster."""
    tokens, both = x.numel() // x.shape[-1], asked.act is not None and asked.residual is not None
    (rows, depth), tuned = asked.weight_NK.shape, tuning.of(x.device).wgmma
    slower = tokens < tuned.deep_tokens and depth > tuned.deep and rows <= tuned.deep_rows
    if both or asked.norm is not None or slower:
        return None
    if not nvrtc.aligned([x, *asked.tensors()]) or not nvrtc.hopper(x.device):
        return None
    found = wgmma_gemm.configure(tokens, asked, _multiprocessors(x.device))
    if found is not None and tokens <= tuned.few_tokens and tuned.large_rows < found.ROWS:
        return None
    return found


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def int8_linear(
    x: Tensor, weight_NK: Tensor, scale_N: Tensor, bias_N: Tensor | None, residual: Tensor | None
) -> Tensor:
    """x (W * scale)^T + bias + residual. Many tokens and float32 are left to plain torch."""
    asked = FusedLinear(weight_NK, bias_N, residual=residual)
    if cpu.serves(x) and (packed := cpu.linear.configure(x, asked, scale_N)) is not None:
        chosen("int8 linear", packed.kind)
        return cpu.linear.run(x, asked, packed)
    alike = all(one is None or one.dtype == x.dtype for one in (bias_N, residual))  # not so under autocast
    fits = serves(x) and alike and x.dtype in HALVES
    few = fits and x.numel() // x.shape[-1] <= tuning.of(x.device).int8.rows
    chosen("int8 linear", TRITON if few else TORCH)
    if not few:
        return reference.int8_linear(x, weight_NK, scale_N, bias_N, residual)
    from diagonal.engine.kernels.triton import int8_gemm

    residual_MN = None if residual is None else residual.flatten(0, -2).contiguous()
    out_MN = int8_gemm.linear(x.flatten(0, -2).contiguous(), weight_NK, scale_N, bias_N, residual_MN)
    return out_MN.view(*x.shape[:-1], -1)


def fp8_linear(x: Tensor, weight_NK: Tensor, scale_N: Tensor, bias_N: Tensor | None, residual: Tensor | None) -> Tensor:
    """x W^T + bias + residual with rows of both in fp8, on the tensor cores that have it."""
    from_gpu = x.dtype == torch.bfloat16 and serves(x)
    if not from_gpu or torch.cuda.get_device_capability(x.device) < FP8_CAPABILITY:
        chosen("fp8 linear", TORCH)
        return reference.fp8_linear(x, weight_NK, scale_N, bias_N, residual)
    from diagonal.engine.kernels.triton import fp8_gemm

    chosen("fp8 linear", "cuBLAS, rows rounded by Triton")
    return fp8_gemm.linear(x, weight_NK, scale_N, bias_N, residual)


# Attention of token models.


def write_heads(heads: Heads, k_NKLD: Tensor, v_NKLD: Tensor, slots_S: Tensor, rows_B: Tensor | None = None) -> Tensor:
    """Norm and rotate queries and keys, write keys and values to their slots of the samples' rows of the cache, and
    return the queries (B, H, S, D); in one kernel with the linear layer before it, if that is deferred and fits."""
    cache, tokens = (k_NKLD, v_NKLD), heads.given.shape[0] * heads.given.shape[1]
    what = f"RoPE and cache write, {tokens} tokens" if active() else "RoPE and cache write"
    fused = serves(heads.given)
    if not fused and cpu.serves(heads.given) and cpu.linear.supports_heads(heads, *cache):
        chosen(what, CPU)
        return cpu.linear.run_heads(heads, *cache, slots_S, cpu.linear.configure_heads(heads), rows_B)
    if not fused:
        chosen(what, TORCH)
        return reference.write_heads(heads, *cache, slots_S, rows_B)
    if (config := small_m_heads(heads, *cache, slots_S, rows_B)) is not None:
        chosen(what, "CUDA small-M GEMM")
        return small_m_gemm.run_heads(heads, *cache, slots_S, rows_B, config)
    chosen(what, TRITON)
    from diagonal.engine.kernels.triton import decode_step

    launch_next = hopper_attention.supports(heads.head_dim, k_NKLD)
    return decode_step.write_heads(heads, *cache, slots_S, rows_B, launch_next)


def small_m_heads(
    heads: Heads, k_NKLD: Tensor, v_NKLD: Tensor, slots_S: Tensor, rows_B: Tensor | None = None
) -> small_m_gemm.KernelConfig | None:
    """The small-M GEMM for a deferred layer of heads with RoPE and the cache write; None where it cannot."""
    fits = small_m_gemm.supports_heads(heads, k_NKLD, v_NKLD, slots_S, rows_B)
    config = small_m(heads.source.x, heads.source.linear) if fits and isinstance(heads.source, DeferredLinear) else None
    launch_next = hopper_attention.supports(heads.head_dim, k_NKLD)
    return None if config is None else small_m_gemm.configure_heads(config, heads, launch_next)


def decode_attention(q_BHSD: Tensor, k_NKLD: Tensor, v_NKLD: Tensor, seen: Visibility) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over what each query of a decode step sees, (B, H, S, D)."""
    what = f"decode attention, {q_BHSD.shape[2]} queries" if active() else "decode attention"
    if cpu.serves(q_BHSD) and cpu.attention.supports(q_BHSD, k_NKLD, v_NKLD, seen):
        chosen(what, CPU)
        return cpu.attention.attend(q_BHSD, k_NKLD, v_NKLD, seen)
    if not available(q_BHSD.device):
        chosen(what, TORCH)
        return attend_slots(q_BHSD, k_NKLD, v_NKLD, seen)
    from diagonal.engine.kernels.triton import split_kv

    split_kv.check(q_BHSD, k_NKLD, v_NKLD, seen)
    multiprocessors = _multiprocessors(q_BHSD.device)
    if not hopper_attention.supports_step(q_BHSD, k_NKLD, v_NKLD, seen):
        chosen(what, "Triton split-KV")
        return split_kv.attend(q_BHSD, k_NKLD, v_NKLD, seen, multiprocessors)
    most = tuning.of(q_BHSD.device).split_kv.splits
    values, lse, scales = hopper_attention.attend((q_BHSD, k_NKLD, v_NKLD), seen, multiprocessors, most)
    chosen(what, "CUDA Hopper split-KV" if lse is not None else "CUDA Hopper, one split")
    if lse is None:
        return values.transpose(1, 2)
    return split_kv.reduce(values, lse, scales, q_BHSD.new_empty(values.shape[1:]), multiprocessors).transpose(1, 2)


def prefill_attention(q_BHSD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor) -> Tensor:
    """Attention of queries whose slots are the first ones of a cache, each to its own slot and those before it."""
    fits = serves(q_BHSD) and hopper_attention.supports_prefill(q_BHSD, k_BKLD, v_BKLD)
    chosen("prefill attention", "CUDA Hopper" if fits else TORCH)
    attend = hopper_attention.prefill if fits else reference.prefill_attention
    return attend(q_BHSD, k_BKLD, v_BKLD)


# Sampling.


def sampler(device: torch.device) -> Draw | None:
    """What draws tokens on a device; None for `engine.sampler.sample`."""
    return _sample if available(device) or cpu.on_cpu(device) else None


def _sample(
    logits_RV: Tensor, low_R: Tensor, high_R: Tensor, seeds_R: Tensor, positions_R: Tensor, sampling: Sampling
) -> Tensor:
    """Rows are samples of one token each, in a slot of its own of the one row of tokens."""
    drawn_R, slots_R = torch.empty_like(seeds_R), torch.arange(len(logits_RV), device=logits_RV.device)
    ids_2R, rows_R = torch.stack([low_R, high_R]), torch.zeros_like(slots_R)
    targets = Targets(slots_R[:, None], positions_R[:, None], seeds_R, ids_2R, rows_R)
    sample_into(drawn_R[None], logits_RV[:, None], targets, sampling)
    return drawn_R


def sample_into(tokens_NL: Tensor, logits_BSV: Tensor, targets: Targets, sampling: Sampling) -> None:
    """Draw a token for each row of logits and write it to its place."""
    if logits_BSV.stride(2) != 1:
        raise ValueError(f"logits with strides {logits_BSV.stride()} given; a row's ids must lie side by side")
    assert logits_BSV.shape[:2] == (targets.batch, targets.inputs), "a row of logits for each target"
    logits_RV = logits_BSV.flatten(0, 1)
    if cpu.on_cpu(logits_RV.device):
        chosen("sampling", CPU)
        return cpu.sampling.draw(tokens_NL, logits_RV, targets, sampling)
    able = register_sampling.able(logits_RV.device) and register_sampling.reads(tokens_NL, targets)
    config = register_sampling.configure(logits_RV, sampling) if able else None
    chosen("sampling", "Triton" if config is None else "CUDA, rows in registers")
    if config is not None:
        return register_sampling.run(tokens_NL, logits_RV, targets, sampling, config)
    from diagonal.engine.kernels.triton import sampling as kernels

    return kernels.draw(tokens_NL, logits_RV, targets, sampling)
