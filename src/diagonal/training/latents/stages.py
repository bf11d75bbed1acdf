"""The stages of a text-to-video recipe, each a folder that the next one reads:

    data -> codec -> latents -> teacher -> trajectories -> ode -> distill-<method>, for each method

All methods have one start, `ode`, so that what they make of it can be compared.
Every stage can be killed and started again, and is skipped where it is done. Those that train leave curve.jsonl,
model.safetensors, samples.png and gate.json: the number that says whether to go on, and its bounds. A number outside of
them stops the chain, with everything that was made kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diagonal import checkpoints
from diagonal.catalog.names import find
from diagonal.catalog.variants import DiffusionVariant
from diagonal.evaluation.distilled import Asked, Student, Teacher
from diagonal.media.files import atomic
from diagonal.networks import lpips
from diagonal.planning.presets import Preset
from diagonal.text.encoders import ENCODERS
from diagonal.training.data import captioned
from diagonal.training.data.latents import Solving, Trajectories, record
from diagonal.training.data.recordings import frames, one_after_another
from diagonal.training.latents.codec import CodecTask
from diagonal.training.latents.diffusion import autocast, levels_met, preset_shares
from diagonal.training.latents.distill import DistillTask
from diagonal.training.latents.methods import DIFFUSION, METHODS, Distillation
from diagonal.training.latents.methods import find as find_method
from diagonal.training.latents.pretraining import OdeTask, TeacherTask
from diagonal.training.loop import claim, fit
from diagonal.training.recipe import Gate, Staged, VideoRecipe
from diagonal.training.sheets import write_sheet
from diagonal.training.tokens.stages import MODEL, Line, build, settings
from diagonal.worlds import vizdoom
from diagonal.worlds.recordings import Part

PARTS = ("train", "held-out")
SHOWN = 4  # videos of a sheet of samples
CODEC, TEACHER, ODE = "codec", "teacher", "ode"  # stages that train, and their folders


@dataclass(frozen=True)
class Work:
    """A recipe at work: where, and on what."""

    recipe: VideoRecipe
    folder: Path
    device: torch.device

    @property
    def variant(self) -> DiffusionVariant:
        variant: DiffusionVariant = find("models", self.recipe.model)
        return variant

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Latent frames, channels, rows and columns of a video."""
        codec, (height, width) = find("tokenizers", self.recipe.codec.variant), self.variant.size
        return 1 + (self.recipe.clip - 1) // codec.stride, codec.latent, height // codec.patch, width // codec.patch

    @property
    def negative(self) -> Tensor:
        """What stands for no prompt: embeddings (1, L, C)."""
        encoder = ENCODERS[self.variant.text]
        return torch.zeros(1, encoder.length, encoder.width, device=self.device)

    def method(self, spec: str) -> Distillation:
        """A method at this world's sizes; what the spec says goes before the recipe's own numbers."""
        how, count = self.recipe.distill, self.shape[0]

        def sized(method: Distillation) -> Distillation:
            return replace(
                method,
                guidance_scale=how.guidance_scale,
                scored=count,
                longest=count,
                lr=how.lr,
                critic_lr=how.critic_lr,
            )

        return find_method(spec, methods={name: sized(method) for name, method in METHODS.items()})

    @property
    def presets(self) -> tuple[Preset, ...]:
        """How the students of all methods are run, those of ablations included."""
        return tuple(self.method(spec).preset for spec in (*self.recipe.methods, *self.recipe.ablations))

    @property
    def dtype(self) -> torch.dtype:
        """Of networks that are not learning: half the bytes, twice the speed, where a GPU has them."""
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def clips(self, part: str) -> captioned.Captioned:
        """The clips of a part with their captions."""
        recipe = self.recipe
        return captioned.read(self.folder / "latents" / part, recipe.ways, recipe.seed, self.device)

    def trajectories(self, part: str) -> Trajectories:
        """What the teacher made for a part."""
        return Trajectories(self.folder / "trajectories" / part, self.device)

    def load(self, stage: str, name: str) -> Any:
        """The module that a stage left."""
        module = build(self.variant.config if name == self.recipe.model else find("tokenizers", name), 0, self.device)
        checkpoints.load(module, checkpoints.read(self.folder / stage / MODEL), name)
        return module.to(self.device, torch.float32).eval().requires_grad_(False)

    def load_codec(self) -> Any:
        """The trained codec, to be used."""
        return self.load(CODEC, self.recipe.codec.variant).to(self.dtype)

    def done(self, stage: str, how: Any, more: Mapping[str, Any] | None = None) -> bool:
        """Whether a stage was finished before; a folder of other settings, and a number out of bounds, are refused."""
        claim(self.folder / stage, settings(how) | dict(more or {}))
        if not (self.folder / stage / MODEL).is_file():
            return False
        check_gate(self.folder / stage, how.gate)
        return True

    def finish(self, stage: str, modules: dict[str, Any], gate: Gate) -> None:
        """Keep what a stage trained, and see whether it is good enough to go on."""
        names = {"transformer": self.recipe.model, "tokenizer": self.recipe.codec.variant}
        said = {"model" if name == "transformer" else name: names[name] for name in modules}
        checkpoints.save(modules, self.folder / stage / MODEL, said)
        check_gate(self.folder / stage, gate)


def check_gate(folder: Path, gate: Gate) -> None:
    """Write gate.json, and refuse to go on if the number is out of bounds."""
    value = json.loads((folder / "curve.jsonl").read_text().splitlines()[-1])[gate.number]
    low = gate.least is not None and not value >= gate.least
    high = gate.most is not None and not value <= gate.most
    with atomic(folder / "gate.json") as temporary:
        temporary.write_text(json.dumps(asdict(gate) | {"value": value, "passed": not (low or high)}) + "\n")
    if low or high:
        bound = f"at least {gate.least}" if low else f"at most {gate.most}"
        raise ValueError(
            f"{folder}: {gate.number} is {value:.4g}; the recipe asks for {bound} before the next stage. Look at its "
            "curve and samples, and train longer or change the recipe"
        )


def recordings(work: Work, workers: int = 1) -> Iterator[tuple[str, Line]]:
    """Record all scenarios with captions, for training and held out, side by side."""
    recipe = work.recipe
    planned: dict[str, list[vizdoom.Shard]] = {}
    for part, count, seed in zip(
        PARTS, (recipe.frames, recipe.held_out_frames), (recipe.seed, recipe.held_out_seed), strict=True
    ):
        planned[part] = []
        for scenario in recipe.scenarios:
            folder = work.folder / "data" / part / scenario
            planned[part] += vizdoom.shards(scenario, count, seed, folder, recipe.episode_frames, captions=True)
    made = vizdoom.record([shard for shards in planned.values() for shard in shards], workers)
    for part, shards in planned.items():
        done = 0
        for _, new in zip(shards, made, strict=False):  # which goes on with the next part's
            done += new
            yield f"record {part}", {"step": done}


def _frames(work: Work, part: str) -> Part:
    """Frames of all scenarios."""
    most, data = work.recipe.codec.frames, work.folder / "data" / part
    size, scenarios = work.variant.size, work.recipe.scenarios
    return one_after_another([frames(data / scenario, size, work.device, most) for scenario in scenarios])


def train_codec(work: Work, lpips_file: str | Path | None = None) -> Iterator[Line]:
    """Train the codec; LPIPS joins the loss where its weights are given."""
    how, folder = work.recipe.codec, work.folder / CODEC
    if work.done(CODEC, how):
        return
    module = build(find("tokenizers", how.variant), how.run.seed, work.device)
    perceptual = None if lpips_file is None else lpips.load(lpips_file, work.device)
    task = CodecTask(
        module,
        _frames(work, "train"),
        _frames(work, "held-out"),
        how.clip,
        how.batch,
        how.lr,
        how.run.seed,
        how.kl_scale,
        how.muon_lr,
        perceptual,
        how.lpips_scale,
    )
    yield from fit(task, how.run, folder)
    task.settle(work.recipe.clip)
    work.finish(CODEC, {"tokenizer": module}, how.gate)


def encode(work: Work) -> Iterator[tuple[str, Line]]:
    """All clips through the codec, with their facts."""
    codec, recipe = work.load_codec(), work.recipe
    digest = hashlib.sha256((work.folder / CODEC / MODEL).read_bytes()).hexdigest()
    cutting = captioned.Cutting(recipe.clip, recipe.hop, digest)
    for part, frames_each in zip(PARTS, (recipe.frames, recipe.held_out_frames), strict=True):
        for number, scenario in enumerate(recipe.scenarios):
            target = work.folder / "latents" / part / f"{scenario}.safetensors"
            for done in captioned.encode(work.folder / "data" / part / scenario, codec, cutting, target):
                yield f"encode {part}", {"step": number * frames_each + done}


def train_teacher(work: Work) -> Iterator[Line]:
    """Flow matching on the clips, with prompts that are dropped now and then."""
    how, folder = work.recipe.teacher, work.folder / TEACHER
    if work.done(TEACHER, how):
        return
    module = build(work.variant.config, how.run.seed, work.device)
    held_out = work.clips("held-out")
    task = TeacherTask(
        module,
        work.clips("train"),
        held_out,
        work.negative,
        how.batch,
        how.run.seed,
        lr=how.lr,
        muon_lr=how.muon_lr,
        shift=how.shift,
        dropout=how.dropout,
    )
    yield from fit(task, how.run, folder)
    module.eval()
    steps = solving(work)
    chunk = work.presets[0].chunk_frames or work.shape[0]
    shown = Teacher(module, work.load_codec(), steps.sigmas(), steps.guidance_scale, work.negative, chunk)
    _show(work, TEACHER, shown)
    work.finish(TEACHER, {"transformer": module}, how.gate)


def solving(work: Work) -> Solving:
    """How the teacher's videos are made: with states wherever any of the methods meets them."""
    how = work.recipe.trajectories
    return Solving(
        work.shape,
        preset_shares(work.presets, work.shape[0]),
        how.steps,
        how.shift,
        how.guidance_scale,
        how.batch,
        work.recipe.seed,
    )


def make_trajectories(work: Work) -> Iterator[tuple[str, Line]]:
    """Videos of the teacher, of captions that clips have."""
    how = work.recipe.trajectories
    teacher = work.load(TEACHER, work.recipe.model).to(work.dtype)
    for part, count in zip(PARTS, (how.count, how.held_out), strict=True):
        prompts = work.clips(part).prompts(count, work.recipe.seed)
        target = work.folder / "trajectories" / part
        for done in record(teacher, prompts, work.negative, solving(work), target):
            yield f"trajectories {part}", {"step": done}


def train_ode(work: Work) -> Iterator[Line]:
    """The start of all students: the teacher's weights, and jumps along its trajectories under the block-causal mask,
    from the levels of every method. The first one's preset says what a chunk sees."""
    how, presets = work.recipe.ode, work.presets
    chunk = presets[0].chunk_frames or work.shape[0]
    met = {
        "levels": [[level for level, _ in levels_met(presets, one)] for one in range(work.shape[0] // chunk)],
        "sees": [chunk, presets[0].window_frames, presets[0].sink_frames],
    }
    if work.done(ODE, how, met):
        return
    module = work.load(TEACHER, work.recipe.model)
    data, held_out = (work.trajectories(part) for part in PARTS)
    task = OdeTask(module, data, held_out, presets, how.batch, how.run.seed, lr=how.lr)
    yield from fit(task, how.run, work.folder / ODE)
    _show(work, ODE, Student(module.eval(), work.load_codec(), presets[0]))
    work.finish(ODE, {"transformer": module}, how.gate)


def distill_stage(spec: str) -> str:
    """The stage, and its folder, of the students of a method: its spec, with signs that folders cannot have as
    dashes."""
    return "distill-" + re.sub(r"[^\w.-]", "-", spec)


def train_student(work: Work, spec: str) -> Iterator[Line]:
    """Distillation by one of the methods, from the start that all have."""
    how, stage, method = work.recipe.distill, distill_stage(spec), work.method(spec)
    if work.done(stage, how):
        return
    generator = work.load(ODE, work.recipe.model)
    critic, teacher = (work.load(TEACHER, work.recipe.model) for _ in range(2))
    trajectories, held_out = (work.trajectories(part) for part in PARTS)
    source = work.clips("train") if method.forcing == DIFFUSION else trajectories
    size = (work.shape[2], work.shape[3])
    task = DistillTask(
        generator,
        critic,
        teacher,
        source,
        work.negative,
        method,
        size,
        how.batch,
        how.run.seed,
        held_out,
    )
    yield from fit(task, how.run, work.folder / stage)
    _show(work, stage, Student(generator.eval(), work.load_codec(), method.preset))
    work.finish(stage, {"transformer": generator}, how.gate)


def _show(work: Work, stage: str, model: Student | Teacher) -> None:
    """Samples of a model, of held-out prompts: the same ones and the same noise in every stage."""
    texts = work.clips("held-out").prompts(SHOWN, work.recipe.teacher.run.seed).text_NLC
    with autocast(work.device):
        made = model.videos(Asked(texts, range(SHOWN), work.shape))
    write_sheet(made, work.folder / stage / "samples.png")


def export(work: Work, spec: str, folder: Path) -> Path:
    """A student and its codec as one checkpoint that `load` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"transformer": (distill_stage(spec), work.recipe.model), "tokenizer": (CODEC, work.recipe.codec.variant)}
    modules = {name: work.load(*part) for name, part in parts.items()}
    checkpoints.save(modules, folder / MODEL, {"model": work.recipe.model, "method": spec})
    return folder


def make(work: Work, lpips_file: str | Path | None = None, workers: int = 1) -> Iterator[tuple[str, Line]]:
    """All stages; yields the stage's name with each line of its curve."""
    solving(work)  # methods that cannot be are known before the long work
    yield from recordings(work, workers)
    yield from ((CODEC, line) for line in train_codec(work, lpips_file))
    yield from encode(work)
    yield from ((TEACHER, line) for line in train_teacher(work))
    yield from make_trajectories(work)
    yield from ((ODE, line) for line in train_ode(work))
    for spec in work.recipe.methods:
        yield from ((distill_stage(spec), line) for line in train_student(work, spec))
    export(work, work.recipe.methods[0], work.folder / "world")


def staged(recipe: VideoRecipe) -> Staged:
    """A recipe as the stages that `make` runs, each with its total; recording has all cores of the computer."""
    count, how = len(recipe.scenarios), recipe.trajectories
    steps = {
        "record train": count * recipe.frames,
        "record held-out": count * recipe.held_out_frames,
        CODEC: recipe.codec.run.steps,
        "encode train": count * recipe.frames,
        "encode held-out": count * recipe.held_out_frames,
        TEACHER: recipe.teacher.run.steps,
        "trajectories train": how.count,
        "trajectories held-out": how.held_out,
        ODE: recipe.ode.run.steps,
        **{distill_stage(spec): recipe.distill.run.steps for spec in recipe.methods},
    }

    def run(folder: Path, device: torch.device, lpips_file: Path | None) -> Iterator[tuple[str, Line]]:
        return make(Work(recipe, folder, device), lpips_file, os.cpu_count() or 1)

    return Staged(steps, run)
