"""`diagonal distill`: a causal few-step student from a bidirectional teacher and prompts, or all stages of a recipe.

Under torchrun every process runs this command; the first one prints. A run is its folder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from diagonal.cli import Device, Json, Lpips, app, err, out, print_json, refuse
from diagonal.cli.train import Line, Tensorboard, follow

if TYPE_CHECKING:
    from diagonal.training.latents.methods import Distillation

METHOD = "Method"
GPUS = (1, 8)  # that --plan is made for
# What a recipe decides itself.
OWN = (
    *("model", "teacher", "init", "prompts", "max_prompts", "negative_prompt", "trajectories", "vae", "text_encoder"),
    *("method", "schedule", "context", "flow_weight", "guidance_scale", "critic_alone", "num_frames", "max_frames"),
    *("switch", "height", "width", "recompute", "lr", "critic_lr", "steps", "batch", "accumulate", "ema", "ema_from"),
    *("seed", "log_every", "save_every", "resume", "plan", "tflops"),
)


@app.command()
def distill(
    context_: typer.Context,
    model: Annotated[str, typer.Option(help="A diffusion model from `diagonal models`.")] = "wan/1.3b",
    teacher: Annotated[str | None, typer.Option(help="Its weights: file, folder, hub id; 'random' for none.")] = None,
    init: Annotated[str | None, typer.Option(help="The student's first weights. Default: the teacher's.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="One prompt a line, or a .csv with the column `prompt`.")] = None,
    out_path: Annotated[Path | None, typer.Option("--out", help="Folder of the run, and of the student.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="All stages of a recipe instead, in folders below --out: doom, doom:smoke.")
    ] = None,
    max_prompts: Annotated[int | None, typer.Option(min=1, help="Of the file, chosen by the seed.")] = None,
    negative_prompt: Annotated[str, typer.Option(help="What the teacher is guided away from.")] = "",
    trajectories: Annotated[
        Path | None, typer.Option(help="Folder of the teacher's videos, for terms that need them; made if missing.")
    ] = None,
    vae: Annotated[
        str | None, typer.Option(help="Written beside the student. Default: the teacher's; 'none': no VAE.")
    ] = None,
    text_encoder: Annotated[str | None, typer.Option(help="If it does not lie beside the teacher.")] = None,
    method: Annotated[
        str,
        typer.Option(
            help="diagonal-distillation (all of eq. 12), diagonal-distillation-prompts, self-forcing or causvid; with "
            "changes: self-forcing:schedule=2,flow=1.",
            rich_help_panel=METHOD,
        ),
    ] = "diagonal-distillation-prompts",
    schedule: Annotated[
        str | None, typer.Option(help="Steps, such as 4322222. Default: the method's.", rich_help_panel=METHOD)
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(help="Level of the cache: clean, 100 (before the shift) or t100.", rich_help_panel=METHOD),
    ] = None,
    flow_weight: Annotated[
        float | None, typer.Option(help="Gamma of eq. 12. Default: the method's.", rich_help_panel=METHOD)
    ] = None,
    guidance_scale: Annotated[float | None, typer.Option(help="Of the teacher.", rich_help_panel=METHOD)] = None,
    critic_alone: Annotated[
        int | None, typer.Option(min=0, help="Steps of the critic before the first others.", rich_help_panel=METHOD)
    ] = None,
    num_frames: Annotated[
        int | None, typer.Option(min=1, help="That are scored. Default: the model's.", rich_help_panel=METHOD)
    ] = None,
    max_frames: Annotated[
        int | None, typer.Option(min=1, help="Of a rollout, of which the end is scored.", rich_help_panel=METHOD)
    ] = None,
    switch: Annotated[
        float | None, typer.Option(help="How often the prompt changes in long rollouts.", rich_help_panel=METHOD)
    ] = None,
    height: Annotated[int | None, typer.Option(min=1, help="Default: the model's.", rich_help_panel=METHOD)] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Likewise.", rich_help_panel=METHOD)] = None,
    recompute: Annotated[
        bool, typer.Option(help="Compute activations again instead of keeping them.", rich_help_panel=METHOD)
    ] = True,
    lr: Annotated[float | None, typer.Option(help="Default: the method's.", rich_help_panel=METHOD)] = None,
    critic_lr: Annotated[float | None, typer.Option(help="Default: the method's.", rich_help_panel=METHOD)] = None,
    steps: Annotated[int, typer.Option(min=1, help="Of generator and critic together.")] = 720,
    batch: Annotated[int, typer.Option(min=1, help="Samples of a step, of all processes.")] = 64,
    accumulate: Annotated[
        int | None, typer.Option(min=1, help="Parts in which a process takes its samples. Default: one by one.")
    ] = None,
    ema: Annotated[float, typer.Option(help="Decay of the averaged student, which is the result.")] = 0.99,
    ema_from: Annotated[int | None, typer.Option(min=0, help="Step. Default: as the released code.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    log_every: Annotated[int, typer.Option(min=1)] = 10,
    save_every: Annotated[int, typer.Option(min=1)] = 100,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show memory and time for 1 and 8 GPUs; run nothing.")] = False,
    tflops: Annotated[
        float | None, typer.Option(min=1.0, help="Of --plan: what a GPU does in a second. Default: 300.")
    ] = None,
    lpips: Lpips = None,
    device: Device = "cpu",
    tensorboard: Tensorboard = False,
    as_json: Json = False,
) -> None:
    """Distil a teacher into a causal student of few steps."""
    options = context_.params
    if recipe is not None:
        refuse(context_, OWN, f"--recipe {recipe}")
        _recipe(recipe, options)
    elif plan:
        refuse(context_, ("lpips", "resume", "out_path", "prompts", "teacher", "init"), "--plan")
        _plan(_sized(options), as_json)
    else:
        refuse(context_, ("tflops",), "a run: it is for --plan")
        refuse(context_, ("lpips",), "a run without a recipe: it trains no pixels")
        _run(_sized(options))


def _needed(options: Mapping[str, Any], name: str) -> Any:
    if options[name] is None:
        written = {"out_path": "out"}.get(name, name).replace("_", "-")
        raise ValueError(f"--{written} is needed; `diagonal distill --help` says what it is")
    return options[name]


def _sized(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with sizes where none were given: those that the model was trained on."""
    from diagonal.training.latents.distillation import diffusion_variant

    variant = diffusion_variant(options["model"])
    usual = {"num_frames": variant.frames, "height": variant.size[0], "width": variant.size[1]}
    return {**options, **{name: options[name] or value for name, value in usual.items()}}


def _method(options: Mapping[str, Any]) -> Distillation:
    """The method with what the options change in it."""
    from diagonal.training.latents.distillation import in_latents
    from diagonal.training.latents.methods import find

    named = {"schedule": "schedule", "context": "context", "flow": "flow_weight", "guidance": "guidance_scale"}
    found = find(options["method"], {key: options[one] for key, one in named.items() if options[one] is not None})
    own = ("critic_alone", "lr", "critic_lr", "switch")
    changes = {name: options[name] for name in own if options[name] is not None}
    switch = changes.pop("switch", found.switch)
    found = replace(found, recompute=options["recompute"], **changes)
    found = in_latents(options["model"], found, options["num_frames"], options["max_frames"])
    return replace(found, switch=switch)  # which asks for the longer rollouts


def _run(options: Mapping[str, Any]) -> None:
    from diagonal.generation.devices import check_device
    from diagonal.planning.denoising import spec
    from diagonal.training.data.prompts import read
    from diagonal.training.latents import distillation
    from diagonal.training.parallel import processes
    from diagonal.training.stages import run as run_stages

    folder, first = _needed(options, "out_path"), os.environ.get("RANK", "0") == "0"
    found = read(_needed(options, "prompts"), options["max_prompts"], options["seed"])
    left_out = {"blank": found.blank, "repeated": found.repeated, "beyond --max-prompts": found.beyond}
    if first and any(left_out.values()):
        listed = ", ".join(f"{count} {why}" for why, count in left_out.items() if count)
        err.print(f"{len(found.texts)} prompts; left out: {listed}", markup=False)
    same = ("model", "init", "batch", "accumulate", "negative_prompt", "trajectories", "vae", "text_encoder")
    run = distillation.released(options["steps"], options["save_every"], options["log_every"])
    begin = run.ema_from if options["ema_from"] is None else options["ema_from"]
    config = distillation.DistillConfig(
        teacher=_needed(options, "teacher"),
        method=_method(options),
        prompts=found.texts,
        size=(options["height"], options["width"]),
        run=replace(run, seed=options["seed"], ema=options["ema"], ema_from=begin),
        **{name: options[name] for name in same},
    )
    start = time.perf_counter()
    with processes(check_device(options["device"])) as group:
        stages = distillation.stages(config, folder, group, options["resume"])
        if not first:
            for _ in run_stages(stages):
                pass
            return
        follow(stages, run_stages(stages), options["tensorboard"])
    shared = {name: options[name] for name in ("model", "method", "teacher", "batch")}
    shared |= {"schedule": spec(config.method.preset.schedule), "prompts": len(found.texts)}
    numbers = shared | {"seconds": time.perf_counter() - start} | stages[-1].result()
    if options["as_json"]:
        print_json(numbers)
    else:
        _print(numbers)


def _print(numbers: Line) -> None:
    table = Table("steps", "loss", *(name for name in TERMS if name in numbers), "seconds", box=None)
    values = [f"{numbers[name]:.4f}" for name in ("loss", *TERMS) if name in numbers]
    table.add_row(f"{numbers['steps']}", *values, f"{numbers['seconds']:.1f}")
    out.print(table)
    out.print(f"the student of {numbers['model']} ({numbers['schedule']}) is in {numbers['out']}", markup=False)


TERMS = ("dmd", "flow_dmd", "regression", "flow_regression", "critic")


def _plan(options: Mapping[str, Any], as_json: bool) -> None:
    from diagonal.training.budget import TFLOPS, predict, spread, state_bytes
    from diagonal.training.latents.distillation import at_once, diffusion_variant, latent_sides

    method, variant = _method(options), diffusion_variant(options["model"])
    rows, cols = latent_sides(options["model"], options["height"], options["width"])
    tokens = rows * cols // variant.config.patch**2
    tflops, batch = options["tflops"] or TFLOPS, options["batch"]
    found: dict[int, Line] = {}
    for gpus in GPUS:
        if batch % gpus:
            err.print(f"a batch of {batch} cannot be shared by {gpus} GPUs", markup=False)
            continue
        part = at_once(batch, gpus, options["accumulate"])
        one = predict(variant, method, tokens, part, tflops)
        whole = spread(one.steps, state_bytes(one.parameters), method.critic_steps, batch, gpus)
        turns = -(-options["steps"] // (method.critic_steps + 1))
        found[gpus] = one.numbers() | asdict(whole) | {"samples_at_once": part, "run_h": turns * whole.turn_s / 3600}
    shared = {"model": options["model"], "method": options["method"], "steps": options["steps"], "tflops": tflops}
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
        "a turn of the batch": ("turn_s", "{:.0f} s"),
        f"{shared['steps']} steps": ("run_h", "{:.1f} h"),
    }
    for name, (key, form) in rows.items():
        table.add_row(name, *(form.format(one[key]) for one in found.values()))
    out.print(table)
    out.print(f"[dim]predicted at {shared['tflops']:.0f} TFLOP/s, without talk between GPUs; nothing was run[/]")


def _recipe(name: str, options: Mapping[str, Any]) -> None:
    from diagonal.generation.devices import check_device
    from diagonal.recipes import distillation
    from diagonal.training.stages import MODEL, run

    folder: Path = _needed(options, "out_path")
    chain, start = distillation(name), time.perf_counter()
    stages = chain(folder, check_device(options["device"]), options["lpips"])
    follow(stages, run(stages), options["tensorboard"])
    trained = [stage.result() for stage in stages if stage.leaves == MODEL]
    numbers = {"recipe": name, "seconds": time.perf_counter() - start, "out": str(folder), "stages": trained}
    if options["as_json"]:
        print_json(numbers)
        return
    for one in trained:
        out.print(f"{one['stage']}: {one['steps']} steps, loss {one['loss']:.4f}, in {one['out']}", markup=False)
    out.print(f"recipe {name}, {numbers['seconds']:.1f} s", markup=False)
