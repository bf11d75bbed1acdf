"""Attention to try kernels with: queries, a cache with holes, who sees what, and what should come out."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from diagonal.engine.kernels import reference
from diagonal.engine.kernels.cuda.hopper_attention import Splits, WorkSplit
from diagonal.engine.kernels.visibility import BLOCK, EVERYBODY, NOWHERE, PADDING, Visibility, attend_reference
from tests.gpu import DEVICE

NEVER = torch.iinfo(torch.int32).max
NOW = 12
BOUND = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # of the largest value

Shape = tuple[int, int, int, int, int, int]  # B, H, K, S, L, D
Given = tuple[tuple[Tensor, Tensor, Tensor], Visibility]


def case(shape: Shape, dtype: torch.dtype, device: str = DEVICE, seed: int = 0) -> Given:
    """Random inputs in a cache with holes. Blocks behind all that is written are NaN, other slots that are not written
    hold large numbers; the last query of several is padding. All others see the first slots."""
    batch, heads, kv_heads, queries, length, width = shape
    noise = torch.Generator(device).manual_seed(sum(shape) + seed)
    q = torch.randn(batch, queries, heads, width, generator=noise, device=device).to(dtype).transpose(1, 2)
    k, v = (torch.randn(batch, kv_heads, length, width, generator=noise, device=device).to(dtype) for _ in range(2))
    extent = max(length - length // 8 - 50 * seed, length // 2 + 1)
    fed = torch.randint(0, 2 * NOW, (length,), generator=noise, device=device, dtype=torch.int32)
    fed[: max(length // 3 - 70 * seed, 0)] = 0
    fed[length // 3 : length // 2] = NEVER  # KV tiles in which nothing is written
    fed[extent:] = NEVER
    k[:, :, fed > NOW] = v[:, :, fed > NOW] = 1e4
    slots = torch.randint(length // 3, extent, (queries,), generator=noise, device=device)
    if queries > 1:
        slots[-1] = PADDING
    seen = seen_by(slots, fed, NOW)
    k[:, :, int(seen.extent) * BLOCK :] = v[:, :, int(seen.extent) * BLOCK :] = torch.nan
    return (q, k, v), seen


def seats(shape: Shape, dtype: torch.dtype, device: str = DEVICE) -> Given:
    """Such cases as the samples of one batch, in permuted rows of a cache that has two more, which are NaN. Each sample
    counts its slots from one of its own, so that many are negative, and its whole blocks are seen by everybody."""
    made = [case((1, *shape[1:]), dtype, device, seed) for seed in range(shape[0])]
    rows = torch.randperm(shape[0] + 2, generator=torch.Generator().manual_seed(len(made)))[: shape[0]].to(device)
    q, k, v = (torch.cat(parts) for parts in zip(*(qkv for qkv, _ in made), strict=True))
    caches = torch.full((2, shape[0] + 2, *k.shape[1:]), torch.nan, dtype=dtype, device=device)
    caches[0, rows], caches[1, rows] = k, v
    rules = [_renumbered(seen, shape[4] // 2 + 100 * number) for number, (_, seen) in enumerate(made)]
    given = zip(*((one.slots_S, one.needed_L, one.whole, one.extent) for one in rules), strict=True)
    slots, needed, whole, extent = (torch.stack(parts) for parts in given)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    return (q, caches[0], caches[1]), Visibility(slots, needed, whole, extent, rows)


def _renumbered(seen: Visibility, first: int) -> Visibility:
    """The same rule with slots counted from the slot `first`."""
    slots, needed = seen.slots_S - first, seen.needed_L - first
    slots[seen.slots_S == PADDING], needed[seen.needed_L == NOWHERE] = PADDING, NOWHERE
    needed[: int(seen.whole) * BLOCK] = EVERYBODY
    return replace(seen, slots_S=slots, needed_L=needed)


def members(qkv: tuple[Tensor, Tensor, Tensor], seen: Visibility) -> list[Given]:
    """The samples of a batch one by one."""
    q, k, v = qkv
    rows = range(len(q)) if seen.rows_B is None else seen.rows_B.tolist()
    return [((q[b : b + 1], k[row : row + 1], v[row : row + 1]), seen.of(b)) for b, row in enumerate(rows)]


def rising(k: Tensor) -> Tensor:
    """Keys of which later ones have far greater scores, and some of these follow smaller ones."""
    length = k.shape[-2]
    sizes = torch.linspace(0.1, 12, length, device=k.device) * torch.linspace(0, 9, length, device=k.device).cos().abs()
    return (k * sizes[:, None]).to(k.dtype)


def seen_by(slots: Tensor, fed: Tensor, step: int) -> Visibility:
    """The rule with its numbers of blocks."""
    written = (fed <= step).view(-1, BLOCK)
    least = int(slots[slots > PADDING].min())
    wholly = [bool(one.all()) and (index + 1) * BLOCK <= least + 1 for index, one in enumerate(written)]
    used = written.any(1).nonzero().flatten().tolist()
    numbers = ([*wholly, False].index(False), used[-1] + 1 if used else 0)
    now, *blocks = (torch.tensor([one], dtype=torch.int32, device=slots.device) for one in (step, *numbers))
    return Visibility(slots, reference.needed_slots(fed, now), *blocks)


def splits_for(q_BHSD: Tensor, work: WorkSplit) -> Splits:
    """Room for what the kernel for Hopper makes of queries."""
    batch, heads, queries, width = q_BHSD.shape
    if work.more == 1:
        return Splits(q_BHSD.new_empty(batch, queries, heads, width))
    values = q_BHSD.new_empty(work.more, batch, queries, heads, width, dtype=torch.float16)
    return Splits(values, torch.empty(values.shape[:-1]), torch.empty(values.shape[:-1]))


def reduced(values: Tensor, lse: Tensor | None, scales: Tensor | None) -> Tensor:
    """The splits, weighted by the softmax of their log-sum-exps, -inf where a split saw nothing."""
    if lse is None or scales is None:
        return values
    weights = torch.exp2(lse - lse.max(0).values.clamp(min=-1e30))
    mixed = torch.where((weights > 0)[..., None], values.float() * (weights * scales)[..., None], 0).sum(0)
    return (mixed / weights.sum(0).clamp(min=1e-30)[..., None]).bfloat16()


def error(out: Tensor, qkv: tuple[Tensor, Tensor, Tensor], seen: Visibility) -> float:
    """The largest difference from the twin in float64, as a share of the largest value."""
    q, k, v = (tensor.double() for tensor in qkv)
    true = attend_reference(q, k.nan_to_num(0), v.nan_to_num(0), seen)
    return float((out.double() - true).abs().max() / true.abs().max())
