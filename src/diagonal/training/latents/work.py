"""A text-to-video recipe at work in a folder: its sizes, its methods, and what its stages have left there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diagonal import checkpoints
from diagonal.catalog.names import find
from diagonal.catalog.variants import DiffusionVariant
from diagonal.evaluation.distilled import Asked, StudentPipeline, TeacherPipeline
from diagonal.planning.presets import Preset
from diagonal.text.encoders import ENCODERS
from diagonal.training.data import captioned
from diagonal.training.data.latents import Trajectories
from diagonal.training.latents.diffusion import autocast
from diagonal.training.latents.methods import METHODS, Distillation
from diagonal.training.latents.methods import find as find_method
from diagonal.training.recipe import VideoRecipe
from diagonal.training.sheets import write_sheet
from diagonal.training.stages import MODEL, Stage, build, training

SHOWN = 4  # videos of a sheet of samples
CODEC, TEACHER, ODE, WORLD = "codec", "teacher", "ode", "world"  # stages, and their folders


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

    def training(self, stage: str, how: Any, task: Callable[[], Any], keep: Callable[[Any], None]) -> Stage:
        """A stage that trains by a part of the recipe, with its gate."""
        return replace(training(stage, how, self.folder / stage, task, keep), gate=how.gate)

    def keep(self, stage: str, modules: dict[str, Any]) -> None:
        """Write what a stage trained."""
        names = {"transformer": self.recipe.model, "tokenizer": self.recipe.codec.variant}
        said = {"model" if name == "transformer" else name: names[name] for name in modules}
        checkpoints.save(modules, self.folder / stage / MODEL, said)

    def show(self, stage: str, model: StudentPipeline | TeacherPipeline) -> None:
        """Samples of a model, of held-out prompts: the same ones and the same noise in every stage."""
        texts = self.clips("held-out").prompts(SHOWN, self.recipe.teacher.run.seed).text_NLC
        with autocast(self.device):
            made = model.videos(Asked(texts, range(SHOWN), self.shape))
        write_sheet(made, self.folder / stage / "samples.png")
