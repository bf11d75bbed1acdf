"""What a training step costs at true size: batch, tokens/s, MFU, memory.

    python benchmarks/train_step.py --model mcar/700m --batch 4 8 --out benchmarks/results/NAME.json

Random tokens (speed does not depend on them), the project's own training task: float32 masters, bfloat16 autocast,
blocks compiled, AdamW as in recipes/mcar.py, gradients clipped. One step = forward, backward, clip, update.
MFU = useful FLOP per second over those of a large bfloat16 GEMM timed in the same run. Useful FLOP per
sequence = 6 x parameters x tokens, without the embedding table, plus 12 x layers x heads x head_dim x visible pairs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diagonal.catalog.names import find
from diagonal.media.files import atomic
from diagonal.planning.grid import Grid, Layout
from diagonal.planning.plan import Order, make_plan
from diagonal.training.data.recordings import TokenData
from diagonal.training.tokens.world import WorldTask

WARMUP, STEPS = 3, 8


def peak_flops(device: str, size: int = 8192) -> float:
    """FLOP per second of one bfloat16 GEMM."""
    size = size if device != "cpu" else 512
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    return 2 * size**3 / median_seconds(lambda: a @ a, device)


def median_seconds(call: Any, device: str) -> float:
    seconds = []
    for index in range(WARMUP + STEPS):
        synchronize(device)
        began = time.perf_counter()
        call()
        synchronize(device)
        if index >= WARMUP:
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def useful_flops(module: nn.Module, config: Any, order: str) -> tuple[int, int]:
    """FLOP of one sequence forward and backward, and its tokens."""
    layout = Layout(Grid(config.frames, config.rows, config.cols), len(config.prefix_ids), config.suffix)
    entries = make_plan(layout, order, known=1).entries
    parameters = sum(p.numel() for name, p in module.named_parameters() if not name.startswith("embed"))
    pairs = int(entries.visible().sum())
    tokens = len(entries)
    return 6 * parameters * tokens + 12 * config.layers * config.heads * config.head_dim * pairs, tokens


def run(model: str, order: str, batch: int, device: str, peak: float) -> dict[str, Any]:
    """One case."""
    config = find("models", model).config
    with torch.device(device):
        module = config.build()
    units = torch.randint(config.codebook, (2 * config.frames, config.rows * config.cols + config.suffix)).int()
    tokens = TokenData(units.to(device), torch.zeros(len(units), dtype=torch.long, device=device))
    task = WorldTask(module, tokens, tokens, [(Order.of(order), 1.0)], batch, seed=0, lr=3e-4, muon_lr=None)

    def step() -> None:
        loss, _ = task.loss(0)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        for optimizer in task.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    step()
    synchronize(device)
    first = time.perf_counter() - began
    seconds = median_seconds(step, device)
    flops, length = useful_flops(module, config, order)
    return {
        "model": model,
        "parameters": sum(p.numel() for p in module.parameters()),
        "schedule": order,
        "batch": batch,
        "tokens_per_sequence": length,
        "ms_per_step": 1e3 * seconds,
        "tokens_per_second": batch * length / seconds,
        "mfu": batch * flops / seconds / peak,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9 if device != "cpu" else None,
        "first_step_seconds": first,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mcar/700m")
    parser.add_argument("--schedule", nargs="+", default=["raster", "diagonal:k=2"])
    parser.add_argument("--batch", nargs="+", type=int, default=[4])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    peak = peak_flops(given.device)
    result: dict[str, Any] = {
        "command": "python " + " ".join(sys.argv),
        "device": torch.cuda.get_device_name() if given.device != "cpu" else "cpu",
        "torch": torch.__version__,
        "weights": "random",
        "peak_tflops": peak / 1e12,
        "cases": [],
    }
    for schedule in given.schedule:
        for batch in given.batch:
            torch._dynamo.reset()
            result["cases"].append(run(given.model, schedule, batch, given.device, peak))
            sys.stderr.write(json.dumps(result["cases"][-1]) + "\n")
            with atomic(given.out) as temporary:
                temporary.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
