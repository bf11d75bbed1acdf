"""What a velocity makes of a chunk: solvers take it from the level of a call to the next one, and in the end to clean.

Renoise   x0 = x - sigma * v, noised afresh to the next level: models of few steps
Euler     x + (next sigma - sigma) * v: the flow in straight pieces
UniPC     diffusers' solver of second order, which remembers the step before: each chunk has one of its own
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from diagonal.engine.chunks.protocols import Noise
from diagonal.planning.denoising import ChunkSchedule
from diagonal.planning.lag import Part


class Solver(Protocol):
    """The steps of all chunks of one video."""

    def level(self, part: Part) -> float:
        """The timestep that the model is told for a step: the schedule's, as the solver rounds it."""
        ...

    def step(self, part: Part, x_BFCHW: Tensor, velocity_BFCHW: Tensor, following: float | None) -> Tensor:
        """The chunk at the level that follows. None: clean, for this was its last step."""
        ...


@dataclass(frozen=True, slots=True)
class Renoise:
    """Noise drawn afresh at every level. `sigma` gives the noise level at a timestep."""

    sigma: Callable[[float], float]
    noise: Noise

    def level(self, part: Part) -> float:
        return part.level

    def step(self, part: Part, x_BFCHW: Tensor, velocity_BFCHW: Tensor, following: float | None) -> Tensor:
        clean = x_BFCHW - self.sigma(part.level) * velocity_BFCHW
        if following is None:
            return clean
        return noised(clean, self.sigma(following), self.noise(part.chunk, part.step + 1, tuple(clean.shape)))


@dataclass(frozen=True, slots=True)
class Euler:
    """Straight steps along the velocity."""

    def level(self, part: Part) -> float:
        return part.level

    def step(self, part: Part, x_BFCHW: Tensor, velocity_BFCHW: Tensor, following: float | None) -> Tensor:
        return x_BFCHW + ((following or 0.0) - part.level) / 1000 * velocity_BFCHW


@dataclass(slots=True)
class UniPC:
    """diffusers' UniPC over as many steps as the schedule has. Its levels are the schedule's in whole timesteps.

    `in_place`: as the published pipelines of SkyReels-V2 use it. They write the new latents over those that the solver
    has kept of the first step, so that its correction in the second starts from the wrong ones; later steps are not
    touched by it. Videos with and without differ.
    """

    schedule: ChunkSchedule
    in_place: bool = False
    _chunks: dict[int, Any] = field(default_factory=dict)  # the solver of each chunk that is under way

    def level(self, part: Part) -> float:
        return float(self._solver(part.chunk).timesteps[part.step])

    def step(self, part: Part, x_BFCHW: Tensor, velocity_BFCHW: Tensor, following: float | None) -> Tensor:
        solver = self._solver(part.chunk)
        moved: Tensor = solver.step(velocity_BFCHW, solver.timesteps[part.step], x_BFCHW, return_dict=False)[0]
        if part.step == 0 and self.in_place:
            solver.last_sample = moved
        if following is None:
            del self._chunks[part.chunk]
        return moved

    def _solver(self, chunk: int) -> Any:
        if chunk not in self._chunks:
            self._chunks[chunk] = unipc(len(self.schedule.levels(chunk)), self.schedule.shift)
        return self._chunks[chunk]


def unipc(steps: int, shift: float) -> Any:
    """diffusers' UniPC for flow matching, as Wan is published with. Its table stays on the CPU: reading it waits for no
    GPU."""
    try:
        import diffusers
    except ImportError as error:
        raise ValueError("models of many steps are run with diffusers' solver: pip install diffusers") from error
    schedulers: Any = diffusers  # its classes are untyped
    scheduler = schedulers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=shift
    )
    scheduler.set_timesteps(steps)
    return scheduler


def noised(clean: Tensor, sigma: float, noise: Tensor) -> Tensor:
    """x_t = (1 - s) x0 + s noise."""
    return (1 - sigma) * clean + sigma * noise
