"""Attention of decoding steps and of prompts on Hopper GPUs (hopper_attention.cu), in bfloat16, heads of 64 or 128, of
which up to eight share keys.

It does the work of `attention.attend`'s first kernel; the parts are merged by the same second one. It begins early
(`early`), and reads numbers of blocks, and keys and values of blocks that all see, before the kernel before it has
ended: these must have been written before that one began.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from diagonal.engine.kernels import cuda
from diagonal.engine.kernels.visibility import Visibility

WIDTHS = (64, 128)  # of heads
SIDE = 64  # rows of four warps: a block
EIGHT = 8  # neighbouring queries are fetched by eights
GROUPS = (2, 3)  # of four warps that a program of a step may have, a block each; one where there is but one block
PROMPT = 2  # groups of a program of a prompt; with three a prompt takes as long
MOST = 8  # rounds under way

# Mixtures of values, their log-sum-exps, and what they are to be multiplied with; a single part has but the first.
Parts = tuple[Tensor, Tensor | None, Tensor | None]


@dataclass(frozen=True, slots=True)
class Cut:
    """What the kernel is compiled for; hopper_attention.cu says what the constants are."""

    D: int
    SHARED: int
    GROUPS: int
    SPLIT: bool
    CAUSAL: bool = False

    @property
    def rows(self) -> int:
        return SIDE * self.GROUPS

    @property
    def keys(self) -> int:
        """Of a round: as many as registers hold the scores of; few for small heads, of which there are few rounds, and
        for two programs that share a multiprocessor's memory."""
        return 128 if self.GROUPS < 3 and self.D > SIDE and not self.paired else 64

    @property
    def paired(self) -> bool:
        """Whether there are two programs on a multiprocessor."""
        return self.SPLIT and together(self.D, self.GROUPS) == 2

    @property
    def threads(self) -> int:
        """Those that multiply, and a warp that reads, or four of which one does."""
        return 128 * self.GROUPS + (32 if self.paired else 128)

    @property
    def _round(self) -> int:
        """Bytes of keys and values, of who sees them, and of four barriers."""
        return 4 * self.D * self.keys + 4 * self.keys + 32

    @property
    def stages(self) -> int:
        room = cuda.SHARED // 2 - 512 if self.paired else cuda.SHARED  # each program takes 1 KB besides
        return min(MOST, (room - 2 * self.D * self.rows - 8) // self._round)

    @property
    def shared(self) -> int:
        """Bytes of queries, of keys and values, and of barriers."""
        return 2 * self.D * self.rows + self.stages * self._round + 8

    @property
    def constants(self) -> dict[str, int | str]:
        more, less = {1: (0, 0), 2: (240, 24), 3: (160, 32)}[self.GROUPS]  # 65536 in all, of which one group has enough
        return {
            **{name: int(value) for name, value in asdict(self).items()},
            "KEYS": self.keys,
            "STAGES": self.stages,
            "PAIRED": int(self.paired),
            "MORE": more,
            "LESS": less,
            "SCORE_WIDTH": f'"{self.keys}"',
            "MIX_WIDTH": f'"{self.D}"',
            **cuda.sums("SCORE", self.keys // 2, after=3),
            **cuda.sums("MIX", self.D // 2, after=5),
        }


@dataclass(frozen=True, slots=True)
class Share:
    """What the programs of one problem (a key head of a video) have to do: blocks of rows are in tiles. Where not all
    have as many, keys of those with one block more are in `more` parts, keys of others in `fewer`."""

    blocks: int
    tiles: int
    more: int = 1
    fewer: int = 1

    @property
    def groups(self) -> int:
        """Blocks of a tile, at most."""
        return -(-self.blocks // self.tiles)

    @property
    def longer(self) -> int:
        """Tiles that have so many: the first ones."""
        return self.blocks - (self.groups - 1) * self.tiles

    @property
    def programs(self) -> int:
        return self.longer * self.more + (self.tiles - self.longer) * self.fewer

    @property
    def time(self) -> float:
        """Of the longest program: its blocks times its part of the keys."""
        shorter = (self.groups - 1) / self.fewer if self.longer < self.tiles else 0
        return max(self.groups / self.more, shorter)


def queries_of(shared: int) -> int:
    """Neighbouring queries that a block has of each of the heads that share keys; 0 where these are too many."""
    return SIDE // shared // EIGHT * EIGHT


def blocks_of(q_BHSD: Tensor, k_BKLD: Tensor) -> int:
    """Blocks of rows of a problem."""
    return -(-q_BHSD.shape[2] // queries_of(_shared(q_BHSD, k_BKLD)))


def share(blocks: int, programs: int, most: int) -> Share:
    """Tiles, and their parts, at most `most`, so that all programs that a problem can have are busy for about the same
    time; of equals that with the smallest tiles."""
    forms = [one for count in GROUPS for one in _shares(Share(blocks, -(-blocks // count)), programs, most)]
    return min(forms, key=lambda one: one.time)


def _shares(found: Share, programs: int, most: int) -> Iterator[Share]:
    """The same tiles with all numbers of parts."""
    for fewer in range(max(1, min(most, programs // found.tiles)), 0, -1):
        left = programs - (found.tiles - found.longer) * fewer
        yield replace(found, more=max(1, min(most, left // found.longer)), fewer=fewer)


def together(width: int, blocks: int) -> int:
    """Programs on a multiprocessor at a time. One block of rows has no other to compute while it waits; with small
    heads there are too few rounds for more parts."""
    return 2 if blocks == 1 and width > SIDE else 1


def shared_by(q_BHSD: Tensor, k_BKLD: Tensor, processors: int, most: int) -> Share:
    """How a step is shared by all programs that run at a time."""
    blocks, problems = blocks_of(q_BHSD, k_BKLD), k_BKLD.shape[0] * k_BKLD.shape[1]
    return share(blocks, together(q_BHSD.shape[3], blocks) * processors // problems, most)


def fitting(q_BHSD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor, seen: Visibility) -> bool:
    """Whether the kernel can, and is faster than others."""
    wanted = ((seen.slots_S, torch.int64), (seen.needed_L, torch.int32), (seen.whole, torch.int64))
    alike = all(part.dtype == kind for part, kind in (*wanted, (seen.extent, torch.int64)))
    return alike and fitting_prompt(q_BHSD, k_BKLD, v_BKLD)


def serves(width: int, cache: Tensor) -> bool:
    """Whether it is for heads so wide, and for such a cache."""
    return width in WIDTHS and cache.dtype == torch.bfloat16 and cuda.hopper(cache.device)


def run(qkv: tuple[Tensor, Tensor, Tensor], seen: Visibility, into: Parts, shared: Share) -> None:
    """Mixtures of values (parts, B, S, H, D). Those of several parts are in float16 over their sizes; a part that rows
    do not have has -inf for them, and anything as a mixture."""
    found = Cut(qkv[0].shape[3], _shared(*qkv[:2]), shared.groups, SPLIT=into[1] is not None)
    rule = (seen.slots_S, seen.needed_L, seen.whole, seen.extent)
    _launch(found, qkv, (*rule, *into), shared)


def prompt(q_BHSD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor) -> Tensor:
    """Attention of queries whose slots are 0 to S - 1, each to its own slot and those before it: (B, H, S, D)."""
    batch, heads, queries, width = q_BHSD.shape
    out_BSHD, blocks = q_BHSD.new_empty(batch, queries, heads, width), blocks_of(q_BHSD, k_BKLD)
    shared = Share(blocks, -(-blocks // PROMPT))
    found = Cut(width, _shared(q_BHSD, k_BKLD), min(PROMPT, blocks), SPLIT=False, CAUSAL=True)
    _launch(found, (q_BHSD, k_BKLD, v_BKLD), (*(None,) * 4, out_BSHD, None, None), shared)
    return out_BSHD.transpose(1, 2)


def fitting_prompt(q_BHSD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor) -> bool:
    """Whether the kernel can make a prompt's attention."""
    few = queries_of(_shared(q_BHSD, k_BKLD)) > 0
    return few and cuda.suits([q_BHSD, k_BKLD, v_BKLD]) and serves(q_BHSD.shape[3], k_BKLD)


def _shared(q_BHSD: Tensor, k_BKLD: Tensor) -> int:
    """Query heads that share a key head."""
    return q_BHSD.shape[1] // k_BKLD.shape[1]


def _launch(found: Cut, qkv: tuple[Tensor, Tensor, Tensor], tensors: tuple[Tensor | None, ...], shared: Share) -> None:
    """`tensors` are what says who sees whom, and Parts."""
    (queries, width), (batch, kv_heads, length) = qkv[0].shape[2:], qkv[1].shape[:3]
    q_map = cuda.tensor_map(qkv[0].view(-1, queries, width), found.SHARED, queries_of(found.SHARED), SIDE)
    maps = (q_map, *(cuda.tensor_map(part.view(-1, width), SIDE, SIDE) for part in qkv[1:]))
    ways = (shared.tiles, shared.more, shared.fewer)
    numbers = (queries, length, kv_heads, *ways, math.log2(math.e) / math.sqrt(width))
    grid = (shared.programs, batch * kv_heads, 1)
    _kernel(found, qkv[0].device).launch(grid, found.threads, found.shared, (*maps, *tensors, *numbers))


@cache
def _kernel(found: Cut, device: torch.device) -> cuda.Kernel:
    return cuda.compile_kernel(Path(__file__).with_suffix(".cu"), "attend", found.constants, found.shared, device)
