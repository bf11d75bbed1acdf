"""Launches fused linear layers of few tokens (`linear.cpp`), and what follows one that makes heads (`heads.cpp`)."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from diagonal.engine.heads import Heads
from diagonal.engine.kernels import tuning
from diagonal.engine.kernels.cpu import library
from diagonal.engine.kernels.cpu.calls import call, made
from diagonal.engine.kernels.cpu.library import PLAIN, address, bits, numbers, sample_stride
from diagonal.engine.kernels.cpu.packing import Packed, pack
from diagonal.engine.linear import DeferredLinear, FusedLinear

ACTIVATIONS = {None: 0, "silu": 1, "gelu": 2}  # as the library numbers them


def configure(x: Tensor, asked: FusedLinear, scale_N: Tensor | None = None) -> Packed | None:
    """The packed weights of a layer that the library can run; None where it cannot, or PyTorch is faster. `scale_N`:
    factors of the rows of int8 weights."""
    weight, norm, dtype = asked.weight_NK, asked.norm, x.dtype
    if norm is None and asked.residual is None and scale_N is None:
        return None  # such layers are in networks that are also trained: with a gradient they give the same bits
    tuned, depth = tuning.PROCESSOR, weight.shape[1]
    most = tuned.tokens if dtype == torch.float32 else tuned.half_tokens
    if not 0 < x.numel() <= most * depth or x.shape[-1] != depth:
        return None
    normed = norm is None or (_usable(norm.weight, dtype) and _usable(norm.bias, dtype))
    if not normed or not _usable(asked.bias_N, dtype) or not _usable(asked.residual, dtype):
        return None
    return pack(weight, asked.act == "silu", scale_N) if scale_N is not None or weight.dtype == dtype else None


def _usable(one: Tensor | None, dtype: torch.dtype) -> bool:
    """Whether the library can read what goes with the weights."""
    return one is None or (one.dtype == dtype and one.is_contiguous() and type(one) in PLAIN)


def run(x: Tensor, asked: FusedLinear, packed: Packed) -> Tensor:
    """f(norm(x) W^T + bias) + residual."""
    rows = packed.struct[2]
    out = made((*x.shape[:-1], rows // 2 if asked.act == "silu" else rows), x.dtype)
    x = x.contiguous()
    call("diagonal_linear", _arguments(x, asked, packed, out), packed)
    return out


def _arguments(x: Tensor, asked: FusedLinear, packed: Packed, out: Tensor | None) -> ctypes.Array[ctypes.c_int64]:
    """`struct Linear` of linear.h."""
    norm = asked.norm
    given = (0, 0, 0, 0)
    if norm is not None:
        given = (2 if norm.centred else 1, address(norm.weight), address(norm.bias), bits(norm.eps))
    return numbers(
        ctypes.addressof(packed.struct), x.data_ptr(), x.dtype == torch.bfloat16, x.numel() // x.shape[-1], *given,
        address(asked.bias_N), ACTIVATIONS[asked.act], address(asked.residual), address(out), torch.get_num_threads(),
    )  # fmt: skip


def supports_heads(heads: Heads, k_BKLD: Tensor, v_BKLD: Tensor) -> bool:
    """Whether heads of this form can be written to a cache of this form."""
    caches = k_BKLD.dtype == v_BKLD.dtype and k_BKLD.dtype in library.DTYPES and k_BKLD.stride() == v_BKLD.stride()
    weights = () if heads.norm is None else (heads.norm.q_D, heads.norm.k_D)
    dense = all(one.is_contiguous() and one.dtype == heads.given.dtype for one in weights)
    turned = heads.rope is None or all(one.dtype == torch.float32 and one.is_contiguous() for one in heads.rope)
    return caches and dense and turned and k_BKLD.stride()[2:] == (heads.head_dim, 1)


def configure_heads(heads: Heads) -> Packed | None:
    """The packed weights of the layer that heads are deferred to; None where it runs by itself."""
    source = heads.source
    if not isinstance(source, DeferredLinear) or source.linear.act or source.linear.residual is not None:
        return None
    return configure(source.x, source.linear)


def run_heads(
    heads: Heads, k_NKLD: Tensor, v_NKLD: Tensor, slots_S: Tensor, packed: Packed | None, rows_B: Tensor | None = None
) -> Tensor:
    """Queries (B, H, S, D), with keys and values written to the cache; with the layer before them, if it is packed.
    Slots and rotations may differ from sample to sample; `rows_B` (int64) are the samples' rows of the cache."""
    source, layer = heads.source, None
    qkv = None if packed is not None else heads.qkv().contiguous()
    given = heads.given
    if packed is not None:
        assert isinstance(source, DeferredLinear)
        given = given.contiguous()
        layer = _arguments(given, source.linear, packed, None)
    (batch, inputs), norm = given.shape[:2], heads.norm
    q_BSHD = made((batch, inputs, heads.heads, heads.head_dim), given.dtype)
    cos, sin = (None, None) if heads.rope is None else heads.rope
    struct = numbers(
        0 if layer is None else ctypes.addressof(layer), batch, inputs, heads.heads, heads.kv_heads, heads.head_dim,
        address(qkv), given.dtype == torch.bfloat16,
        *((0, 0, 0) if norm is None else (norm.q_D.data_ptr(), norm.k_D.data_ptr(), bits(norm.eps))),
        address(cos), address(sin), 0 if cos is None or cos.ndim == 2 else cos.stride(0),
        slots_S.data_ptr(), slots_S.dtype == torch.int64, sample_stride(slots_S),
        address(rows_B),
        k_NKLD.data_ptr(), v_NKLD.data_ptr(), k_NKLD.dtype == torch.bfloat16, k_NKLD.stride(0), k_NKLD.stride(1),
        q_BSHD.data_ptr(),
    )  # fmt: skip
    call("diagonal_heads", struct, layer, packed)
    return q_BSHD.transpose(1, 2)
