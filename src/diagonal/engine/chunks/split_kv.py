"""Attention of many queries to a long cache: which backends, and how far keys are split (flash decoding)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from diagonal.engine.heads import LatentHeads

# On wide calls over many keys cuDNN is the fastest by far; each number of keys is planned once and comes up many times.
WIDE = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
QUERIES = 128  # of a thread block of cuDNN's kernel
WORTH = 0.95  # the reduction takes a little too
MANY = 1024  # queries; fewer are not worth it
HEADS = (64, 128)  # their widths
HOPPER = 9


def split_count(queries: int, heads: int, keys: int, processors: int) -> int:
    """Into how many splits of the keys attention is best divided, so that its thread blocks fill whole waves.

    cuDNN gives a thread block QUERIES queries of a head and all of its keys. 4,680 queries of 12 heads are 444 blocks:
    on 132 multiprocessors three waves and a third, which take as long as four. With two splits of the keys there are
    888 blocks half as long: seven half waves.
    """
    blocks = -(-queries // QUERIES) * heads

    def waves(splits: int) -> float:
        return -(-blocks * splits // processors) / splits

    best = min((splits for splits in (1, 2, 4) if keys % splits == 0), key=waves)
    return best if waves(best) < WORTH * waves(1) else 1


def kv_splits(heads: LatentHeads, k_BLHD: Tensor) -> int:
    """The splits that `attend_wide` should use on a GPU with kernels: 1, but where more are known to be faster and
    cuDNN gives the log-sum-exps that their reduction needs."""
    batch, queries, _ = heads.qkv_BSC.shape
    gpu = torch.cuda.get_device_properties(k_BLHD.device)
    known = gpu.major == HOPPER and k_BLHD.dtype in (torch.bfloat16, torch.float16) and k_BLHD.shape[3] in HEADS
    if batch > 1 or queries < MANY or not known:
        return 1
    return split_count(queries, heads.heads, k_BLHD.shape[1], gpu.multi_processor_count)


def attend_wide(q_BHSD: Tensor, k_BHLD: Tensor, v_BHLD: Tensor, splits: int = 1) -> Tensor:
    """Attention of many queries to all keys, (B, H, S, D). For one video, on a GPU with kernels, the keys may be split:
    each split is attended to by itself, as if it were a sample of a batch, and a kernel reduces them by their
    log-sum-exps."""
    if splits == 1:
        return F.scaled_dot_product_attention(q_BHSD, k_BHLD, v_BHLD)
    from diagonal.engine.kernels.latents import mix

    k, v = (part.unflatten(2, (splits, -1))[0].transpose(0, 1) for part in (k_BHLD, v_BHLD))
    q = q_BHSD.expand(splits, -1, -1, -1)
    out, sums = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True)[:2]
    return mix(out, sums.reshape(out.shape[:3]))
