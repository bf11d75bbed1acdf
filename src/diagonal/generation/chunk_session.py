"""A video of a diffusion model while it is being made: chunks from the engine, decoded as they complete.

On a GPU the next chunk is denoised while one is decoded: denoising has a thread of its own and is one chunk ahead,
decoding has a stream of its own. On a CPU one thing follows the other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from diagonal.engine.chunks.denoise import Chunk, Text, check_chunk
from diagonal.generation.ahead import ahead
from diagonal.generation.clock import Clock, Elapsed
from diagonal.generation.prompts import PromptTrack, Receipt
from diagonal.generation.request import check_prompt
from diagonal.generation.session import Piece
from diagonal.media.video import VideoArray
from diagonal.tokenizers.by_rows import DecoderByRows

DECODED = 3  # latent frames that are decoded together: more take memory and win nothing


@dataclass(frozen=True, slots=True)
class ChunkSource:
    """Where chunks come from: `chunks` runs the engine under a text, `total` counts the model's calls for all of them,
    prompts that change in between apart: each takes `passes`."""

    chunks: Callable[[Text], Iterator[Chunk]]
    total: int | None  # None: without end
    given_BFCHW: Tensor | None = None
    changeable: bool = True  # the prompt may change from chunk to chunk
    passes: int = 1


class PixelDecoder:
    """Latents to frames, with what the codec remembers of those before; on a GPU in a stream of its own."""

    def __init__(self, codec: Any, size: tuple[int, int], device: torch.device, batched: bool) -> None:
        self._codec, self._size, self.device, self._batched = codec, size, device, batched
        self._state: dict[str, Tensor] = {}
        # Ranks that decode together speak in one order: after the chunk, not beside the next one.
        alone = device.type == "cuda" and not isinstance(codec, DecoderByRows)
        self._stream = torch.cuda.Stream(device) if alone else None

    @property
    def apart(self) -> bool:
        """Whether decoding may run beside denoising."""
        return self._stream is not None

    def __call__(self, latents: Sequence[Tensor], ready: torch.cuda.Event | None) -> tuple[VideoArray, Tensor]:
        """Frames ([B,] T, H, W, 3) and latents on the CPU of consecutive latents (B, F, C, H, W); `ready` is when
        these are there."""
        if self._stream is None or ready is None:
            return self._decode(torch.cat([*latents], dim=1))
        # Few shapes come again and again: worth trying which convolution is the fastest.
        fastest = torch.backends.cudnn.flags(enabled=True, benchmark=True)
        with torch.cuda.stream(self._stream), fastest:
            self._stream.wait_event(ready)
            for one in latents:
                one.record_stream(self._stream)  # its memory was allocated in the other stream
            return self._decode(torch.cat([*latents], dim=1))  # ends with copies to the CPU: they wait for this stream

    def _decode(self, latents_BFCHW: Tensor) -> tuple[VideoArray, Tensor]:
        latents = self._own(latents_BFCHW.cpu())
        if self._codec is None:
            batch = latents.shape[:1] if self._batched else ()
            return np.zeros((*batch, 0, *self._size, 3), dtype=np.uint8), latents
        steps = latents_BFCHW.split(DECODED, dim=1)
        made = torch.cat([self._codec.decode(one, self._state).cpu() for one in steps], dim=1)
        return self._own(made).movedim(-3, -1).numpy(), latents

    def _own(self, batch: Tensor) -> Tensor:
        """What was asked for: a batch, or the one sample."""
        return batch if self._batched else batch[0]


class ChunkSession:
    """A video of a diffusion model while it is being made. Made by `VideoModel.stream`."""

    def __init__(
        self, source: ChunkSource, prompts: PromptTrack, decoder: PixelDecoder, num_frames: int | None, given: int
    ) -> None:
        self._source, self._prompts, self._decoder = source, prompts, decoder
        self.num_frames = num_frames  # of the whole video; None: without end
        self.given = given  # frames of it that it begins with
        self._made = self._run()

    @property
    def frames(self) -> int | None:
        """New frames that will be made; None: without end."""
        return None if self.num_frames is None else self.num_frames - self.given

    @property
    def calls(self) -> int | None:
        """Model calls that will be made, if no other prompt comes in between; None: without end."""
        if self._source.total is None:
            return None
        return self._source.total + self._source.passes * self._prompts.known

    @property
    def changes(self) -> list[Receipt]:
        """All new prompts so far, in the order in which they were asked for or planned for."""
        return self._prompts.changes

    def update(self, prompt: str | None = None, *, prompt_embeds: Tensor | None = None) -> Receipt:
        """Another prompt from the next chunk boundary on, of all samples; at any time and from any thread. Under a lag
        it also holds, from there on, for the chunks that are under way.

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

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Piece:
        return next(self._made)

    def close(self) -> None:
        """Stop; a chunk that is being denoised is finished first."""
        self._made.close()

    def _run(self) -> Generator[Piece]:
        index, host = 0, Clock(torch.device("cpu"))
        given = [] if self._source.given_BFCHW is None else [self._source.given_BFCHW]
        chunks = Clock(self._decoder.device).timed(self._source.chunks(self._prompts.text))
        for chunk, took in ahead(chunks) if self._decoder.apart else chunks:
            began = host.mark()
            frames, latents = self._decoder([*given, chunk.latents], took.ready)
            check_chunk(latents[..., -chunk.latents.shape[1] :, :, :, :], chunk.index, chunk.start)
            seconds = took.seconds(), Elapsed(began, host.mark()).seconds()
            known, given = self.given if given else 0, []
            yield Piece(index, frames, latents, chunk.calls, *seconds, given=known)
            index += frames.shape[-4]
