"""Attention of a diffusion call by cuDNN, with its keys split where that evens out the work."""

from __future__ import annotations

import torch
from torch import Tensor

from diagonal.engine.kernels import tuning
from diagonal.engine.kernels.device import HOPPER

HEAD_DIMS = (64, 128)  # for which cuDNN gives log-sum-exps
DTYPES = (torch.bfloat16, torch.float16)


def splits_for(q_BHSD: Tensor, k_BHLD: Tensor) -> int:
    """Into how many splits keys are best cut on a GPU: 1 but where more are known to be faster."""
    gpu, (batch, heads, queries, width) = torch.cuda.get_device_properties(k_BHLD.device), q_BHSD.shape
    known = gpu.major == HOPPER and k_BHLD.dtype in DTYPES and width in HEAD_DIMS
    if batch > 1 or queries < tuning.HOPPER.latent_attention.queries or not known:
        return 1
    return even_splits(queries, heads, k_BHLD.shape[2], gpu.multi_processor_count)


def even_splits(queries: int, heads: int, keys: int, multiprocessors: int) -> int:
    """Into how many splits keys are best cut, so that thread blocks come out even on the multiprocessors.

    cuDNN gives a thread block a tile of queries of a head and all of its keys. 4,680 queries of 12 heads are 444
    thread blocks: on 132 multiprocessors three waves and a third, which take as long as four. With the keys in two
    splits there are 888 thread blocks half as long: seven half waves.
    """
    tuned = tuning.HOPPER.latent_attention
    blocks = -(-queries // tuned.tile) * heads

    def waves(splits: int) -> float:
        return -(-blocks * splits // multiprocessors) / splits

    best = min((splits for splits in (1, 2, 4) if keys % splits == 0), key=waves)
    return best if waves(best) < tuned.least_gain * waves(1) else 1


def attend(q_BHSD: Tensor, k_BHLD: Tensor, v_BHLD: Tensor, splits: int) -> Tensor:
    """Attention of one video, (1, H, S, D): each split of the keys is attended to by itself, as if it were a sample,
    and all are reduced by their log-sum-exps."""
    from diagonal.engine.kernels.triton import latents

    k, v = (one.unflatten(2, (splits, -1))[0].transpose(0, 1) for one in (k_BHLD, v_BHLD))
    q = q_BHSD.expand(splits, -1, -1, -1)
    out, lse = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True)[:2]
    return latents.reduce(out, lse.reshape(out.shape[:3]))
