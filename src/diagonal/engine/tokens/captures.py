"""Steps that run again without the host's work: captured CUDA graphs, or on a CPU recorded calls of the library.

Whatever a step reads that may change lies at a fixed place; so what it did once can be done again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import chain
from typing import Any

import torch
from torch import nn

from diagonal.engine.kernels import select
from diagonal.engine.kernels.cpu import calls, on_cpu

Step = Callable[[], None]
ATTEMPTS = 2  # to record a step: the first time it may make tables that it finds afterwards


class Captures:
    """The steps of one model that were made ready, by kind."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model = model if isinstance(model, nn.Module) else None  # of others nobody knows the weights
        self._cuda = select.available(device)  # plain torch asks the device for numbers, which no graph can
        self._recorded = on_cpu(device) and self._model is not None
        self._ready: dict[Hashable, Step] = {}
        self._attempts: dict[Hashable, int] = {}
        self._pool: Any = None
        self._space = calls.Space()
        self._weights: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self._ready)

    def begin(self) -> None:
        """Before some steps: calls of the library read weights that must be where they were, and as they were."""
        if self._recorded and (weights := self._state()) != self._weights:
            self._weights = weights
            self._ready.clear()
            self._attempts.clear()

    def run(self, kind: Hashable, step: Step) -> None:
        """Run a step; all steps of one kind do the same."""
        if kind in self._ready:
            self._ready[kind]()
        elif self._cuda:
            self._ready[kind] = self._captured(step)
        elif self._recorded and self._attempts.get(kind, 0) < ATTEMPTS:
            self._record(kind, step)
        else:
            step()

    def _captured(self, step: Step) -> Step:
        """Run the step once, which also warms it up, then capture it with everything where it was."""
        step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads may ask the GPU meanwhile: those that decode frames, and NCCL's, which watches its sums.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            step()
        self._pool = graph.pool()
        replay: Step = graph.replay
        return replay

    def _record(self, kind: Hashable, step: Step) -> None:
        recording = calls.record(step, self._space)
        if recording is None:
            self._attempts[kind] = self._attempts.get(kind, 0) + 1
        else:
            self._ready[kind] = recording.replay

    def _state(self) -> tuple[Any, ...]:
        """Where the weights lie and how often they were changed; how many threads compute."""
        assert self._model is not None
        parts = [*chain(self._model.parameters(), self._model.buffers())]
        if any(part.is_inference() for part in parts):  # nobody could tell when they change
            self._recorded = False
            return ()
        return torch.get_num_threads(), *((part.data_ptr(), part._version) for part in parts)
