"""What each chunk of a video is told: its caption, behind special tokens, as keys and values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from diagonal.engine.pipeline.protocols import ChunkModel, ChunkText

SPECIAL = 2  # tokens before a caption
DURATIONS = 8  # tokens that say how many chunks follow: 0 to 7 or more


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Learned rows that stand before a caption: how many chunks follow, and that the video is to be of high quality."""

    duration_8C: Tensor
    quality_C: Tensor

    def before(self, caption_LC: Tensor, following: int | None) -> Tensor:
        """The caption behind them; None follow: without end."""
        last = DURATIONS - 1
        row = last if following is None else min(following, last)
        rows = torch.stack([self.duration_8C[row], self.quality_C]).to(caption_LC)
        return torch.cat([rows, caption_LC])


class Texts:
    """The texts of a video: a caption from each chunk on where the prompt changes."""

    def __init__(self, model: ChunkModel, chunks: int | None, special: SpecialTokens | None) -> None:
        self._model, self._chunks, self._special = model, chunks, special
        self._captions: dict[int, Tensor] = {}  # by the chunk from which on they hold
        self._made: dict[tuple[int, int], ChunkText] = {}
        self._none: ChunkText | None = None

    def say(self, chunk: int, text_BLC: Tensor) -> None:
        """Another caption from this chunk on. Rows of zeros at its end are padding."""
        if text_BLC.ndim != 3 or len(text_BLC) != 1:
            raise ValueError(f"prompt embeddings of shape {tuple(text_BLC.shape)} given; one video is made at a time")
        rows = text_BLC[0].ne(0).any(-1).nonzero()
        count = int(rows[-1]) + 1 if len(rows) else 1
        most = self._model.config.text_length - SPECIAL
        if self._special is not None and count > most:
            raise ValueError(f"{count} rows of a prompt given beside {SPECIAL} special tokens; {most} fit: shorten it")
        self._captions[chunk] = text_BLC[0, :count]

    @property
    def none(self) -> ChunkText:
        """No text."""
        if self._none is None:
            self._none = self._model.no_text()
        return self._none

    def of(self, chunk: int) -> ChunkText:
        """What a chunk is told."""
        key = self._key(chunk)
        if key not in self._made:
            caption = self._captions[key[0]]
            following = None if self._chunks is None else self._chunks - 1 - chunk
            rows = caption if self._special is None else self._special.before(caption, following)
            self._made[key] = self._model.embed_text(rows)
        return self._made[key]

    def keep(self, chunks: Collection[int]) -> None:
        """Give up what none of these chunks is told."""
        used = {self._key(chunk) for chunk in chunks}
        self._made = {key: text for key, text in self._made.items() if key in used}
        first = min((since for since, _ in used), default=0)
        self._captions = {since: text for since, text in self._captions.items() if since >= first}

    def _key(self, chunk: int) -> tuple[int, int]:
        """What the text of a chunk depends on: its caption, and which token says how many chunks follow."""
        since = max(since for since in self._captions if since <= chunk)
        if self._special is None or self._chunks is None:
            return since, DURATIONS
        return since, min(self._chunks - 1 - chunk, DURATIONS - 1)
