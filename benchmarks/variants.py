"""Does another number in the code make a plan faster? Both ways take turns in one process, on one GPU:

    python benchmarks/variants.py --model mcar/700m --schedule diagonal:k=1 \\
        --variant engine.kernels.tuning.HOPPER.small_m.large_tokens=16 \\
        --variant "engine.kernels.tuning.HOPPER.wgmma.weight_bytes=64<<10" --out NAME.json

A variant sets constants of modules of the package, or of tables in them; several stand in one text with spaces between.
The first of all is the code as it is. Every variant has steps captured for itself, and all share the model (random
weights, bfloat16, batch 1) and compiled kernels: what one in CUDA C++ is compiled with must be a field of its
`KernelConfig`, or it is launched as another.
Times are those of `diagonal bench`, whose definition goes with the result.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import sys
from collections.abc import Sequence
from copy import copy
from itertools import count
from pathlib import Path
from typing import Any

import torch

from diagonal.engine.warm import Warm
from diagonal.evaluation.speed.world import DEFINITION, Case, WorldSettings, measure
from diagonal.generation.load import load
from diagonal.media.files import atomic
from diagonal.planning.plan import Order

Setting = tuple[Any, str, Any]  # a module or a table, a name, and its value


def settings_of(text: str) -> list[Setting]:
    """What a variant sets: 'engine.kernels.tuning.HOPPER.wgmma.least_fill=0.6 ...'."""
    return [_setting(part) for part in text.split()]


def _setting(text: str) -> Setting:
    place, _, value = text.partition("=")
    path, _, name = place.rpartition(".")
    try:
        owner = _owner(path)
        getattr(owner, name)
        return owner, name, _number(ast.parse(value, mode="eval").body)
    except (ImportError, AttributeError, SyntaxError, ValueError) as error:
        raise ValueError(
            f"{text!r} is no variant; write the place of a number in the package and another one, as in "
            f"engine.kernels.tuning.HOPPER.wgmma.least_fill=0.6 ({error})"
        ) from error


def _owner(path: str) -> Any:
    """The module of the package at a path, or what an attribute of one holds."""
    try:
        return importlib.import_module(f"diagonal.{path}")
    except ModuleNotFoundError:
        parent, _, name = path.rpartition(".")
        if not parent:
            raise
        return getattr(_owner(parent), name)


def _number(node: ast.expr) -> Any:
    """A literal, or one shifted to the left by another."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
        return _number(node.left) << _number(node.right)
    return ast.literal_eval(node)


def compare(
    model: str, schedule: str, variants: Sequence[str], how: WorldSettings, device: str
) -> list[dict[str, Any]]:
    """The numbers of the code as it is and of each variant; mean times by rounds, and how many times as fast."""
    changes = [settings_of(text) for text in ("", *variants)]
    usual = [(owner, name, getattr(owner, name)) for settings in changes for owner, name, _ in settings]
    turns = count(1)

    def become(number: int) -> None:
        for owner, name, value in (*usual, *changes[number % len(changes)]):
            setattr(owner, name, value)

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    world = load(model, "random", device=device, dtype=dtype)
    cases = []
    for _ in changes:
        own = copy(world)
        own.warm = Warm()
        cases.append(Case(own, Order.of(schedule)))
    become(0)
    try:
        found = measure(cases, how, lambda: become(next(turns)))
    finally:
        become(0)
    for text, one in zip(("as it is", *variants), found, strict=True):
        rounds = zip(found[0]["mean_ms_by_repeat"], one["mean_ms_by_repeat"], strict=True)
        one |= {"variant": text, "times_as_fast": [first / second for first, second in rounds]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--schedule", required=True)
    parser.add_argument("--variant", action="append", required=True, metavar="MODULE.NAME=VALUE ...")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--steps", type=int, help="measure at most so many after the first")
    parser.add_argument("--frames", type=int, help="new ones; default: what the model's window holds")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    how = WorldSettings(frames=given.frames, repeat=given.repeat, steps=given.steps, tokenizer=False)
    found = compare(given.model, given.schedule, given.variant, how, given.device)
    result = {
        "kind": "variants",
        "command": "python " + " ".join(sys.argv),
        "cases": found,
        "definition": DEFINITION,
    }
    with atomic(given.out) as temporary:
        temporary.write_text(json.dumps(result, indent=1) + "\n")
    for one in found:
        span = f"{min(one['times_as_fast']):.3f} to {max(one['times_as_fast']):.3f}"
        sys.stdout.write(f"{one['mean_ms']:9.4f} ms  {one['fps']:7.2f} FPS  {span} times as fast  {one['variant']}\n")


if __name__ == "__main__":
    main()
