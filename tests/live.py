"""Random frames in rings, and tables of their steps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from diagonal.engine.kernels.live import LiveFrame, LiveStep
from diagonal.engine.kernels.visibility import whole_blocks
from diagonal.planning.frames import UNUSED
from diagonal.planning.plan import NEVER


class Ring(NamedTuple):
    prefix: int
    unit: int
    places: int


def frame_of(ring: Ring, batch: int, device: str = "cpu") -> LiveFrame:
    """Samples at any frame of their videos: some have filled their rings, and begun anew."""
    number = torch.randint(0, 3 * ring.places, (batch,))
    number[:2] = torch.tensor([2 * ring.places, 0])[:batch]  # the frame before is at the last place, or there is none
    place, last = number % ring.places, (number - 1) % ring.places
    fed = torch.randint(0, 9, (2 * ring.unit,))
    fed[: ring.unit][torch.rand(ring.unit) < 0.7] = -1
    fed[torch.rand(2 * ring.unit) < 0.1] = NEVER
    tensors = [
        torch.randperm(batch + 2)[:batch],
        ring.prefix + place * ring.unit,
        ring.prefix + last * ring.unit,
        ring.prefix + number * ring.unit,
        number * ring.unit,
        (number + 1).clamp(max=ring.places),
        fed,
    ]
    unused = whole_blocks(ring.prefix + ring.places * ring.unit)
    rows, own, before, position, video, filled, fed = (one.to(device) for one in tensors)
    return LiveFrame(rows, own, before, position, video, filled, fed, *ring, unused)


def step_tensors(step: LiveStep) -> list[Tensor]:
    """All that a step is made of."""
    assert step.seen.rows_B is not None
    seen = [step.seen.slots_S, step.seen.needed_L, step.seen.whole, step.seen.extent, step.seen.rows_B]
    return [step.tokens_BS, step.slots_BS, step.positions_BS, step.write_BS, step.noise_BS, *seen]


def random_rows(ring: Ring, inputs: int, steps: int = 8) -> Tensor:
    """A table of steps: what is read, slots, where to write, and the number of the step."""
    parts = [torch.randint(-ring.unit, ring.unit, (steps, inputs)) for _ in range(3)]
    parts[2][torch.rand(steps, inputs) < 0.3] = UNUSED
    return torch.cat([*parts, torch.arange(1, steps + 1)[:, None]], 1)
