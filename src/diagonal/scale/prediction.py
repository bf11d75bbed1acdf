"""What tensor parallelism should take, computed from a step that was measured on one GPU. Nothing here was measured on
several.

On n GPUs, with a step of t ms on one, W_n the bytes of weights that a GPU then reads in a step, and S sums over all
GPUs (two a layer, three where a layer attends to a text) of B bytes each:

    t_n = t * W_n / W_1 + S * (10 us + 2 (n - 1) / n * B / 450 GB/s)

So half the weights are taken for half the time, which is a bound: short kernels do not become twice as fast. 10 us is
what sums of this size take with NCCL on NVLink by others' reports (7 to 23 us of 0.5 MB on H100), 450 GB/s what NVLink
of H100 and H200 carries each way; across machines both are worse.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from diagonal.catalog.variants import Variant
from diagonal.engine.ranks import Ranks
from diagonal.evaluation.speed.floor import Traffic
from diagonal.models.sharding import divide, row_parallel

LATENCY_US = 10.0
LINK_GBS = 450.0
GPUS = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Sums:
    """What the GPUs sum in a step."""

    count: int
    bytes_each: float

    @property
    def bytes_in_all(self) -> float:
        """Of a step."""
        return self.count * self.bytes_each

    def milliseconds(self, world: int) -> float:
        """The time of all of them, one after the other."""
        carried = 2 * (world - 1) / world * self.bytes_each / (LINK_GBS * 1e9)
        return self.count * (LATENCY_US / 1e3 + 1e3 * carried)


@dataclass(frozen=True, slots=True)
class Divided:
    """A model on so many GPUs."""

    world: int
    sums: Sums
    weights: float  # that one GPU reads in a step, over those of the whole model

    def step_ms(self, alone_ms: float) -> float:
        """A step that takes so long on one GPU."""
        return alone_ms * self.weights + self.sums.milliseconds(self.world)


def divided(name: str, variant: Variant, inputs: float, dtype: torch.dtype, world: int) -> Divided:
    """What becomes of a step of so many inputs, of all samples together; numbers of `dtype` are summed."""
    with torch.device("meta"):
        whole, model = variant.config.build(), variant.config.build()
    before = Traffic.of(whole, dtype).weights
    divide(model, name, Ranks(0, world, torch.device("meta")))
    summed = row_parallel(whole, name)
    width = cast(nn.Linear, whole.get_submodule(summed[0])).out_features
    sums = Sums(len(summed), inputs * width * dtype.itemsize)
    return Divided(world, sums, Traffic.of(model, dtype).weights / before)


def measured(path: Path, name: str, schedule: str) -> float:
    """Milliseconds a step under a schedule, of a file that `diagonal bench --out` wrote on one GPU."""
    try:
        found: Any = json.loads(path.read_text())
        cases = {str(one["schedule"]): float(one["ms_per_step"]) for one in found["cases"] if one["model"] == name}
        several = found.get("tensor_parallel", 1) != 1
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no result of `diagonal bench --out` ({type(error).__name__}: {error})") from error
    if several:
        raise ValueError(f"{path} was measured on several GPUs; a prediction needs a step on one")
    if schedule not in cases:
        held = f"{name} under {', '.join(cases)}" if cases else f"nothing of {name}"
        raise ValueError(f"{path} holds {held}; {schedule} is planned: measure it, or plan what was measured")
    return cases[schedule]
