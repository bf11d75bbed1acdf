"""`diagonal distill`: a causal few-step student from a bidirectional teacher and prompts, or all stages of a recipe.

Under torchrun every process runs this command; the first one prints. A run is its folder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

import typer
from rich.table import Table

from diagonal.cli import app, err, out, print_json
from diagonal.cli.distill_options import Method, Models, Options, Texts, Training, Videos
from diagonal.cli.options import Device, Json, Lpips, chosen, flat, given, refuse
from diagonal.cli.train import Line, Tensorboard, follow

if TYPE_CHECKING:
    from diagonal.training.latents.distillation import DistillConfig

T = TypeVar("T")

GPUS = (1, 8)  # that --plan is made for
TERMS = ("dmd", "flow_dmd", "regression", "flow_regression", "critic")


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What a run would take."""

    panel: ClassVar[str] = "Plan"

    plan: Annotated[bool, typer.Option("--plan", help="Show memory and time for 1 and 8 GPUs; run nothing.")] = False
    tflops: Annotated[
        float | None, typer.Option(min=1.0, help="Of --plan: what a GPU does in a second. Default: 300.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where it is trained and written; these go with a recipe too."""

    panel: ClassVar[str] = "Run"

    out_path: Annotated[Path | None, typer.Option("--out", help="Folder of the run, and of the student.")] = None
    recipe: Annotated[
        str | None, typer.Option(help="All stages of a recipe instead, in folders below --out: doom, doom:smoke.")
    ] = None
    lpips: Lpips = None
    device: Device = "cpu"
    tensorboard: Tensorboard = False
    as_json: Json = False


@app.command()
@flat
def distill(
    models: Models,
    texts: Texts,
    method: Method,
    videos: Videos,
    training: Training,
    predicted: Predicted,
    output: Output,
) -> None:
    """Distil a teacher into a causal student of few steps."""
    options = Options(models, texts, method, videos, training)
    own = given(models, texts, method, videos, training, predicted)
    if output.recipe is not None:
        refuse(own, f"--recipe {output.recipe}")
        _recipe(output.recipe, output)
        return
    every = own | given(output)
    if predicted.plan:
        idle = ("lpips", "resume", "out_path", "prompts", "teacher", "init")
        refuse({name: one for name, one in every.items() if name in idle}, "--plan")
        _plan(options, predicted.tflops, output.as_json)
        return
    for name, why in (("tflops", "a run: it is for --plan"), ("lpips", "a run without a recipe: it trains no pixels")):
        refuse({name: every[name]} if name in every else {}, why)
    _run(options, output)


def _needed(value: T | None, option: str) -> T:
    if value is None:
        raise ValueError(f"{option} is needed; `diagonal distill --help` says what it is")
    return value


def _config(options: Options, prompts: Sequence[str]) -> DistillConfig:
    """The options in the library's words."""
    from diagonal.training.latents.distillation import DistillConfig, released

    models, texts, training = options.models, options.texts, options.training
    run = released(training.steps, **chosen(training, "save_every", "log_every"))
    return DistillConfig(
        model=models.model,
        teacher=_needed(models.teacher, "--teacher"),
        method=options.distillation(),
        prompts=prompts,
        size=options.size,
        run=replace(run, seed=training.seed, **chosen(training, "ema", "ema_from")),
        batch=training.batch,
        **chosen(training, "accumulate") | chosen(models, "init", "vae", "text_encoder"),
        **chosen(texts, "negative_prompt", "trajectories"),
    )


def _run(options: Options, output: Output) -> None:
    from diagonal.generation.devices import check_device
    from diagonal.planning.denoising import spec
    from diagonal.training.data.prompts import read
    from diagonal.training.latents import distillation
    from diagonal.training.parallel import processes
    from diagonal.training.stages import run as run_stages

    folder, first = _needed(output.out_path, "--out"), os.environ.get("RANK", "0") == "0"
    texts, training = options.texts, options.training
    found = read(_needed(texts.prompts, "--prompts"), texts.max_prompts, training.seed)
    left_out = {"blank": found.blank, "repeated": found.repeated, "beyond --max-prompts": found.beyond}
    if first and any(left_out.values()):
        listed = ", ".join(f"{count} {why}" for why, count in left_out.items() if count)
        err.print(f"{len(found.texts)} prompts; left out: {listed}", markup=False)
    config, start = _config(options, found.texts), time.perf_counter()
    with processes(check_device(output.device)) as group:
        stages = distillation.stages(config, folder, group, training.resume)
        if not first:
            for _ in run_stages(stages):
                pass
            return
        follow(stages, run_stages(stages), output.tensorboard)
    shared: Line = {"model": config.model, "method": options.method.method, "teacher": str(config.teacher)}
    shared |= {"batch": config.batch, "schedule": spec(config.method.preset.schedule), "prompts": len(found.texts)}
    result = shared | {"seconds": time.perf_counter() - start} | stages[-1].result()
    if output.as_json:
        print_json(result)
    else:
        _print(result)


def _print(result: Line) -> None:
    table = Table("steps", "loss", *(name for name in TERMS if name in result), "seconds", box=None)
    values = [f"{result[name]:.4f}" for name in ("loss", *TERMS) if name in result]
    table.add_row(f"{result['steps']}", *values, f"{result['seconds']:.1f}")
    out.print(table)
    out.print(f"the student of {result['model']} ({result['schedule']}) is in {result['out']}", markup=False)


def _plan(options: Options, tflops: float | None, as_json: bool) -> None:
    from diagonal.training.batch import at_once
    from diagonal.training.budget import TFLOPS, predict, spread, state_bytes
    from diagonal.training.latents.distillation import latent_sides

    method, variant, training = options.distillation(), options.variant, options.training
    model, batch, rate = options.models.model, training.batch, tflops or TFLOPS
    rows, cols = latent_sides(model, *options.size)
    tokens = rows * cols // variant.config.patch**2
    found: dict[int, Line] = {}
    for gpus in GPUS:
        if batch % gpus:
            err.print(f"a batch of {batch} cannot be shared by {gpus} GPUs", markup=False)
            continue
        part = at_once(batch, gpus, training.accumulate)
        one = predict(variant, method, tokens, part, rate)
        whole = spread(one.steps, state_bytes(one.parameters), method.critic_steps, batch, gpus)
        cycles = -(-training.steps // (method.critic_steps + 1))
        found[gpus] = one.numbers() | asdict(whole) | {"samples_at_once": part, "run_h": cycles * whole.turn_s / 3600}
    shared: Line = {"model": model, "method": options.method.method, "steps": training.steps, "tflops": rate}
    if as_json:
        print_json(shared | {"plans": list(found.values())})
    else:
        _print_plan(shared, found)


def _print_plan(shared: Line, found: Mapping[int, Line]) -> None:
    first = next(iter(found.values()))
    words = f"{first['parameters'] / 1e9:.3f} B parameters each, videos of {first['tokens']:,} tokens"
    out.print(f"{shared['model']}, {shared['method']}: generator, critic and teacher of {words}", markup=False)
    out.print(
        f"operations of a sample: {first['generator_tflop']:.0f} TFLOP in a generator step, "
        f"{first['critic_tflop']:.0f} in a critic step"
    )
    table = Table("each GPU of", *(f"{gpus}" for gpus in found), box=None)
    rows = {
        "samples at a time": ("samples_at_once", "{:d}"),
        "weights, moments, gradient, averages": ("state_gb", "{:.1f} GB"),
        "activations": ("activations_gb", "{:.1f} GB"),
        "cache, and what gradients need of it": ("cache_gb", "{:.1f} GB"),
        "together": ("peak_gb", "{:.1f} GB"),
        "a generator step with its critic steps": ("turn_s", "{:.0f} s"),
        f"{shared['steps']} steps": ("run_h", "{:.1f} h"),
    }
    for name, (key, form) in rows.items():
        table.add_row(name, *(form.format(one[key]) for one in found.values()))
    out.print(table)
    out.print(f"[dim]predicted at {shared['tflops']:.0f} TFLOP/s, without talk between GPUs; nothing was run[/]")


def _recipe(name: str, output: Output) -> None:
    from diagonal.generation.devices import check_device
    from diagonal.recipes import distillation
    from diagonal.training.stages import MODEL, run

    folder = _needed(output.out_path, "--out")
    chain, start = distillation(name), time.perf_counter()
    stages = chain(folder, check_device(output.device), output.lpips)
    follow(stages, run(stages), output.tensorboard)
    trained = [stage.result() for stage in stages if stage.leaves == MODEL]
    result = {"recipe": name, "seconds": time.perf_counter() - start, "out": str(folder), "stages": trained}
    if output.as_json:
        print_json(result)
        return
    for one in trained:
        out.print(f"{one['stage']}: {one['steps']} steps, loss {one['loss']:.4f}, in {one['out']}", markup=False)
    out.print(f"recipe {name}, {result['seconds']:.1f} s", markup=False)
