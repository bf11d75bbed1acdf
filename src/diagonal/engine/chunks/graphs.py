"""Calls of a diffusion model as CUDA graphs: recorded once for each place in the cache, then replayed.

A call launches a thousand kernels, and Python needs longer to launch them than the GPU to run them. A window has few
places: it fills chunk by chunk, and then its ring comes round again and again. So the second call at a place is
recorded, and every later one is a single launch. What changes from call to call (latents, level, rotation) is copied
into buffers that the recording reads. Keys and values of a text, a few small kernels for each layer, are a recording of
their own: they stay where the calls read them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from diagonal.catalog.variants import DiffusionConfig
from diagonal.engine.chunks.cache import WindowCache, WindowStep
from diagonal.engine.chunks.protocols import DiffusionModel, LayerText, Memory, Rope, TextKV
from diagonal.engine.protocols import CacheSpec

T = TypeVar("T")
Place = tuple[int, int, tuple[int, ...]]  # first slot, places seen, and the shape of the latents


@dataclass(slots=True)
class _Inputs:
    """The buffers of calls with latents of one shape."""

    x: Tensor
    level: Tensor  # (1, 1)
    rope: Rope
    turned: Rope  # what the rotation was copied from


@dataclass
class ChunkGraphs:
    """A model with its calls on one cache recorded. The cache must be on a GPU."""

    model: DiffusionModel
    cache: WindowCache
    _graphs: dict[Place, tuple[Any, Tensor] | None] = field(default_factory=dict)  # None: seen once
    _inputs: dict[tuple[int, ...], _Inputs] = field(default_factory=dict)
    _words: tuple[Tensor, Any] | None = None  # embeddings of a text, and the recording that makes `_text` of them
    _text: list[LayerText] = field(default_factory=list)
    _spoken: TextKV | None = None  # what the text was copied from
    _pool: Any = None

    @property
    def config(self) -> DiffusionConfig:
        return self.model.config

    @property
    def cache_spec(self) -> CacheSpec:
        return self.model.cache_spec

    def embed_text(self, text_BLC: Tensor) -> TextKV:
        """Keys and values of a prompt, in inference where recorded calls read them: those of the prompt before are
        gone."""
        if not torch.is_inference_mode_enabled() or (self._words is None and self._text):
            return self.model.embed_text(text_BLC)  # in the second case recorded calls read another place already
        if self._words is None:
            self._words = self._record_text(text_BLC)
        words, graph = self._words
        rows = text_BLC.shape[1]
        if text_BLC.shape[::2] != words.shape[::2] or rows > words.shape[1]:
            return self.model.embed_text(text_BLC)  # of another batch, or refused
        words[:, :rows] = text_BLC
        words[:, rows:] = 0
        graph.replay()
        self._spoken = self._text
        return self._text

    def _record_text(self, text_BLC: Tensor) -> tuple[Tensor, Any]:
        """Buffers for embeddings, and the recording that fills those of a text from them."""
        self.model.embed_text(text_BLC)  # refuses what it does not take, and sets up whatever the kernels need
        batch, _, width = text_BLC.shape
        words = text_BLC.new_zeros(batch, self.config.text_length, width, dtype=torch.float32)
        graph, text = self._recorded(lambda: self.model.embed_text(words))
        self._text = list(text)
        return words, graph

    def rope(self, frames_F: Tensor, rows: int, cols: int) -> Rope:
        return self.model.rope(frames_F, rows, cols)

    def rotate(self, x_BSHD: Tensor, rope: Rope) -> Tensor:
        return self.model.rotate(x_BSHD, rope)

    def __call__(self, x_BFCHW: Tensor, level: float | Tensor, text: TextKV, rope: Rope, memory: Memory) -> Tensor:
        """The velocity. Calls that cannot be recorded go to the model: other caches, tokens that lie scattered."""
        own = isinstance(memory, WindowStep) and memory.cache is self.cache and memory.past is None
        if not own or isinstance(level, Tensor) or torch.is_grad_enabled():
            return self.model(x_BFCHW, level, text, rope, memory)
        assert isinstance(memory, WindowStep)
        if memory.first is None:
            return self.model(x_BFCHW, level, text, rope, memory)
        inputs = self._fill(x_BFCHW, level, text, rope)
        place = (memory.first, memory.extent, tuple(x_BFCHW.shape))
        if place not in self._graphs:
            self._graphs[place] = None
            return self._run(inputs, memory)  # also sets up whatever the kernels need
        graph, out = self._graphs[place] or self._record(place, inputs, memory)
        graph.replay()
        return out.clone()

    def _fill(self, x: Tensor, level: float, text: TextKV, rope: Rope) -> _Inputs:
        """Copy what this call is about into the buffers."""
        shape = tuple(x.shape)
        if shape not in self._inputs:
            at = torch.empty(1, 1, dtype=torch.float64, device=x.device)
            self._inputs[shape] = _Inputs(x.clone(), at, (rope[0].clone(), rope[1].clone()), rope)
        inputs = self._inputs[shape]
        inputs.x.copy_(x)
        inputs.level.fill_(level)
        if rope is not inputs.turned:
            inputs.turned = rope
            for buffer, new in zip(inputs.rope, rope, strict=True):
                buffer.copy_(new)
        if text is not self._spoken:
            self._spoken = text
            self._text = self._text or [(k.clone(), v.clone(), rows.clone()) for k, v, rows in text]
            for buffers, given in zip(self._text, text, strict=True):
                for buffer, new in zip(buffers, given, strict=True):
                    buffer.copy_(new)
        return inputs

    def _run(self, inputs: _Inputs, memory: WindowStep) -> Tensor:
        return self.model(inputs.x, inputs.level, self._text, inputs.rope, memory)

    def _record(self, place: Place, inputs: _Inputs, memory: WindowStep) -> tuple[Any, Tensor]:
        made = self._graphs[place] = self._recorded(lambda: self._run(inputs, memory))
        return made

    def _recorded(self, run: Callable[[], T]) -> tuple[Any, T]:
        """A graph of what is run, and the buffers that its replays leave their results in."""
        graph = torch.cuda.CUDAGraph()
        # Frames may be decoded by another thread meanwhile: what that allocates does not matter here.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            out = run()
        self._pool = graph.pool()
        return graph, out
