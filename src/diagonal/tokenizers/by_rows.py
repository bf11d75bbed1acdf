"""The Wan VAE's decoder on several GPUs: every rank decodes some rows of every frame.

A 3x3 convolution asks for one row more above and below, which ranks get from their neighbours (a halo); attention in
the middle, on the coarsest grid, is computed by all of them on whole frames. All else asks for a place's own numbers.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diagonal.engine.ranks import Ranks, shares
from diagonal.tokenizers.wan_vae import Attention, Conv, Upsample, WanVAE


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a rank, in a call: of the coarsest grid, that each rank has."""

    ranks: Ranks
    counts: tuple[int, ...]

    def halo(self, x_BTHWC: Tensor) -> Tensor:
        """A neighbour's row above and below; beyond the frame, zeros."""
        rank, world = self.ranks.rank, self.ranks.world
        first, last = x_BTHWC[:, :, :1], x_BTHWC[:, :, -1:]
        empty = x_BTHWC[:, :, :0]
        sent = [empty] * world
        if rank:
            sent[rank - 1] = first
        if rank < world - 1:
            sent[rank + 1] = last
        shapes = [tuple(one.shape) for one in sent]
        got = self.ranks.exchange(sent, shapes)
        above = got[rank - 1] if rank else torch.zeros_like(first)
        below = got[rank + 1] if rank < world - 1 else torch.zeros_like(last)
        return torch.cat([above, x_BTHWC, below], 2)


class DecoderByRows:
    """A Wan VAE that decodes with the other ranks; called like the VAE itself, in every process alike."""

    def __init__(self, vae: WanVAE, ranks: Ranks) -> None:
        self.vae, self.ranks = vae, ranks
        self.config, self.patch, self.stride, self.first = vae.config, vae.patch, vae.stride, vae.first
        self._rows: _Rows | None = None
        for layer in vae.decoder.modules():
            if isinstance(layer, Conv) and layer.kernel_size[1] > 1:
                self._wrap(layer, "_over", self._by_rows)
            elif isinstance(layer, Upsample):
                self._wrap(layer.resample["1"], "forward", self._picture_by_rows)
            elif isinstance(layer, Attention):
                self._wrap(layer, "forward", self._whole)

    def encode(self, video_BTCHW: Tensor, state: MutableMapping[str, Tensor] | None = None) -> Tensor:
        """What a video begins with is encoded by every rank for itself."""
        return self.vae.encode(video_BTCHW, state)

    def decode(self, latents_BFCHW: Tensor, state: MutableMapping[str, Tensor]) -> Tensor:
        """Frames, whole in every process; `state` remembers the rows of this one."""
        rows, world = latents_BFCHW.shape[3], self.ranks.world
        if rows < world:
            raise ValueError(f"frames of {rows} rows of latents cannot be decoded by {world} GPUs; take fewer of them")
        counts = shares(rows, world)
        start = sum(counts[: self.ranks.rank])
        self._rows = _Rows(self.ranks, counts)
        try:
            own = self.vae.decode(latents_BFCHW.narrow(3, start, counts[self.ranks.rank]), state)
        finally:
            self._rows = None
        return self.ranks.gather(own, 3, tuple(count * self.vae.patch for count in counts))

    def _wrap(self, layer: nn.Module, name: str, around: Callable[..., Tensor]) -> None:
        """Let a method of a layer go through another one, while rows are decoded; else it stays as it is."""
        plain = getattr(layer, name)

        def run(*given: Any) -> Tensor:
            made: Tensor = plain(*given) if self._rows is None else around(self._rows, plain, *given)
            return made

        setattr(layer, name, run)

    @staticmethod
    def _by_rows(rows: _Rows, plain: Callable[..., Tensor], x_BTHWC: Tensor, *rest: Any) -> Tensor:
        return plain(rows.halo(x_BTHWC), *rest)[:, :, 1:-1].contiguous()

    @staticmethod
    def _picture_by_rows(rows: _Rows, plain: Callable[..., Tensor], x_NCHW: Tensor) -> Tensor:
        wider = rows.halo(x_NCHW.permute(0, 2, 3, 1)[None])[0]
        return plain(wider.permute(0, 3, 1, 2))[:, :, 1:-1]

    @staticmethod
    def _whole(rows: _Rows, plain: Callable[..., Tensor], x_BTHWC: Tensor, *rest: Any) -> Tensor:
        whole = rows.ranks.gather(x_BTHWC, 2, rows.counts)
        return plain(whole, *rest).narrow(2, sum(rows.counts[: rows.ranks.rank]), rows.counts[rows.ranks.rank])
