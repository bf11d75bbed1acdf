"""Which kernels a step consists of, and how long each takes, on a GPU:

    python benchmarks/profile_step.py --model cosmos/4b --schedule diagonal:k=2,d=10 --out benchmarks/results/NAME.json

Random weights at true size, bfloat16, batch 1. For a token model the first steps of a plan after the prompt are
profiled, for a diffusion model all calls of a video; graphs are recorded before. Kernels of one name and grid are one
row: `us` is from the beginning to the end of one, `adds` from the end of all before it to its own. A kernel that begins
early has waited in the first, and adds no more than the second. `idle` is the time in which none ran: the profiler
makes it longer, so for whole steps ask `diagonal bench`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch

from diagonal.catalog.names import find
from diagonal.catalog.variants import DiffusionVariant
from diagonal.evaluation.speed.machine import describe
from diagonal.evaluation.speed.video import prompt, tflops
from diagonal.evaluation.speed.world import Case, WorldSettings, cut, decoding, with_text
from diagonal.generation.components import NONE
from diagonal.generation.load import load, load_video_model
from diagonal.generation.request import Request
from diagonal.media.files import atomic
from diagonal.planning.plan import Order

KINDS = ("kernel", "gpu_memset", "gpu_memcpy")


def summary(events: Sequence[dict[str, Any]], steps: int) -> dict[str, Any]:
    """Microseconds a step, kernel by kernel, the longest first, from the events of a Chrome trace."""
    work = sorted((one for one in events if one.get("cat") in KINDS), key=lambda one: float(one["ts"]))
    if not work:
        raise ValueError("nothing ran on a GPU: there is nothing to profile")
    rows: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    idle, end = 0.0, float(work[0]["ts"])
    for one in work:
        start, took = float(one["ts"]), float(one["dur"])
        grid = "x".join(str(side) for side in one["args"].get("grid", ()))
        rows[one["name"], grid].append((took, max(0.0, start + took - max(start, end))))
        idle += max(0.0, start - end)
        end = max(end, start + took)
    kernels: list[dict[str, Any]] = [
        {
            "name": name,
            "grid": grid,
            "a_step": len(times) / steps,
            "us": sum(took for took, _ in times) / len(times),
            "adds": sum(added for _, added in times) / len(times),
            "sum": sum(added for _, added in times) / steps,
        }
        for (name, grid), times in rows.items()
    ]
    kernels.sort(key=lambda one: -one["sum"])
    busy = sum(one["sum"] for one in kernels)
    return {"steps": steps, "us_a_step": busy + idle / steps, "busy": busy, "idle": idle / steps, "kernels": kernels}


class Profile:
    """What the GPU does between `start` and `summary`."""

    def __init__(self) -> None:
        self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])

    def start(self) -> None:
        torch.cuda.synchronize()
        self._profiler.start()

    def summary(self, steps: int) -> dict[str, Any]:
        torch.cuda.synchronize()
        self._profiler.stop()
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"
            self._profiler.export_chrome_trace(str(trace))
            return summary(json.loads(trace.read_text(encoding="utf-8"))["traceEvents"], steps)


def tokens(name: str, schedule: str, steps: int) -> dict[str, Any]:
    """The first steps of a plan, without its prompt's."""
    world = load(name, "random", device="cuda", dtype=torch.bfloat16)
    case, settings = Case(with_text(world), Order.of(schedule)), WorldSettings(steps=steps)

    def decode(on_step: Callable[[], None]) -> int:
        stream = decoding(case, settings)
        stream.windows = cut(stream.windows, steps)
        stream.on_call = on_step
        for _ in stream.token_frames():
            pass
        assert stream.calls is not None, f"{schedule}: steps are not known ahead"
        return min(steps, stream.calls - 1)  # a plan may have fewer

    for _ in range(2):
        decode(lambda: None)
    profile, done = Profile(), count()
    return {"schedule": str(case.order)} | profile.summary(decode(lambda: None if next(done) else profile.start()))


def video(name: str, schedule: str) -> dict[str, Any]:
    """All calls of a video, latents alone."""
    model = load_video_model(name, "random", device="cuda", dtype=torch.bfloat16)
    frames = model.variant.frames
    request = Request(prompt_embeds=prompt(model), num_frames=frames, schedule=schedule, decoder=NONE)

    def calls() -> int:
        return sum(piece.calls for piece in model.stream(request))

    for _ in range(2):
        calls()
    profile, rate = Profile(), tflops(model.device, torch.bfloat16)
    profile.start()
    return {"schedule": schedule, "tflops": rate} | profile.summary(calls())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--schedule", required=True)
    parser.add_argument("--steps", type=int, default=40, help="of a token model")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    kind = find("models", given.model)
    diffuses = isinstance(kind, DiffusionVariant)
    found = video(given.model, given.schedule) if diffuses else tokens(given.model, given.schedule, given.steps)
    result = {
        "kind": "profile",
        "command": "python " + " ".join(sys.argv),
        "model": given.model,
        "weights": "random",
        "dtype": "bfloat16",
        **found,
        **describe(torch.device("cuda")),
    }
    with atomic(given.out) as temporary:
        temporary.write_text(json.dumps(result, indent=1) + "\n")
    lines = [
        f"{one['sum']:9.1f} us  {one['a_step']:7.1f} x {one['adds']:8.2f} ({one['us']:8.2f})  "
        f"{one['name'][:70]} {one['grid']}"
        for one in found["kernels"]
    ]
    sys.stdout.write("\n".join(lines[:40]) + f"\nbusy {found['busy']:.1f} us a step, idle {found['idle']:.1f}\n")


if __name__ == "__main__":
    main()
