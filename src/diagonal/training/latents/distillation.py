"""Distillation from weights and prompts to a student's file, by one process or by all that torchrun started.

    job = Job("wan/1.3b", "Wan-AI/Wan2.1-T2V-1.3B", method, prompts, (480, 832), released(720), batch=64)
    for stage, line in distil(job, Path("student"), torch.device("cuda")): ...

The folder is the run: settings, curve, checkpoint, and at the end the averaged student beside its VAE, as `diagonal
generate --weights FOLDER` reads them. Started again, it goes on from its checkpoint, by any number of processes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from diagonal import checkpoints
from diagonal.catalog.names import find
from diagonal.catalog.variants import DiffusionVariant
from diagonal.generation.components import NONE, Parts, Weights, published, untrained
from diagonal.generation.request import latent_frames, latent_size
from diagonal.planning.denoising import spec
from diagonal.text.encoders import embed, prepare
from diagonal.training.data.latents import Solving, Source, Trajectories, record, shards
from diagonal.training.data.prompts import Written
from diagonal.training.latents.diffusion import preset_shares
from diagonal.training.latents.distill import DistillTask
from diagonal.training.latents.methods import DIFFUSION, Distillation
from diagonal.training.loop import RunConfig, begun, claim, fit
from diagonal.training.parallel import Group, gathered, processes, shard

Line = dict[str, Any]
PROMPTS, TRAJECTORIES, DISTILL = "prompts", "trajectories", "distill"  # stages
MODEL = "model.safetensors"
# The released code counts critic steps, and averages from 200 on; here a turn of five of them is six steps.
AVERAGED_FROM = 240


def released(steps: int, save_every: int = 100, log_every: int = 10) -> RunConfig:
    """A run with the numbers of the released code: constant rates, norms of at most 10, averages of 0.99."""
    return RunConfig(
        steps,
        warmup=0,
        decay_from=1.0,
        clip=10.0,
        ema=0.99,
        ema_from=AVERAGED_FROM,
        log_every=log_every,
        evaluate_every=max(steps, 1),
        save_every=save_every,
    )


@dataclass(frozen=True, slots=True)
class Job:
    """What is distilled into what. Weights are files, folders, hub ids, or 'random'."""

    model: str  # a name in `models`
    teacher: str | Path
    method: Distillation
    prompts: Sequence[str]
    size: tuple[int, int]  # height and width of frames
    run: RunConfig
    batch: int  # samples of a step, of all processes
    accumulate: int | None = None  # parts in which each process takes its samples; None: one at a time
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


def at_once(batch: int, processes: int, accumulate: int | None) -> int:
    """Samples of a batch that each of the processes takes at a time, if it has them in so many parts."""
    parts = processes * (accumulate or 1)
    if min(batch, parts) < 1 or batch % parts:
        raise ValueError(
            f"a batch of {batch} given for {processes} processes in {accumulate or 1} parts each; it must be a "
            f"multiple of {parts}"
        )
    return 1 if accumulate is None else batch // parts


def diffusion_variant(name: str) -> DiffusionVariant:
    """A model that denoises latents, where nothing else will do."""
    found = find("models", name)
    if not isinstance(found, DiffusionVariant):
        raise ValueError(f"{name} is a model of tokens; distillation needs one that denoises, such as wan/tiny")
    return found


def in_latents(name: str, method: Distillation, num_frames: int, max_frames: int | None = None) -> Distillation:
    """The method for videos of so many frames that are scored, of rollouts of at most `max_frames`."""
    stride = find("tokenizers", diffusion_variant(name).vae).stride
    scored, longest = (latent_frames(one, method.preset, stride) for one in (num_frames, max_frames or num_frames))
    return replace(method, scored=scored, longest=longest)


def latent_sides(name: str, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of a video's latents."""
    variant = diffusion_variant(name)
    return latent_size(height, width, find("tokenizers", variant.vae).patch, variant.config.patch)


def distil(job: Job, folder: Path, device: torch.device, resume: bool = False) -> Iterator[tuple[str, Line]]:
    """Run the job into its folder; yields stages with the lines of their progress, the curve's for the last."""
    if begun(folder) and not resume:
        raise ValueError(f"{folder} was begun before; --resume (resume=True) goes on with it, or choose another folder")
    return _distil(job, folder, device, latent_sides(job.model, *job.size))


def _distil(job: Job, folder: Path, device: torch.device, size: tuple[int, int]) -> Iterator[tuple[str, Line]]:
    variant = diffusion_variant(job.model)
    with processes(device) as group:
        split = group.split(at_once(job.batch, dist.get_world_size(), job.accumulate))
        # All weights come first: those that do not fit are known before the long work.
        teacher = _load(job, job.teacher, job.vae, variant, group.device)
        student, critic = (
            _load(job, one, NONE, variant, group.device).transformer for one in (job.init or job.teacher, job.teacher)
        )
        claim(folder, job.settings())
        every = [job.negative_prompt, *job.prompts]
        own = every[dist.get_rank() :: dist.get_world_size()]
        for done in prepare(own, teacher.encoder, device=group.device):
            yield PROMPTS, {"step": min(done * dist.get_world_size(), len(every))}
        dist.barrier()
        written = Written(job.prompts, teacher.encoder, group.device)
        negative = embed([job.negative_prompt], teacher.encoder, device=group.device)
        smaller = torch.bfloat16 if group.device.type == "cuda" else torch.float32
        teacher.transformer.to(group.device, smaller)
        source: Source = written
        if job.trajectories is not None:
            shape = (job.method.scored, variant.config.channels, *size)
            yield from _record(job, teacher.transformer, written, negative, shape)
            source = Trajectories(job.trajectories, group.device)
        for model in (student, critic):
            model.to(group.device, torch.float32)
        if dist.get_world_size() > 1:
            for model in (student, critic, teacher.transformer):
                shard(model, group.mesh)
        models = student, critic, teacher.transformer
        task = DistillTask(*models, source, negative, job.method, size, job.batch, job.run.seed, split=split)
        for line in fit(task, job.run, folder, group):
            yield DISTILL, line
        _export(job.model, variant, student, teacher.vae, folder, group)


def _load(
    job: Job, source: str | Path, vae: str | Path | None, variant: DiffusionVariant, device: torch.device
) -> Parts:
    """A model's parts; random weights are those of `diagonal.load`."""
    place = Weights(source, vae=vae, text_encoder=job.text_encoder)
    if not place.random:
        return published(job.model, variant, place)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return untrained(variant, place, device, torch.float32)


def _record(
    job: Job, teacher: Any, prompts: Written, negative: torch.Tensor, shape: tuple[int, ...]
) -> Iterator[tuple[str, Line]]:
    """Have the teacher's videos of all prompts; one process makes those that are missing."""
    assert job.trajectories is not None
    if dist.get_world_size() > 1:
        there = sum(count for _, count in shards(job.trajectories)) if job.trajectories.is_dir() else 0
        if there != len(prompts):
            raise ValueError(
                f"{job.trajectories} holds {there} trajectories of {len(prompts)} prompts; they are recorded by one "
                "process: start without torchrun first"
            )
        return
    solving = Solving(shape, preset_shares((job.method.preset,), job.method.scored), seed=job.run.seed)
    for done in record(teacher, prompts, negative, solving, job.trajectories):
        yield TRAJECTORIES, {"step": done}


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
