"""The prompt of every chunk of a video: those known from the start, and those that come while it is made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from diagonal.generation.request import Prompts


@dataclass(slots=True)
class Receipt:
    """A new prompt: the chunk that was being made, or was made last, when it was asked for, and the first chunk that
    followed it. None: none did yet, or another prompt came first."""

    prompt: str | None  # None: it came as embeddings; of a batch, its prompts, one a line
    requested_at: int
    applied_at: int | None = None


class PromptTrack:
    """The prompt of every chunk: those known from the start by chunk, and those that come in between, from any thread.

    Embeddings are a new tensor for each prompt: by that the engine knows a change.
    """

    def __init__(self, planned: Mapping[int, Prompts], embed: Callable[[list[Prompts]], list[Tensor]]) -> None:
        self._embed, self._lock, self._chunk = embed, threading.Lock(), 0
        self._waiting: list[tuple[Receipt, Tensor]] = []
        self.changes: list[Receipt] = []
        self._planned = dict(zip(planned, embed(list(planned.values())), strict=True))
        self._texts = {chunk: _words(prompt) for chunk, prompt in planned.items()}
        self._now = self._planned.pop(0)
        self.known = len(self._planned)  # changes that were planned

    def ask(self, prompt: Prompts) -> Receipt:
        """Another prompt from the next chunk on. It is encoded in the thread that asks."""
        (embeds,) = self._embed([prompt])
        with self._lock:
            change = Receipt(_words(prompt), self._chunk)
            self._waiting.append((change, embeds))
            self.changes.append(change)
        return change

    def text(self, chunk: int) -> Tensor:
        """The embeddings for a chunk that begins now."""
        with self._lock:
            self._chunk = chunk
            if chunk in self._planned:
                self._now = self._planned.pop(chunk)
                self.changes.append(Receipt(self._texts[chunk], 0, chunk))
            if self._waiting:
                change, self._now = self._waiting[-1]
                change.applied_at = chunk
                self._waiting = []
            return self._now


def _words(prompt: Prompts) -> str | None:
    if isinstance(prompt, str):
        return prompt
    return None if isinstance(prompt, Tensor) else "\n".join(prompt)
