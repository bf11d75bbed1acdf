"""The denoiser of MAGI-1 for the denoising loop: live chunks in one call, each at its own level, behind a finished one.

The base model is guided, in three passes over the live chunks:

    told    each chunk's text, the chunks before it
    silent  no text, the chunks before it; what is finished is written here
    alone   no text, each chunk by itself, as if it began the video

    v = (1 - p) alone + (p - q) silent + q told

with p = 1.5 and q = 7.5; in the last quarter of a chunk's steps p = 1 and q = 0, so that `silent` alone counts. A pass
that counts for no chunk is left out.

The distilled model takes one pass with the text, and is told the size of its steps. While its oldest live chunk is in
the last quarter, a copy of it is added that sees only itself: v = 0.7 v + 0.3 v(copy).

What applies in a step goes by its number, never by the value of its time, which lies within rounding of the border.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from diagonal.engine.attention import WIDE, Full
from diagonal.engine.chunks.protocols import Shown
from diagonal.engine.pipeline.memory import Call, Finished, Seen
from diagonal.engine.pipeline.protocols import ChunkMemory, ChunkModel, ChunkText
from diagonal.engine.pipeline.texts import SpecialTokens, Texts
from diagonal.planning.passes import is_late

CLEAN = 0.9999  # the time at which finished chunks are shown
CONTEXT, TEXT = 1.5, 7.5  # p and q
NEAR = 0.7  # the part of the velocity that is not the copy's


@dataclass(frozen=True, slots=True)
class Video:
    """What is denoised: how many chunks (None: without end), the steps of each, how many chunks one sees at its first
    step, its own included, and for a distilled model the size of each step."""

    chunks: int | None
    steps: int
    reach: int
    sizes: tuple[float, ...] = ()
    special: SpecialTokens | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    """A chunk in a pass: its latents, its time, its place among all chunks, and the first chunk it sees."""

    x_BFCHW: Tensor
    t: float
    chunk: int
    first: int
    text: int | None  # the number by which it is told what it shows; None: it is finished
    step: int = 0
    late: bool = False  # in the last quarter of its steps
    copy: bool = False  # it sees itself alone, and nobody sees it


class Pipelined:
    """A model with the texts and finished chunks of one video."""

    batch, window = 1, 0

    def __init__(self, model: ChunkModel, video: Video) -> None:
        self.model, self.video, self.device = model, video, model.device
        self.calls = 0
        self.finished = Finished()
        self._texts = Texts(model, video.chunks, video.special)

    @property
    def channels(self) -> int:
        return self.model.config.channels

    def prompt(self, chunk: int, text_BLC: Tensor) -> None:
        """Another text from this chunk on; those that are under way keep theirs."""
        self._texts.say(chunk, text_BLC)

    def forget(self, end: int) -> int:
        """Finished chunks know no text: they stay."""
        return 0

    def velocities(self, shown: Sequence[Shown], carries: bool) -> Sequence[Tensor]:
        """The velocity noise - x0 of each."""
        entries = [self._entry(one) for one in shown]
        self._give_up(entries)
        with sdpa_kernel(WIDE, set_priority=True):
            flows = self._distilled(entries) if self.video.sizes else self._guided(entries)
        return [-flow for flow in flows.split(1)]

    def _give_up(self, entries: Sequence[_Entry]) -> None:
        """Keep what is read from now on: by these chunks, and by the next one, if one comes."""
        texts = [one.text for one in entries if one.text is not None]
        reads = [one.first for one in entries if one.text is not None]
        if self.video.chunks is None or not texts or texts[-1] < self.video.chunks - 1:
            reads.append(entries[-1].chunk + 2 - self.video.reach)
        self.finished.drop(min(reads))
        self._texts.keep(texts)

    def _entry(self, shown: Shown) -> _Entry:
        size, part, x = self.model.config.chunk_frames, shown.part, shown.x_BFCHW
        chunk, odd = divmod(shown.start, size)
        if odd or shown.frames != size:
            raise ValueError(f"latent frames {shown.start} to {shown.start + shown.frames - 1} are no chunk of {size}")
        if not part.moves:
            return _Entry(x, CLEAN, chunk, chunk, None)
        first = 0 if part.reach is None else max(0, chunk + 1 - part.reach)
        late = is_late(part.step, self.video.steps)
        return _Entry(x, 1 - part.level / 1000, chunk, first, part.chunk, part.step, late)

    def _guided(self, entries: Sequence[_Entry]) -> Tensor:
        flows = torch.zeros_like(torch.cat([one.x_BFCHW for one in entries]))
        early = [place for place, one in enumerate(entries) if one.text is not None and not one.late]
        if early:
            told = self._pass(entries, self._said(entries), Call(self.finished, _seen(entries)), dropped=False)
            lonely = [entries[place] for place in early]
            alone = self._pass(lonely, [self._texts.none] * len(lonely), Full(), dropped=True)
            flows[early] = (1 - CONTEXT) * alone + TEXT * told[early]
        silent = self._pass(entries, [self._texts.none] * len(entries), self._writing(entries), dropped=True)
        for place in range(len(entries)):
            flows[place] += (CONTEXT - TEXT if place in early else 1.0) * silent[place]
        return flows

    def _distilled(self, entries: Sequence[_Entry]) -> Tensor:
        place = next((place for place, one in enumerate(entries) if one.text is not None), None)
        if place is None or not entries[place].late:
            return self._pass(entries, self._said(entries), self._writing(entries), dropped=False)
        run = [*entries, replace(entries[place], copy=True)]
        flows = self._pass(run, self._said(run), self._writing(run), dropped=False)
        flows[place] = NEAR * flows[place] + (1 - NEAR) * flows[-1]
        return flows[:-1]

    def _writing(self, entries: Sequence[_Entry]) -> Call:
        """The memory of a pass that keeps what finished chunks have."""
        return Call(self.finished, _seen(entries), frozenset(one.chunk for one in entries if one.text is None))

    def _said(self, entries: Sequence[_Entry]) -> list[ChunkText]:
        """What each chunk is told; nothing, if it is finished."""
        return [self._texts.none if one.text is None else self._texts.of(one.text) for one in entries]

    def _pass(
        self, entries: Sequence[_Entry], texts: Sequence[ChunkText], memory: ChunkMemory, dropped: bool
    ) -> Tensor:
        """The velocities x0 - noise of one call of the model."""
        self.calls += 1
        model, size, side = self.model, self.model.config.chunk_frames, self.model.config.patch
        x = torch.cat([one.x_BFCHW for one in entries])
        t = torch.tensor([one.t for one in entries], dtype=torch.float32).to(self.device)
        sizes = torch.tensor(self._sizes(entries), dtype=torch.float32).to(self.device) if self.video.sizes else None
        newest = max(one.chunk for one in entries)
        places = [newest + 1 if one.copy else one.chunk for one in entries]
        if isinstance(memory, Full):
            places = [0] * len(entries)
        frames = size * torch.tensor(places)[:, None] + torch.arange(size)
        rope = model.rope(frames.to(self.device), x.shape[3] // side, x.shape[4] // side)
        return model(x, model.condition(t, dropped, sizes), texts, rope, memory)

    def _sizes(self, entries: Sequence[_Entry]) -> list[float]:
        """The size of each chunk's step. A finished one is told that of the oldest live chunk, or of the first step."""
        oldest = next((one.step for one in entries if one.text is not None), 0)
        return [self.video.sizes[oldest if one.text is None else one.step] for one in entries]


def _seen(entries: Sequence[_Entry]) -> tuple[Seen, ...]:
    return tuple(Seen(one.chunk, one.chunk if one.copy else one.first, one.copy) for one in entries)
