"""Distillation from weights and prompts to a student's file, by one process or by all that torchrun started.

    config = DistillConfig("wan/1.3b", "Wan-AI/Wan2.1-T2V-1.3B", method, prompts, (480, 832), released(720), batch=64)
    with processes(torch.device("cuda")) as group:
        for name, line in run(stages(config, Path("student"), group)): ...

The folder is the run: settings, curve, checkpoint, and at the end the EMA of the student beside its VAE, as `diagonal
video --weights FOLDER` reads them. With `resume` it goes on from its checkpoint, by any number of processes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from diagonal import checkpoints
from diagonal.catalog.names import find
from diagonal.catalog.variants import DiffusionVariant
from diagonal.generation.components import NONE, Components, Weights, published, untrained
from diagonal.generation.request import latent_frames, latent_size
from diagonal.planning.denoising import spec
from diagonal.text.encoders import embed, prepare
from diagonal.training.batch import at_once
from diagonal.training.data.latents import Solving, Source, Trajectories, record, shards
from diagonal.training.data.prompts import FilePrompts
from diagonal.training.latents.diffusion import preset_sigmas
from diagonal.training.latents.distill import DistillTask
from diagonal.training.latents.methods import DIFFUSION, Distillation
from diagonal.training.loop import RunConfig, begun, fit
from diagonal.training.parallel import Group, gathered, shard
from diagonal.training.stages import MODEL, Line, Stage

PROMPTS, TRAJECTORIES, DISTILL = "prompts", "trajectories", "distill"  # stages
# The released code counts critic steps, and its EMA begins at 200; here five of them and the generator's count six.
EMA_FROM = 240


def released(steps: int, save_every: int = 100, log_every: int = 10) -> RunConfig:
    """A run with the values of the released code: constant rates, gradient norms of at most 10, an EMA of 0.99."""
    return RunConfig(
        steps,
        warmup=0,
        decay_from=1.0,
        clip=10.0,
        ema=0.99,
        ema_from=EMA_FROM,
        log_every=log_every,
        evaluate_every=max(steps, 1),
        save_every=save_every,
    )


@dataclass(frozen=True, slots=True)
class DistillConfig:
    """What is distilled into what. Weights are files, folders, hub ids, or 'random'."""

    model: str  # a name in `models`
    teacher: str | Path
    method: Distillation
    prompts: Sequence[str]
    size: tuple[int, int]  # height and width of frames
    run: RunConfig
    batch: int  # samples of a step, of all processes
    accumulate: int | None = None  # micro-batches of each process; None: one sample each
    init: str | Path | None = None  # the student's first weights; None: the teacher's
    negative_prompt: str = ""
    trajectories: Path | None = None  # of the teacher, for terms that compare with its videos; recorded if missing
    vae: str | Path | None = None  # shipped with the student; None: the one beside the teacher, 'none': no VAE
    text_encoder: str | Path | None = None

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ValueError("no prompts given; distillation needs at least one")
        if self.trajectories is None and (self.method.needs_videos or self.method.forcing == DIFFUSION):
            raise ValueError(
                "this method learns from videos of the teacher; name a folder for them (--trajectories), which is "
                "filled if it is empty"
            )

    def settings(self) -> Line:
        """What the student depends on: a folder goes on with the same only."""
        method = asdict(self.method) | {"schedule": spec(self.method.preset.schedule)}
        del method["recompute"], method["preset"]["schedule"]  # changes memory and time alone; stands there as text
        text = json.dumps([*self.prompts, self.negative_prompt])
        kept = {name: str(getattr(self, name)) for name in ("model", "teacher", "init", "trajectories")}
        run = {name: getattr(self.run, name) for name in ("seed", "clip", "ema", "ema_from")}
        digest = hashlib.sha256(text.encode()).hexdigest()
        return kept | run | {"batch": self.batch, "size": self.size, "prompts": digest} | method


def diffusion_variant(name: str) -> DiffusionVariant:
    """A model that denoises latents, where nothing else will do."""
    found = find("models", name)
    if not isinstance(found, DiffusionVariant):
        raise ValueError(f"{name} is a model of tokens; distillation needs one that denoises, such as wan/tiny")
    if found.pipelined:
        raise ValueError(f"{name} denoises chunks together and is not trained here; take wan/tiny or doom-t2v")
    return found


def in_latents(name: str, method: Distillation, num_frames: int, max_frames: int | None = None) -> Distillation:
    """The method for videos of so many frames that are scored, of rollouts of at most `max_frames`."""
    codec = find("tokenizers", diffusion_variant(name).vae)
    scored, longest = (latent_frames(one, method.preset, codec) for one in (num_frames, max_frames or num_frames))
    return replace(method, scored=scored, longest=longest)


def latent_sides(name: str, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of a video's latents."""
    variant = diffusion_variant(name)
    return latent_size(height, width, find("tokenizers", variant.vae).patch, variant.config.patch)


@dataclass(frozen=True)
class _Models:
    """The models of all stages, loaded when they are first asked for."""

    config: DistillConfig
    group: Group

    @cached_property
    def variant(self) -> DiffusionVariant:
        return diffusion_variant(self.config.model)

    @cached_property
    def teacher(self) -> Components:
        """The teacher's parts."""
        return self._load(self.config.teacher, self.config.vae)

    @cached_property
    def trained(self) -> tuple[Any, Any]:
        """Student and critic."""
        student, critic = (
            self._load(one, NONE).transformer for one in (self.config.init or self.config.teacher, self.config.teacher)
        )
        return student, critic

    def _load(self, source: str | Path, vae: str | Path | None) -> Components:
        """A model's parts; random weights are those of `diagonal.load`."""
        place = Weights(source, vae=vae, text_encoder=self.config.text_encoder)
        if not place.random:
            return published(self.config.model, self.variant, place)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return untrained(self.variant, place, self.group.device, torch.float32)

    @property
    def prompts(self) -> FilePrompts:
        return FilePrompts(self.config.prompts, self.teacher.encoder, self.group.device)

    @property
    def negative_1LC(self) -> torch.Tensor:  # noqa: N802
        return embed([self.config.negative_prompt], self.teacher.encoder, device=self.group.device)

    def teach(self) -> Any:
        """The teacher's transformer on the device, as it is called."""
        smaller = torch.bfloat16 if self.group.device.type == "cuda" else torch.float32
        return self.teacher.transformer.to(self.group.device, smaller)


def stages(config: DistillConfig, folder: Path, group: Group, resume: bool = False) -> list[Stage]:
    """The stages that end with the student's file in a folder: prompts, trajectories where they are asked for, and the
    distillation itself. A folder that was begun before is gone on with only where `resume` says so."""
    if begun(folder) and not resume:
        raise ValueError(f"{folder} was begun before; --resume (resume=True) goes on with it, or choose another folder")
    latent_sides(config.model, *config.size)
    models = _Models(config, group)
    made = [_prompt_stage(models, folder)]
    if config.trajectories is not None:
        made.append(_trajectory_stage(models, config.trajectories))
    return [*made, _distill_stage(models, folder)]


def _prompt_stage(models: _Models, folder: Path) -> Stage:
    """Embed all prompts, which stay on the disk: each process has its own to do."""
    config, world = models.config, dist.get_world_size()
    every = [config.negative_prompt, *config.prompts]

    def lines(_: Any) -> Iterator[Line]:
        for done in prepare(every[dist.get_rank() :: world], models.teacher.encoder, device=models.group.device):
            yield {"step": min(done * world, len(every))}
        dist.barrier()

    # All weights come first: those that do not fit are known before the long work.
    return Stage(PROMPTS, len(every), folder / PROMPTS, lines, inputs=lambda: (models.teacher, models.trained))


def _trajectory_stage(models: _Models, folder: Path) -> Stage:
    """Have the teacher's videos of all prompts; one process makes those that are missing."""
    config = models.config

    def lines(_: None) -> Iterator[Line]:
        if dist.get_world_size() > 1:
            there = sum(count for _, count in shards(folder)) if folder.is_dir() else 0
            if there != len(config.prompts):
                raise ValueError(
                    f"{folder} holds {there} trajectories of {len(config.prompts)} prompts; they are recorded by one "
                    "process: start without torchrun first"
                )
            return
        method = config.method
        shape = (method.scored, models.variant.config.channels, *latent_sides(config.model, *config.size))
        solving = Solving(shape, preset_sigmas((method.preset,), method.scored), seed=config.run.seed)
        for done in record(models.teach(), models.prompts, models.negative_1LC, solving, folder):
            yield {"step": done}

    return Stage(TRAJECTORIES, len(config.prompts), folder, lines)


def _distill_stage(models: _Models, folder: Path) -> Stage:
    """Distil, and write the student beside its VAE. More steps may be asked for than before: the loop knows."""
    config, group = models.config, models.group
    own = group.batch_shard(at_once(config.batch, dist.get_world_size(), config.accumulate))

    def task() -> DistillTask:
        prompts, negative, teacher = models.prompts, models.negative_1LC, models.teach()
        source: Source = prompts
        if config.trajectories is not None:
            source = Trajectories(config.trajectories, group.device)
        for model in models.trained:
            model.to(group.device, torch.float32)
        if dist.get_world_size() > 1:
            for model in (*models.trained, teacher):
                shard(model, group.mesh)
        return DistillTask(
            *models.trained,
            teacher,
            source,
            negative,
            config.method,
            latent_sides(config.model, *config.size),
            config.batch,
            config.run.seed,
            shard=own,
        )

    def lines(made: DistillTask) -> Iterator[Line]:
        yield from fit(made, config.run, folder, group)
        _export(config.model, models.variant, made.generator, models.teacher.vae, folder, group)

    return Stage(DISTILL, config.run.steps, folder, lines, inputs=task, settings=config.settings())


def _export(name: str, variant: DiffusionVariant, student: Any, vae: Any, folder: Path, group: Group) -> None:
    """The student's weights, whole, beside its VAE."""
    whole = gathered(student)  # of all processes together
    if group.writes:
        with torch.device("meta"):
            module = variant.config.build()
        module.load_state_dict(whole, assign=True)
        modules = {"transformer": module} | ({} if vae is None else {"tokenizer": vae})
        checkpoints.save(modules, folder / MODEL, {"model": name})
    dist.barrier()
