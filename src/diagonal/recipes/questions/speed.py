"""Question 7: what parallel decoding gains, by calls, wall clock and energy, wherever it runs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch

from diagonal.evaluation.speed.energy import Energy
from diagonal.evaluation.speed.world import Case, WorldSettings, decoding, measure
from diagonal.generation.load import load
from diagonal.planning.plan import Order
from diagonal.recipes.questions.jobs import Job, Numbers, Setting

RASTER = "raster"


@dataclass(frozen=True, slots=True)
class Size:
    """What is timed: every model at every batch and context."""

    models: tuple[str, ...]
    batches: tuple[int, ...]
    known: tuple[int, ...]  # frames that are given
    schedules: tuple[str, ...]
    minutes: float
    frames: int | None = None  # None: what is left of the window
    steps: int | None = None  # of each decoding that are timed


DIAGONALS = ("diagonal:k=2", "diagonal:k=1")
SIZES = {
    "smoke": Size(("doom/1m-6f",), (1,), (5,), DIAGONALS[1:], 0.1, steps=8),
    "cpu": Size(("doom/2m", "doom"), (1, 4, 16), (4,), DIAGONALS, 1.0, frames=2, steps=60),
    "full": Size(
        ("doom/2m", "doom", "doom/150m", "mcar/300m", "mcar/700m", "mcar/1200m"),
        (1, 4, 16, 64),
        (1, 8),
        (*DIAGONALS, "lossless"),
        1.0,
        steps=400,
    ),
}


@dataclass(frozen=True)
class Speed:
    """Raster and diagonals in turns, of many models and batches. Weights do not matter but for `lossless`."""

    setting: Setting
    asked = "What does parallel decoding gain that does not depend on one implementation?"

    @property
    def size(self) -> Size:
        return SIZES[self.setting.size]

    def jobs(self) -> list[Job]:
        size = self.size
        return [self._job(*case) for case in product(size.models, size.batches, size.known)]

    def rows(self) -> list[Numbers]:
        """A row a schedule: what it gains over raster of the same model, batch and context."""
        found = (job.result(self.setting.work) for job in self.jobs())
        return [row for result in found if result is not None for row in result["rows"]]

    def _job(self, model: str, batch: int, known: int) -> Job:
        name = f"{model.replace('/', '-')}-batch-{batch}-known-{known}"
        return Job(name, self.size.minutes, lambda _: self._measure(model, batch, known))

    def _measure(self, model: str, batch: int, known: int) -> Numbers:
        size, cuda = self.size, self.setting.device != "cpu"
        weights = None if model == "doom" else "random"
        dtype = torch.bfloat16 if cuda else torch.float32
        world = load(model, weights=weights, device=self.setting.device, dtype=dtype)
        names = [one for one in (RASTER, *size.schedules) if one != "lossless" or weights is None]
        settings = WorldSettings(size.frames, known, batch, repeat=2, steps=size.steps, tokenizer=False)
        cases = [Case(world, Order.of(one)) for one in names]
        measured = measure(cases, settings)
        rows = []
        for case, numbers in zip(cases, measured, strict=True):
            base, frames = measured[0], numbers["frames"]
            row: Numbers = {"model": model, "batch": batch, "context": known, "schedule": str(case.order)}
            row |= {"calls a frame": numbers["steps"] / frames, "ms a call": numbers["ms_per_step"]}
            row |= {"fewer calls": base["steps"] / numbers["steps"], "speed-up": numbers["fps"] / base["fps"]}
            rows.append(row | {"joules a frame": _joules(case, settings) if cuda else None})
        return {"rows": rows}


def _joules(case: Case, settings: WorldSettings) -> float | None:
    """Energy of a new frame, of a decoding from its start to its end."""
    session = decoding(case, settings)
    with Energy() as used:
        made = sum(1 for _ in session.token_frames())
        torch.cuda.synchronize()
    return None if used.joules is None else used.joules / (made * settings.batch)
