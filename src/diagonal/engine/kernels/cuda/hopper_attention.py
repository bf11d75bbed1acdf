"""Attention of decode steps (split-KV) and of prefills on Hopper GPUs (hopper_attention.cu), in bfloat16, heads of 64
or 128, of which up to eight share keys.

It does the work of `triton.split_kv`'s first kernel; the splits are reduced by the same second one. It launches early
and reads slots, counts of blocks, rows of the cache, and keys and values of blocks that all queries see, before the
kernel before it has ended: these must have been written before that one began.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from diagonal.engine.kernels import tuning
from diagonal.engine.kernels.cuda import nvrtc
from diagonal.engine.kernels.visibility import Visibility

HEAD_DIMS = (64, 128)
SIDE = 64  # rows of a warpgroup: a row tile
EIGHT = 8  # neighbouring queries are loaded by eights
GROUPS = (2, 3)  # warpgroups of a thread block of a decode step, a row tile each; one where there is but one row tile


class Splits(NamedTuple):
    """What the kernel writes: values (splits, B, S, H, D), their log-sum-exps, and what the values are to be multiplied
    with. A single split has values (B, S, H, D) alone."""

    values: Tensor
    lse: Tensor | None = None
    scales: Tensor | None = None


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """What the kernel is compiled for; hopper_attention.cu says what the constants are."""

    D: int
    GROUP: int
    GROUPS: int
    SPLIT_KV: bool
    CAUSAL: bool = False
    most_stages: int = 8  # KV tiles in flight, at most

    @property
    def rows(self) -> int:
        return SIDE * self.GROUPS

    @property
    def keys(self) -> int:
        """Of a KV tile: as many as registers hold the scores of; few for small heads, of which there are few tiles, and
        for two thread blocks that share a multiprocessor's memory."""
        return 128 if self.GROUPS < 3 and self.D > SIDE and not self.paired else 64

    @property
    def paired(self) -> bool:
        """Whether there are two thread blocks on a multiprocessor."""
        return self.SPLIT_KV and blocks_per_sm(self.D, self.GROUPS) == 2

    @property
    def threads(self) -> int:
        """The consumers, and a producer warp, or a warpgroup of which one warp is it."""
        return 128 * self.GROUPS + (32 if self.paired else 128)

    @property
    def _stage(self) -> int:
        """Bytes of a KV tile, of its visibility, and of four mbarriers."""
        return 4 * self.D * self.keys + 4 * self.keys + 32

    @property
    def stages(self) -> int:
        room = nvrtc.SHARED // 2 - 512 if self.paired else nvrtc.SHARED  # each thread block takes 1 KB besides
        return min(self.most_stages, (room - 2 * self.D * self.rows - 8) // self._stage)

    @property
    def shared(self) -> int:
        """Bytes of queries, of KV tiles, and of mbarriers."""
        return 2 * self.D * self.rows + self.stages * self._stage + 8

    @property
    def constants(self) -> dict[str, int | str]:
        more, fewer = {1: (0, 0), 2: (240, 24), 3: (160, 32)}[self.GROUPS]  # of 65536, of which one group has enough
        flags = {name: int(value) for name, value in asdict(self).items() if name.isupper()}
        return {
            **flags,
            "KEYS": self.keys,
            "STAGES": self.stages,
            "PAIRED": int(self.paired),
            "MORE_REGISTERS": more,
            "FEWER_REGISTERS": fewer,
            "QK_WIDTH": f'"{self.keys}"',
            "PV_WIDTH": f'"{self.D}"',
            **nvrtc.operands("QK", self.keys // 2, after=3),
            **nvrtc.operands("PV", self.D // 2, after=5),
        }


@dataclass(frozen=True, slots=True)
class WorkSplit:
    """How the thread blocks of one problem (a key head of a sample) share its work: row tiles are in tiles. Where not
    all have as many, keys of those with one more are split `more` ways, keys of others `fewer`."""

    row_tiles: int
    tiles: int
    more: int = 1
    fewer: int = 1

    @property
    def groups(self) -> int:
        """Row tiles of a tile, at most."""
        return -(-self.row_tiles // self.tiles)

    @property
    def longer(self) -> int:
        """Tiles that have so many: the first ones."""
        return self.row_tiles - (self.groups - 1) * self.tiles

    @property
    def thread_blocks(self) -> int:
        return self.longer * self.more + (self.tiles - self.longer) * self.fewer

    @property
    def time(self) -> float:
        """Of the longest thread block: its row tiles times its part of the keys."""
        shorter = (self.groups - 1) / self.fewer if self.longer < self.tiles else 0
        return max(self.groups / self.more, shorter)


def queries_per_tile(group: int) -> int:
    """Neighbouring queries of each of the heads that share keys in a row tile; 0 where these are too many."""
    return SIDE // group // EIGHT * EIGHT


def row_tiles(q_BHSD: Tensor, k_NKLD: Tensor) -> int:
    """Row tiles of a problem."""
    return -(-q_BHSD.shape[2] // queries_per_tile(_group(q_BHSD, k_NKLD)))


def schedule(tiles: int, thread_blocks: int, most: int) -> WorkSplit:
    """Tiles of so many row tiles, and their splits, at most `most`, so that all thread blocks that a problem can have
    are busy for about the same time; of equals that with the smallest tiles."""
    forms = [one for count in GROUPS for one in _split(WorkSplit(tiles, -(-tiles // count)), thread_blocks, most)]
    return min(forms, key=lambda one: one.time)


def _split(found: WorkSplit, thread_blocks: int, most: int) -> Iterator[WorkSplit]:
    """The same tiles with all numbers of splits."""
    for fewer in range(max(1, min(most, thread_blocks // found.tiles)), 0, -1):
        left = thread_blocks - (found.tiles - found.longer) * fewer
        yield replace(found, more=max(1, min(most, left // found.longer)), fewer=fewer)


def blocks_per_sm(head_dim: int, tiles: int) -> int:
    """Thread blocks on a multiprocessor at a time. A single row tile has no other to compute while it waits; with small
    heads there are too few KV tiles for more splits."""
    return 2 if tiles == 1 and head_dim > SIDE else 1


def schedule_step(q_BHSD: Tensor, k_NKLD: Tensor, multiprocessors: int, most: int) -> WorkSplit:
    """How a decode step is shared by all thread blocks that run at a time."""
    tiles, problems = row_tiles(q_BHSD, k_NKLD), q_BHSD.shape[0] * k_NKLD.shape[1]
    return schedule(tiles, blocks_per_sm(q_BHSD.shape[3], tiles) * multiprocessors // problems, most)


def supports(head_dim: int, cache: Tensor) -> bool:
    """Whether the kernels take such heads, and such a cache."""
    return head_dim in HEAD_DIMS and cache.dtype == torch.bfloat16 and nvrtc.hopper(cache.device)


def supports_prefill(q_BHSD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor) -> bool:
    """Whether the kernel can make a prefill's attention."""
    few = queries_per_tile(_group(q_BHSD, k_BKLD)) > 0
    return few and nvrtc.aligned([q_BHSD, k_BKLD, v_BKLD]) and supports(q_BHSD.shape[3], k_BKLD)


def supports_step(q_BHSD: Tensor, k_NKLD: Tensor, v_NKLD: Tensor, seen: Visibility) -> bool:
    """Whether the kernel can make a decode step's attention."""
    wanted = ((seen.slots_S, torch.int64), (seen.needed_L, torch.int32), (seen.whole, torch.int64))
    alike = all(one.dtype == kind for one, kind in (*wanted, (seen.extent, torch.int64)))
    return alike and supports_prefill(q_BHSD, k_NKLD, v_NKLD)


def attend(qkv: tuple[Tensor, Tensor, Tensor], seen: Visibility, multiprocessors: int, most: int) -> Splits:
    """Attention of a decode step, with its keys in at most so many splits, which are still to be reduced."""
    q_BHSD, k_NKLD, _ = qkv
    batch, heads, queries, width = q_BHSD.shape
    work = schedule_step(q_BHSD, k_NKLD, multiprocessors, most)
    if work.more == 1:
        into = Splits(q_BHSD.new_empty(batch, queries, heads, width))
    else:
        values = q_BHSD.new_empty(work.more, batch, queries, heads, width, dtype=torch.float16)
        lse = values.new_empty(values.shape[:-1], dtype=torch.float32)
        into = Splits(values, lse, torch.empty_like(lse))
    run(qkv, seen, into, work)
    return into


def run(qkv: tuple[Tensor, Tensor, Tensor], seen: Visibility, into: Splits, work: WorkSplit) -> None:
    """Write the values of a decode step. Those of several splits are in float16 over their scales; a split that rows do
    not have has a log-sum-exp of -inf for them, and any values."""
    group, stages = _group(*qkv[:2]), tuning.of(qkv[0].device).hopper_attention.stages
    split = into.lse is not None
    config = KernelConfig(qkv[0].shape[3], group, work.groups, SPLIT_KV=split, most_stages=stages)
    rule = (seen.slots_S, seen.needed_L, seen.whole, seen.extent, seen.rows_B)
    _launch(config, qkv, (*rule, *into), work, seen.strides)


def prefill(q_BHSD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor) -> Tensor:
    """Attention of queries whose slots are 0 to S - 1, each to its own slot and those before it: (B, H, S, D)."""
    batch, heads, queries, width = q_BHSD.shape
    tuned = tuning.of(q_BHSD.device).hopper_attention
    out_BSHD, tiles = q_BHSD.new_empty(batch, queries, heads, width), row_tiles(q_BHSD, k_BKLD)
    work, groups = WorkSplit(tiles, -(-tiles // tuned.prefill_groups)), min(tuned.prefill_groups, tiles)
    group = _group(q_BHSD, k_BKLD)
    config = KernelConfig(width, group, groups, SPLIT_KV=False, CAUSAL=True, most_stages=tuned.stages)
    _launch(config, (q_BHSD, k_BKLD, v_BKLD), (*(None,) * 5, out_BSHD, None, None), work, (0,) * 4)
    return out_BSHD.transpose(1, 2)


def _group(q_BHSD: Tensor, k_NKLD: Tensor) -> int:
    """Query heads that share a key head."""
    return q_BHSD.shape[1] // k_NKLD.shape[1]


def _launch(
    config: KernelConfig,
    qkv: tuple[Tensor, Tensor, Tensor],
    tensors: tuple[Tensor | None, ...],
    work: WorkSplit,
    strides: tuple[int, ...],
) -> None:
    """`tensors` are the visibility, and Splits; `strides` those of the visibility."""
    (batch, _, queries, width), (kv_heads, length) = qkv[0].shape, qkv[1].shape[1:3]
    q_map = nvrtc.tensor_map(qkv[0].view(-1, queries, width), config.GROUP, queries_per_tile(config.GROUP), SIDE)
    maps = (q_map, *(nvrtc.tensor_map(one.view(-1, width), SIDE, SIDE) for one in qkv[1:]))
    ways = (work.tiles, work.more, work.fewer)
    sizes = (queries, length, kv_heads, *ways, *strides, math.log2(math.e) / math.sqrt(width))
    grid = (work.thread_blocks, batch * kv_heads, 1)
    _kernel(config, qkv[0].device).launch(grid, config.threads, config.shared, (*maps, *tensors, *sizes))


@cache
def _kernel(config: KernelConfig, device: torch.device) -> nvrtc.Kernel:
    path = Path(__file__).with_suffix(".cu")
    return nvrtc.compile_kernel(path, "attend", config.constants, config.shared, device)
