"""The stages of a text-to-video recipe, each a folder that the next one reads:

    data -> codec -> latents -> teacher -> trajectories -> ode -> distill-<method>, for each method -> world

All methods have one start, `ode`, so that what they make of it can be compared.
Those that train leave curve.jsonl, model.safetensors, samples.png and gate.json: the number that says whether to go on,
and its bounds. A number outside of them stops the chain, with everything that was made kept.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from diagonal import checkpoints
from diagonal.catalog.names import find
from diagonal.evaluation.distilled import StudentPipeline, TeacherPipeline
from diagonal.networks import lpips
from diagonal.training.data import captioned
from diagonal.training.data.latents import Solving, record
from diagonal.training.data.record import recording
from diagonal.training.data.recordings import PARTS, frames, join
from diagonal.training.latents.codec import CodecTask
from diagonal.training.latents.diffusion import levels_met, preset_sigmas
from diagonal.training.latents.distill import DistillTask
from diagonal.training.latents.methods import DIFFUSION
from diagonal.training.latents.pretraining import OdeTask, TeacherTask
from diagonal.training.latents.work import CODEC, ODE, TEACHER, WORLD, Work
from diagonal.training.recipe import Chain, VideoRecipe
from diagonal.training.stages import MODEL, Line, Stage, build, settings
from diagonal.worlds import vizdoom
from diagonal.worlds.recordings import Part


def recording_stages(work: Work, workers: int = 1) -> list[Stage]:
    """Record all scenarios with captions, for training and held out."""
    recipe, made = work.recipe, []
    for part, count, seed in zip(
        PARTS, (recipe.frames, recipe.held_out_frames), (recipe.seed, recipe.held_out_seed), strict=True
    ):
        planned: list[vizdoom.Shard] = []
        for scenario in recipe.scenarios:
            folder = work.folder / "data" / part / scenario
            planned += vizdoom.shards(scenario, count, seed, folder, recipe.episode_frames, captions=True)
        made.append(recording(part, work.folder / "data" / part, planned, workers))
    return made


def _frames(work: Work, part: str) -> Part:
    """Frames of all scenarios."""
    most, data = work.recipe.codec.frames, work.folder / "data" / part
    return join([frames(data / scenario, work.variant.size, work.device, most) for scenario in work.recipe.scenarios])


def codec_stage(work: Work, lpips_file: Path | None = None) -> Stage:
    """Train the codec; LPIPS joins the loss where its weights are given."""
    how = work.recipe.codec

    def task() -> CodecTask:
        return CodecTask(
            module=build(find("tokenizers", how.variant), how.run.seed, work.device),
            data=_frames(work, "train"),
            held_out=_frames(work, "held-out"),
            frames=how.clip,
            batch=how.batch,
            lr=how.lr,
            seed=how.run.seed,
            kl_scale=how.kl_scale,
            muon_lr=how.muon_lr,
            lpips_weights=None if lpips_file is None else lpips.load(lpips_file, work.device),
            lpips_scale=how.lpips_scale,
        )

    def keep(made: CodecTask) -> None:
        made.settle(work.recipe.clip)
        work.keep(CODEC, {"tokenizer": made.module})

    return work.training(CODEC, how, task, keep)


def encoding_stages(work: Work) -> list[Stage]:
    """All clips through the codec, with their facts."""
    recipe = work.recipe

    def inputs() -> tuple[Any, captioned.ClipSpec]:
        digest = hashlib.sha256((work.folder / CODEC / MODEL).read_bytes()).hexdigest()
        return work.load_codec(), captioned.ClipSpec(recipe.clip, recipe.hop, digest)

    def lines(given: tuple[Any, captioned.ClipSpec], part: str, frames_each: int) -> Iterator[Line]:
        for number, scenario in enumerate(recipe.scenarios):
            source, target = (work.folder / kind / part / scenario for kind in ("data", "latents"))
            for done in captioned.encode(source, *given, target.with_name(f"{scenario}.safetensors")):
                yield {"step": number * frames_each + done}

    return [
        Stage(
            f"encode {part}",
            len(recipe.scenarios) * count,
            work.folder / "latents" / part,
            partial(lines, part=part, frames_each=count),
            inputs,
        )
        for part, count in zip(PARTS, (recipe.frames, recipe.held_out_frames), strict=True)
    ]


def teacher_stage(work: Work) -> Stage:
    """Flow matching on the clips, with prompts that are dropped now and then."""
    how = work.recipe.teacher

    def task() -> TeacherTask:
        return TeacherTask(
            module=build(work.variant.config, how.run.seed, work.device),
            data=work.clips("train"),
            held_out=work.clips("held-out"),
            negative_1LC=work.negative,
            batch=how.batch,
            seed=how.run.seed,
            lr=how.lr,
            muon_lr=how.muon_lr,
            shift=how.shift,
            dropout=how.dropout,
        )

    def keep(made: TeacherTask) -> None:
        steps, chunk = solving(work), work.presets[0].chunk_frames or work.shape[0]
        model, codec = made.module.eval(), work.load_codec()
        work.show(TEACHER, TeacherPipeline(model, codec, steps.sigmas(), steps.guidance_scale, work.negative, chunk))
        work.keep(TEACHER, {"transformer": model})

    return work.training(TEACHER, how, task, keep)


def solving(work: Work) -> Solving:
    """How the teacher's videos are made: with states wherever any of the methods meets them."""
    how = work.recipe.trajectories
    return Solving(
        work.shape,
        preset_sigmas(work.presets, work.shape[0]),
        how.steps,
        how.shift,
        how.guidance_scale,
        how.batch,
        work.recipe.seed,
    )


def trajectory_stages(work: Work) -> list[Stage]:
    """Videos of the teacher, of captions that clips have."""
    how, solved = work.recipe.trajectories, solving(work)

    def inputs() -> Any:
        return work.load(TEACHER, work.recipe.model).to(work.dtype)

    def lines(teacher: Any, part: str, count: int) -> Iterator[Line]:
        prompts = work.clips(part).prompts(count, work.recipe.seed)
        for done in record(teacher, prompts, work.negative, solved, work.folder / "trajectories" / part):
            yield {"step": done}

    return [
        Stage(
            f"trajectories {part}",
            count,
            work.folder / "trajectories" / part,
            partial(lines, part=part, count=count),
            inputs,
        )
        for part, count in zip(PARTS, (how.count, how.held_out), strict=True)
    ]


def ode_stage(work: Work) -> Stage:
    """The start of all students: the teacher's weights, and jumps along its trajectories under the block-causal mask,
    from the levels of every method. The first one's preset says what a chunk sees."""
    how, presets = work.recipe.ode, work.presets
    chunk = presets[0].chunk_frames or work.shape[0]
    met = {
        "levels": [[level for level, _ in levels_met(presets, one)] for one in range(work.shape[0] // chunk)],
        "sees": [chunk, presets[0].window_frames, presets[0].sink_frames],
    }

    def task() -> OdeTask:
        module = work.load(TEACHER, work.recipe.model)
        train, held_out = (work.trajectories(part) for part in PARTS)
        return OdeTask(module, train, held_out, presets, batch=how.batch, seed=how.run.seed, lr=how.lr)

    def keep(made: OdeTask) -> None:
        model = made.module.eval()
        work.show(ODE, StudentPipeline(model, work.load_codec(), presets[0]))
        work.keep(ODE, {"transformer": model})

    stage = work.training(ODE, how, task, keep)
    return replace(stage, settings=settings(how) | met)


def distill_name(spec: str) -> str:
    """The stage, and its folder, of the students of a method: its spec, with signs that folders cannot have as
    dashes."""
    return "distill-" + re.sub(r"[^\w.-]", "-", spec)


def distill_stage(work: Work, spec: str) -> Stage:
    """Distillation by one of the methods, from the start that all have."""
    how, stage, method = work.recipe.distill, distill_name(spec), work.method(spec)

    def task() -> DistillTask:
        generator = work.load(ODE, work.recipe.model)
        critic, teacher = (work.load(TEACHER, work.recipe.model) for _ in range(2))
        trajectories, held_out = (work.trajectories(part) for part in PARTS)
        return DistillTask(
            generator=generator,
            critic=critic,
            teacher=teacher,
            source=work.clips("train") if method.forcing == DIFFUSION else trajectories,
            negative_1LC=work.negative,
            method=method,
            size=(work.shape[2], work.shape[3]),
            batch=how.batch,
            seed=how.run.seed,
            held_out=held_out,
        )

    def keep(made: DistillTask) -> None:
        model = made.generator.eval()
        work.show(stage, StudentPipeline(model, work.load_codec(), method.preset))
        work.keep(stage, {"transformer": model})

    return work.training(stage, how, task, keep)


def export(work: Work, spec: str, folder: Path) -> Path:
    """A student and its codec as one checkpoint that `load` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"transformer": (distill_name(spec), work.recipe.model), "tokenizer": (CODEC, work.recipe.codec.variant)}
    modules = {name: work.load(*part) for name, part in parts.items()}
    checkpoints.save(modules, folder / MODEL, {"model": work.recipe.model, "method": spec})
    return folder


def export_stage(work: Work) -> Stage:
    """The student of the first method, exported to be loaded."""

    def lines(_: None) -> Iterator[Line]:
        export(work, work.recipe.methods[0], work.folder / WORLD)
        yield {"step": 1}

    return Stage(WORLD, 1, work.folder / WORLD, lines)


def stages(work: Work, lpips_file: Path | None = None, workers: int = 1) -> list[Stage]:
    """All stages of a recipe in their order; methods that cannot be are refused here, before the long work."""
    return [
        *recording_stages(work, workers),
        codec_stage(work, lpips_file),
        *encoding_stages(work),
        teacher_stage(work),
        *trajectory_stages(work),
        ode_stage(work),
        *(distill_stage(work, spec) for spec in work.recipe.methods),
        export_stage(work),
    ]


def chain(recipe: VideoRecipe) -> Chain:
    """The stages of a recipe wherever they are to run; recording has all cores of the computer."""

    def made(folder: Path, device: torch.device, lpips_file: Path | None) -> list[Stage]:
        return stages(Work(recipe, folder, device), lpips_file, os.cpu_count() or 1)

    return made
