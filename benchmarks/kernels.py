"""How long one product of a layer takes, or its attention, by our kernels and by others, beside reading what it must:

    python benchmarks/kernels.py --model cosmos/4b --tokens 1 16 48 96 --keys 4000 9500 --out NAME.json

Each row is a chain of calls of one kind, with the weights (the keys and values) of as many layers in turn as no cache
holds, recorded as a CUDA graph: microseconds from the end of one call to the end of the next, the median over replays.
`others` are cuBLAS with kernels of their own for norm and activation, and Triton's attention. `reading` is what the
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

from diagonal.engine.attention import Causal
from diagonal.engine.kernels import narrow, products, wide
from diagonal.engine.kernels.visibility import Visibility, whole_blocks
from diagonal.engine.product import Norm, Product
from diagonal.engine.protocols import CacheSpec, token_variant
from diagonal.evaluation.machine import Clock, bandwidth, describe
from diagonal.files import atomic
from diagonal.names import find

BYTES = {"cuda": 400e6, "cpu": 0.0}  # of weights in turn: several times what a cache holds
REPLAYS = 20


@dataclass(frozen=True, slots=True)
class Kind:
    """A product of a layer: its name, and tensors without numbers."""

    name: str
    asked: Product


def kinds_of(model: str) -> tuple[list[Kind], CacheSpec]:
    """The products of a model's first layer, as it asks for them, and its cache."""
    with torch.device("meta"):
        built: Any = token_variant(find("models", model), model).config.build().bfloat16()
        found: list[Kind] = []
        names = {id(parameter): name.removesuffix(".weight") for name, parameter in built.named_parameters()}

        def noted(x: Tensor, asked: Product) -> Tensor:
            found.append(Kind(names[id(asked.weight_NK)], asked))
            return products.product(x, asked)

        with mock.patch("diagonal.models.layers.product", noted), torch.inference_mode():
            built(torch.zeros(1, 2, dtype=torch.long), torch.arange(2), Causal())
    layers = built.cache_spec.layers
    return found[: len(found) // layers], built.cache_spec


@contextmanager
def others() -> Iterator[None]:
    """Products and attention as they are made where our CUDA C++ kernels do not fit."""
    with (
        mock.patch.object(narrow, "fitting", return_value=None),
        mock.patch.object(wide, "fitting", return_value=None),
        mock.patch("diagonal.engine.kernels.hopper_attention.fitting", return_value=False),
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


def time_product(kind: Kind, tokens: int, device: torch.device) -> dict[str, Any]:
    """A product of so many tokens: ours, others', and how many bytes it reads."""
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
    asked = Product(weights[0], like(kind.asked.bias_N), norm, kind.asked.act, residual)
    x = random(1, tokens, depth)
    calls = [partial(products.product, x, replace(asked, weight_NK=weight)) for weight in weights]
    ours = microseconds(calls, device)
    with others():
        return {"what": kind.name, "tokens": tokens, "us": ours, "us_others": microseconds(calls, device)} | {
            "bytes": weights[0].nbytes
        }


def time_attention(spec: CacheSpec, tokens: int, keys: int, device: torch.device) -> Iterator[dict[str, Any]]:
    """A step's attention to so many keys: all of them seen by all, or each looked at."""
    from diagonal.engine.kernels.attention import attend

    length, own = whole_blocks(keys), 2 * spec.kv_heads * keys * spec.head_dim * 2
    caches = [
        torch.randn(2, 1, spec.kv_heads, length, spec.head_dim, device=device).bfloat16()
        for _ in range(max(2, math.ceil(BYTES[device.type] / own)))
    ]
    q = torch.randn(1, spec.kv_heads * spec.group, tokens, spec.head_dim, device=device).bfloat16()
    slots = torch.full((tokens,), length - 1, device=device)
    needed = torch.arange(length, dtype=torch.int32, device=device)
    blocks = torch.tensor([length // 64], device=device)
    for name, whole in (("all seen", blocks), ("each looked at", 0 * blocks)):
        seen = Visibility(slots, needed, whole, blocks)
        calls = [lambda cache=cache, seen=seen: attend(q, cache[0], cache[1], seen) for cache in caches]
        ours = microseconds(calls, device)
        with others():
            other = microseconds(calls, device)
        what = f"attention, {keys} keys, {name}"
        yield {"what": what, "tokens": tokens, "us": ours, "us_others": other, "bytes": own}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, nargs="+", required=True)
    parser.add_argument("--keys", type=int, nargs="*", default=[])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    device, (kinds, spec) = torch.device(given.device), kinds_of(given.model)
    speed, rows = bandwidth(device), list[dict[str, Any]]()
    for tokens in given.tokens:
        made = [time_product(kind, tokens, device) for kind in kinds]
        made += [row for keys in given.keys for row in time_attention(spec, tokens, keys, device)]
        for row in made:
            row["us_reading"] = row["bytes"] / speed * 1e6
            took = f"{row['us']:8.1f} us, others {row['us_others']:8.1f}, reading {row['us_reading']:8.1f}"
            sys.stdout.write(f"{tokens:4} tokens {took}  {row['what']}\n")
        rows += made
    command = "python " + " ".join(sys.argv)
    result = {"kind": "kernels", "command": command, "model": given.model, "bandwidth_gbs": speed / 1e9, "rows": rows}
    with atomic(given.out) as temporary:
        temporary.write_text(json.dumps(result | describe(device), indent=1) + "\n")


if __name__ == "__main__":
    main()
