"""The least time that a step of decoding can take: what it must read, over the bandwidth of the memory.

At batch 1 a step does few operations per weight that it reads, far fewer than a GPU could: reading is what takes the
time. With b bytes per number:

    weights    b * (all parameters - embedding tables - those that only a text's keys and values need);
               of int8 and fp8, 1 * their number, and 4 for the scale of each row
    rows       b * width * inputs, for each embedding table
    K/V        b * 2 * layers * key heads * head width * batch * slots that were written and may be seen

Not counted: activations, logits, and what is written. So it is a floor: nothing that reads every weight once from
memory is faster. A model that fits a processor's cache is not read from memory at all, and can be.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from diagonal.engine.protocols import CacheSpec
from diagonal.models.layers import ScaledRows
from diagonal.planning.plan import Plan

FloatArray = npt.NDArray[np.float64]

# Parameters that make keys and values of a text, once a video (their names: docs/add-a-model.md).
ONCE = re.compile(r"\.text_\w+\.(kv|k_norm)\.")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a model reads in a step: `weights`, and for each input a `row`, for each visible position a `slot`."""

    weights: int
    row: int
    slot: int

    @classmethod
    def of(cls, model: nn.Module, cache_dtype: torch.dtype, batch: int = 1) -> Traffic:
        """The traffic of a model, whose shapes say it all: it may be on the meta device."""
        spec, tables = cast(CacheSpec, model.cache_spec), looked_up(model)
        numbers = {**dict(model.named_parameters()), **dict(model.named_buffers())}  # scales of rows are buffers
        whole = [p for name, p in numbers.items() if name not in tables and not ONCE.search(name)]
        return cls(
            weights=sum(p.numel() * p.element_size() for p in whole),
            row=batch * sum(table.shape[1] * table.element_size() for table in tables.values()),
            slot=batch * 2 * spec.layers * spec.kv_heads * spec.head_dim * cache_dtype.itemsize,
        )


def looked_up(model: nn.Module) -> dict[str, Tensor]:
    """Embedding tables of which a step reads only the rows of its inputs.

    Where a model has no output layer of its own, its table of tokens is that layer too, and is read as a whole.
    """
    tables = {f"{name}.weight": m.weight for name, m in model.named_modules() if isinstance(m, nn.Embedding)}
    if not any(isinstance(part, nn.Linear | ScaledRows) for part in model.children()):
        del tables[max(tables, key=lambda name: len(tables[name]))]
    return tables


def step_bytes(traffic: Traffic, plans: Sequence[Plan], text_rows: int = 0) -> FloatArray:
    """Bytes that each step of some plans must read; the keys and values of a text are seen by all."""
    inputs = np.concatenate([plan.widths for plan in plans])
    slots = np.concatenate([visible_slots(plan) for plan in plans]) + text_rows
    read: FloatArray = traffic.weights + traffic.row * inputs + traffic.slot * slots.astype(np.float64)
    return read


def visible_slots(plan: Plan) -> npt.NDArray[np.int64]:
    """Slots that each step finds written, up to the last one that it may see."""
    first = plan.first_fed
    counts = [np.count_nonzero(first[: step.slot.max() + 1] <= index) for index, step in enumerate(plan.steps)]
    return np.array(counts, dtype=np.int64)
