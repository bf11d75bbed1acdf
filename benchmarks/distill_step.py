"""What one turn of distillation costs at true size: seconds and memory of a generator step and of a critic step.

    python benchmarks/distill_step.py --model wan/1.3b --out benchmarks/results/NAME.json

Random weights and prompts, one sample, 81 frames of 832x480: teacher, critic and student on one GPU, float32 masters
with AdamW, bfloat16 autocast, activations computed again. A step is loss, backward, clip and update. A batch of n takes
n times the loss and backward of one; `plan` has what each of 8 GPUs would hold and take for a batch of 64.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diagonal.catalog.names import find
from diagonal.media.files import atomic
from diagonal.training.budget import StepCost, spread, state_bytes
from diagonal.training.data.latents import EmbeddedPrompts
from diagonal.training.latents.distill import DistillTask
from diagonal.training.latents.methods import METHODS

BATCH, GPUS = 64, 8


def build(config: Any, device: str, dtype: torch.dtype) -> Any:
    with torch.device(device):
        return config.build().to(dtype)


def timed(task: DistillTask, step: int, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """One step: seconds of the sample and of the update, and the most memory that was taken."""
    cuda = task.negative_1LC.is_cuda
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    marks = [time.perf_counter()]
    loss, _ = task.loss(step)
    loss.backward()
    value = float(loss.detach())  # waits for the device
    marks.append(time.perf_counter())
    nn.utils.clip_grad_norm_(task.module.parameters(), 10.0)
    optimizer.step()
    task.module.zero_grad(set_to_none=True)
    if cuda:
        torch.cuda.synchronize()
    marks.append(time.perf_counter())
    peak = torch.cuda.max_memory_allocated() / 1e9 if cuda else 0.0
    return {"loss": value, "sample_s": marks[1] - marks[0], "update_s": marks[2] - marks[1], "peak_gb": peak}


def plan(median: dict[str, dict[str, float]], parameters: int, critic_steps: int) -> dict[str, float]:
    """What each of several GPUs would hold and take, from one. There is no EMA here; the teacher is float32."""
    steps = {name: StepCost(one["sample_s"], one["update_s"], one["peak_gb"]) for name, one in median.items()}
    return asdict(spread(steps, state_bytes(parameters, ema=0, teacher=4), critic_steps, BATCH, GPUS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="wan/1.3b")
    parser.add_argument("--method", default="diagonal-distillation-prompts")
    parser.add_argument("--size", type=int, nargs=2, default=[60, 104], help="height and width of latents")
    parser.add_argument("--repeats", type=int, default=3, help="turns after the first, which warms up")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    config = find("models", given.model).config
    method = replace(METHODS[given.method], recompute=True)
    models = [build(config, given.device, torch.float32) for _ in range(3)]
    text = torch.randn(2, config.text_length, config.text_dim, device=given.device)
    task = DistillTask(
        models[0], models[1], models[2], EmbeddedPrompts(text), text[:1] * 0, method, tuple(given.size), batch=1, seed=0
    )
    turns = method.critic_steps + 1
    cases: dict[str, list[dict[str, float]]] = {"generator": [], "critic": []}
    for turn in range(1 + given.repeats):
        for step, (name, optimizer) in enumerate(zip(cases, task.optimizers, strict=True)):
            cases[name].append(timed(task, turn * turns + step, optimizer))
            sys.stderr.write(f"{name} {json.dumps(cases[name][-1])}\n")
    median = {
        name: {key: statistics.median(one[key] for one in found[1:]) for key in found[0]}
        for name, found in cases.items()
    }
    parameters = sum(parameter.numel() for parameter in models[0].parameters())
    result = {
        "command": "python " + " ".join(sys.argv),
        "device": torch.cuda.get_device_name() if given.device != "cpu" else "cpu",
        "torch": torch.__version__,
        "weights": "random",
        "parameters": parameters,
        "median": median,
        "plan": plan(median, parameters, method.critic_steps),
        "cases": cases,
    }
    with atomic(given.out) as temporary:
        temporary.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
