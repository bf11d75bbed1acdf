"""How long a linear layer takes, or attention, by our kernels and by others, beside reading what it must:

    python benchmarks/kernels.py --model cosmos/4b --tokens 1 16 48 96 --keys 4000 9500 --out NAME.json
    python benchmarks/kernels.py --model cosmos/4b --schedule diagonal:k=2,d=10 --known 2 --steps 30 60 --out NAME.json

Each row is a chain of calls of one kind, with the weights (the keys and values) of as many layers in turn as no cache
holds, recorded as a CUDA graph: microseconds from the end of one call to the end of the next, the median over replays.
Attention is to keys that all queries see, or that are all looked at, or with a schedule to what its steps' queries see.
`others` are cuBLAS with kernels of their own for norm and activation, and Triton's split-KV. `reading` is what the
bytes of weights, or of keys and values, take at the bandwidth of a large copy in the same run. Numbers are random, in
bfloat16.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from diagonal.catalog.names import find
from diagonal.catalog.variants import token_variant
from diagonal.engine.attention import Causal
from diagonal.engine.kernels import select
from diagonal.engine.kernels.visibility import BLOCK, Visibility, whole_blocks
from diagonal.engine.linear import FusedLinear, Norm
from diagonal.engine.protocols import CacheSpec
from diagonal.engine.tokens.graphs import padded, tables
from diagonal.evaluation.speed.machine import bandwidth, describe
from diagonal.generation.clock import Clock
from diagonal.media.files import atomic
from diagonal.planning.plan import NEVER, Order, Plan, make_plan

BYTES = {"cuda": 400e6, "cpu": 0.0}  # of weights in turn: several times what a cache holds
REPLAYS = 20


@dataclass(frozen=True, slots=True)
class Kind:
    """A linear layer: its name, and tensors without data."""

    name: str
    asked: FusedLinear


def kinds_of(model: str) -> tuple[list[Kind], CacheSpec]:
    """The linear layers of a model's first block, as it asks for them, and its cache."""
    with torch.device("meta"):
        built: Any = token_variant(find("models", model), model).config.build().bfloat16()
        found: list[Kind] = []
        names = {id(parameter): name.removesuffix(".weight") for name, parameter in built.named_parameters()}

        linear = select.linear

        def noted(x: Tensor, asked: FusedLinear) -> Tensor:
            found.append(Kind(names[id(asked.weight_NK)], asked))
            return linear(x, asked)

        with mock.patch.object(select, "linear", noted), torch.inference_mode():
            built(torch.zeros(1, 2, dtype=torch.long), torch.arange(2), Causal())
    layers = built.cache_spec.layers
    return found[: len(found) // layers], built.cache_spec


@contextmanager
def others() -> Iterator[None]:
    """Linear layers and attention as they are made where our CUDA C++ kernels do not fit."""
    with (
        mock.patch.object(select, "small_m", return_value=None),
        mock.patch.object(select, "wgmma", return_value=None),
        mock.patch("diagonal.engine.kernels.cuda.hopper_attention.supports_step", return_value=False),
    ):
        yield


def microseconds(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    """Of one of these calls, which follow each other: the median over replays of all."""

    def run() -> None:
        for call in calls:
            call()

    with torch.inference_mode():
        run()
        clock, replay = Clock(device), run
        if clock.cuda:
            clock.wait()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            replay = graph.replay
        marks = [clock.mark()]
        for _ in range(REPLAYS):
            replay()
            marks.append(clock.mark())
        return statistics.median(clock.milliseconds(marks)) * 1e3 / len(calls)


def time_linear(kind: Kind, tokens: int, device: torch.device) -> dict[str, Any]:
    """A layer of so many tokens: ours, others', and how many bytes it reads."""
    rows, depth = kind.asked.weight_NK.shape

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, device=device)).bfloat16()

    def like(part: Tensor | None) -> Tensor | None:
        return None if part is None else random(*part.shape)

    norm = kind.asked.norm and Norm(
        like(kind.asked.norm.weight), like(kind.asked.norm.bias), kind.asked.norm.eps, kind.asked.norm.centred
    )
    copies = max(2, math.ceil(BYTES[device.type] / (2 * rows * depth)))
    # Sums onto a residual go on from replay to replay: with small weights they stay numbers.
    weights = [random(rows, depth, scale=1e-2 * depth**-0.5) for _ in range(copies)]
    residual = None if kind.asked.residual is None else random(1, tokens, rows)
    asked = FusedLinear(weights[0], like(kind.asked.bias_N), norm, kind.asked.act, residual)
    x = random(1, tokens, depth)
    calls = [partial(select.linear, x, replace(asked, weight_NK=weight)) for weight in weights]
    ours = microseconds(calls, device)
    with others():
        return {"what": kind.name, "tokens": tokens, "us": ours, "us_others": microseconds(calls, device)} | {
            "bytes": weights[0].nbytes
        }


def time_attention(spec: CacheSpec, seen: Visibility, what: str) -> dict[str, Any]:
    """The attention of a step in which the queries see this."""
    device, tokens, length = seen.slots_S.device, len(seen.slots_S), len(seen.needed_L)
    keys = int((seen.needed_L <= seen.slots_S.max()).sum())
    own = 2 * spec.kv_heads * keys * spec.head_dim * 2
    caches = [
        torch.randn(2, 1, spec.kv_heads, length, spec.head_dim, device=device).bfloat16()
        for _ in range(max(2, math.ceil(BYTES[device.type] / own)))
    ]
    q = torch.randn(1, spec.kv_heads * spec.group, tokens, spec.head_dim, device=device).bfloat16()
    calls = [partial(select.decode_attention, q, cache[0], cache[1], seen) for cache in caches]
    ours = microseconds(calls, device)
    with others():
        other = microseconds(calls, device)
    name = f"attention, {keys} keys, {what}"
    return {"what": name, "tokens": tokens, "us": ours, "us_others": other, "bytes": own}


def seen_by_all(tokens: int, keys: int, device: torch.device) -> Iterator[tuple[Visibility, str]]:
    """So many keys, all of them known to be seen by all, or each looked at."""
    length = whole_blocks(keys)
    slots = torch.full((tokens,), keys - 1, device=device)
    needed = torch.arange(length, dtype=torch.int32, device=device)
    blocks, whole = (torch.tensor([number // BLOCK], device=device) for number in (length, keys))
    yield Visibility(slots, needed, whole, blocks), "all seen"
    yield Visibility(slots, needed, 0 * whole, blocks), "each looked at"


def seen_in(plan: Plan, step: int, device: torch.device) -> Visibility:
    """What the queries of a plan's step see, as a recorded step finds it."""
    if not 1 <= step < len(plan.steps):
        raise ValueError(f"step {step} given; the plan has steps 1 to {len(plan.steps) - 1} after the prompt's")
    length, table = plan.layout.length, tables(plan, device)[padded(len(plan.steps[step].read))]
    table.cursor[0] = int((table.rows[:, -1] == step).nonzero())
    fed_L = torch.full((whole_blocks(length),), NEVER, dtype=torch.int32, device=device)
    fed_L[:length] = torch.from_numpy(plan.first_fed).to(fed_L)
    return table.next(fed_L, torch.zeros(1, length + 1, dtype=torch.long, device=device))[2]


def plan_of(model: str, schedule: str, known: int) -> Plan:
    """The plan of a whole window of a model after so many frames."""
    variant = token_variant(find("models", model), model)
    return make_plan(variant.layout(variant.config.frames), Order.of(schedule), known)


def measured(given: argparse.Namespace, device: torch.device) -> Iterator[dict[str, Any]]:
    """All that is asked for, one after the other."""
    kinds, spec = kinds_of(given.model)
    for tokens in given.tokens:
        for kind in kinds:
            yield time_linear(kind, tokens, device)
        for keys in given.keys:
            for seen, what in seen_by_all(tokens, keys, device):
                yield time_attention(spec, seen, what)
    if given.steps:
        plan = plan_of(given.model, given.schedule, given.known)
        for step in given.steps:
            yield time_attention(spec, seen_in(plan, step, device), f"step {step}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, nargs="*", default=[])
    parser.add_argument("--keys", type=int, nargs="*", default=[], help="of attention with so many tokens")
    parser.add_argument("--schedule", help="of whose steps attention is measured")
    parser.add_argument("--steps", type=int, nargs="*", default=[])
    parser.add_argument("--known", type=int, default=1, help="frames before the first step")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if not given.tokens and not given.steps:
        parser.error("nothing to measure: give --tokens, or --schedule and --steps")
    if (given.schedule is None) != (not given.steps) or (given.keys and not given.tokens):
        parser.error("--schedule goes with --steps, and --keys with --tokens")
    device = torch.device(given.device)
    speed, rows = bandwidth(device), list[dict[str, Any]]()
    for row in measured(given, device):
        row["us_reading"] = row["bytes"] / speed * 1e6
        took = f"{row['us']:8.1f} us, others {row['us_others']:8.1f}, reading {row['us_reading']:8.1f}"
        sys.stdout.write(f"{row['tokens']:4} tokens {took}  {row['what']}\n")
        rows.append(row)
    command = "python " + " ".join(sys.argv)
    result = {"kind": "kernels", "command": command, "model": given.model, "bandwidth_gbs": speed / 1e9, "rows": rows}
    with atomic(given.out) as temporary:
        temporary.write_text(json.dumps(result | describe(device), indent=1) + "\n")


if __name__ == "__main__":
    main()
