"""A video of a diffusion model while it is being made: chunks from the engine, decoded as they complete.

On a GPU the next chunk is denoised while one is decoded: denoising has a thread of its own and is one chunk ahead,
decoding has a stream of its own. On a CPU one thing follows the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from diagonal.engine.chunks.denoise import Chunk, Text, check_chunk
from diagonal.generation.request import Prompt, check_prompt
from diagonal.media.video import VideoArray

PIECE = 3  # latent frames that are decoded together: more take memory and win nothing
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VideoChunk:
    """Frames (T, H, W, 3) of uint8 as they came: the first chunk also brings those that were given to begin with."""

    index: int
    first: int  # the number of its first frame in the video
    frames: VideoArray  # none, if nothing decodes
    latents: Tensor  # (F, C, rows, cols), on the CPU
    forwards: int  # model calls
    denoise_seconds: float
    decode_seconds: float


@dataclass(frozen=True, slots=True)
class VideoClip:
    """A whole video: its frames, its latents (F, C, rows, cols) and the model calls it took."""

    frames: VideoArray | Tensor
    latents: Tensor
    forwards: int


@dataclass(slots=True)
class Change:
    """A new prompt: the chunk that was being made, or was made last, when it was asked for, and the first chunk that
    followed it. None: none did yet, or another prompt came first."""

    prompt: str | None  # None: it came as embeddings
    requested_at: int
    applied_at: int | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Where chunks come from: `chunks` runs the engine under a text, `forwards` counts its calls for a chunk."""

    chunks: Callable[[Text], Iterator[Chunk]]
    forwards: Callable[[Chunk], int]
    given_BFCHW: Tensor | None = None
    changeable: bool = True  # the prompt may change from chunk to chunk


class Prompts:
    """The prompt of every chunk: those known from the start by chunk, and those that come in between, from any thread.

    Embeddings are a new tensor for each prompt: by that the engine knows a change.
    """

    def __init__(self, planned: Mapping[int, Prompt], embed: Callable[[list[Prompt]], list[Tensor]]) -> None:
        self._embed, self._lock, self._chunk = embed, threading.Lock(), 0
        self._waiting: list[tuple[Change, Tensor]] = []
        self.changes: list[Change] = []
        self._planned = dict(zip(planned, embed(list(planned.values())), strict=True))
        self._texts = {chunk: _words(prompt) for chunk, prompt in planned.items()}
        self._now = self._planned.pop(0)

    def ask(self, prompt: Prompt) -> Change:
        """Another prompt from the next chunk on. It is encoded in the thread that asks."""
        (embeds,) = self._embed([prompt])
        with self._lock:
            change = Change(_words(prompt), self._chunk)
            self._waiting.append((change, embeds))
            self.changes.append(change)
        return change

    def text(self, chunk: int) -> Tensor:
        """The embeddings for a chunk that begins now."""
        with self._lock:
            self._chunk = chunk
            if chunk in self._planned:
                self._now = self._planned.pop(chunk)
                self.changes.append(Change(self._texts[chunk], 0, chunk))
            if self._waiting:
                change, self._now = self._waiting[-1]
                change.applied_at = chunk
                self._waiting = []
            return self._now


class Pixels:
    """Latents to frames, with what the decoder remembers of those before; on a GPU in a stream of its own."""

    def __init__(self, codec: Any, size: tuple[int, int], device: torch.device) -> None:
        self._codec, self._size, self.device = codec, size, device
        self._state: dict[str, Tensor] = {}
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @property
    def apart(self) -> bool:
        """Whether decoding may run beside denoising."""
        return self._stream is not None

    def __call__(self, parts: Sequence[Tensor], ready: torch.cuda.Event | None) -> tuple[VideoArray, Tensor]:
        """Frames (T, H, W, 3) and latents of parts (B, F, C, H, W) on the CPU; `ready` is when the parts are there."""
        if self._stream is None or ready is None:
            return self._decode(torch.cat([*parts], dim=1))
        # Few shapes come again and again: worth trying which convolution is the fastest.
        fastest = torch.backends.cudnn.flags(enabled=True, benchmark=True)
        with torch.cuda.stream(self._stream), fastest:
            self._stream.wait_event(ready)
            for part in parts:
                part.record_stream(self._stream)  # its memory was allocated in the other stream
            return self._decode(torch.cat([*parts], dim=1))  # ends with copies to the CPU: they wait for this stream

    def _decode(self, latents_BFCHW: Tensor) -> tuple[VideoArray, Tensor]:
        if self._codec is None:
            return np.zeros((0, *self._size, 3), dtype=np.uint8), latents_BFCHW[0].cpu()
        parts = [self._codec.decode(part, self._state)[0].cpu() for part in latents_BFCHW.split(PIECE, dim=1)]
        return torch.cat(parts).permute(0, 2, 3, 1).numpy(), latents_BFCHW[0].cpu()


class Session:
    """A video while it is being made: iterate over it once, or call `next`. Made by `VideoModel.stream`."""

    def __init__(self, source: Source, prompts: Prompts, pixels: Pixels, num_frames: int | None) -> None:
        self._source, self._prompts, self._pixels = source, prompts, pixels
        self.num_frames = num_frames  # of the whole video; None: without end
        self._made = self._run()

    @property
    def changes(self) -> list[Change]:
        """All new prompts so far, in the order in which they were asked for or planned for."""
        return self._prompts.changes

    def update(self, prompt: str | None = None, *, prompt_embeds: Tensor | None = None) -> Change:
        """Another prompt from the next chunk boundary on; may be called at any time and from any thread.

        The receipt's `applied_at` is filled in when the chunk begins. On a GPU, where one chunk is made ahead, that is
        not the next chunk to be seen but the one after it.
        """
        if (prompt is None) == (prompt_embeds is None):
            raise ValueError("a prompt, or its embeddings (prompt_embeds), must be given: one of the two")
        if not self._source.changeable:
            raise ValueError("all frames are made at once: the prompt cannot change in between")
        if prompt is not None:
            check_prompt(prompt)
        new = prompt if prompt is not None else prompt_embeds
        assert new is not None
        return self._prompts.ask(new)

    def __iter__(self) -> Session:
        return self

    def __next__(self) -> VideoChunk:
        return next(self._made)

    def close(self) -> None:
        """Stop; a chunk that is being denoised is finished first."""
        self._made.close()

    def _run(self) -> Generator[VideoChunk]:
        first = 0
        given = [] if self._source.given_BFCHW is None else [self._source.given_BFCHW]
        timed = _timed(self._source.chunks(self._prompts.text), self._pixels.device)
        for chunk, took in _ahead(timed) if self._pixels.apart else timed:
            start = time.perf_counter()
            frames, latents = self._pixels([*given, chunk.latents], took.ready)
            check_chunk(latents[-chunk.latents.shape[1] :], chunk.index, chunk.start)
            given = []
            passed = time.perf_counter() - start
            yield VideoChunk(chunk.index, first, frames, latents, self._source.forwards(chunk), took.seconds(), passed)
            first += len(frames)


def _words(prompt: Prompt) -> str | None:
    return prompt if isinstance(prompt, str) else None


@dataclass(frozen=True, slots=True)
class Took:
    """When a chunk began and ended: on a GPU events in its queue, which nobody waits for."""

    began: Any
    ended: Any

    @property
    def ready(self) -> torch.cuda.Event | None:
        return self.ended if isinstance(self.ended, torch.cuda.Event) else None

    def seconds(self) -> float:
        """Once the chunk is there."""
        if self.ready is None:
            return float(self.ended - self.began)
        return float(self.began.elapsed_time(self.ended)) / 1e3


def _timed(chunks: Iterator[Chunk], device: torch.device) -> Iterator[tuple[Chunk, Took]]:
    """Each chunk with the time it took."""
    began = _now(device)
    for chunk in chunks:
        ended = _now(device)
        yield chunk, Took(began, ended)
        began = _now(device)


def _now(device: torch.device) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """The items of an iterator, made in a thread of its own: the next one while this one is used."""
    with ThreadPoolExecutor(1) as worker:
        coming = worker.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = worker.submit(next, items, None)
            yield item
