"""The options of `diagonal distill`, and the method that they describe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from diagonal.cli.options import chosen

if TYPE_CHECKING:
    from diagonal.catalog.variants import DiffusionVariant
    from diagonal.training.latents.methods import Distillation


@dataclass(frozen=True, kw_only=True)
class Models:
    """What is distilled into what."""

    panel: ClassVar[str] = "Model"

    model: Annotated[str, typer.Option(help="A diffusion model from `diagonal models`.")] = "wan/1.3b"
    teacher: Annotated[str | None, typer.Option(help="Its weights: file, folder, hub id; 'random': untrained.")] = None
    init: Annotated[str | None, typer.Option(help="The student's first weights. Default: the teacher's.")] = None
    vae: Annotated[
        str | None, typer.Option(help="Written beside the student. Default: the teacher's; 'none': no VAE.")
    ] = None
    text_encoder: Annotated[str | None, typer.Option(help="If it does not lie beside the teacher.")] = None


@dataclass(frozen=True, kw_only=True)
class Texts:
    """What the student learns from."""

    panel: ClassVar[str] = "Prompts"

    prompts: Annotated[Path | None, typer.Option(help="One prompt a line, or a .csv with the column `prompt`.")] = None
    max_prompts: Annotated[int | None, typer.Option(min=1, help="Of the file, chosen by the seed.")] = None
    negative_prompt: Annotated[str | None, typer.Option(help="What the teacher is guided away from.")] = None
    trajectories: Annotated[
        Path | None, typer.Option(help="Folder of the teacher's videos, for terms that need them; made if missing.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Method:
    """How it is scored, and with which schedule it will run."""

    panel: ClassVar[str] = "Method"

    method: Annotated[
        str,
        typer.Option(
            help="diagonal-distillation (all of eq. 12), diagonal-distillation-prompts, self-forcing or causvid; with "
            "changes: self-forcing:schedule=2,flow=1."
        ),
    ] = "diagonal-distillation-prompts"
    schedule: Annotated[str | None, typer.Option(help="Steps, such as 4322222. Default: the method's.")] = None
    context: Annotated[str | None, typer.Option(help="Level of the cache: clean, 100 (before the shift) or t100.")] = (
        None
    )
    flow_weight: Annotated[float | None, typer.Option(help="Gamma of eq. 12. Default: the method's.")] = None
    guidance_scale: Annotated[float | None, typer.Option(help="Classifier-free guidance of the teacher.")] = None
    critic_alone: Annotated[int | None, typer.Option(min=0, help="Critic steps before the first generator step.")] = (
        None
    )
    switch: Annotated[float | None, typer.Option(help="How often the prompt changes in long rollouts.")] = None


@dataclass(frozen=True, kw_only=True)
class Videos:
    """Sizes of what is scored."""

    panel: ClassVar[str] = "Videos"

    num_frames: Annotated[int | None, typer.Option(min=1, help="Frames that are scored. Default: the model's.")] = None
    max_frames: Annotated[int | None, typer.Option(min=1, help="Longest rollout, of which the end is scored.")] = None
    height: Annotated[int | None, typer.Option(min=1, help="Of the frames. Default: the model's.")] = None
    width: Annotated[int | None, typer.Option(min=1, help="Likewise.")] = None


@dataclass(frozen=True, kw_only=True)
class Training:
    """How long and how carefully."""

    panel: ClassVar[str] = "Training"

    steps: Annotated[int, typer.Option(min=1, help="Of generator and critic together.")] = 720
    batch: Annotated[int, typer.Option(min=1, help="Samples of a step, of all processes.")] = 64
    accumulate: Annotated[
        int | None, typer.Option(min=1, help="Micro-batches of a process and step. Default: one sample each.")
    ] = None
    lr: Annotated[float | None, typer.Option(help="Learning rate. Default: the method's.")] = None
    critic_lr: Annotated[float | None, typer.Option(help="The critic's. Default: the method's.")] = None
    ema: Annotated[float | None, typer.Option(help="Decay of the averaged student, the result. Default: 0.99.")] = None
    ema_from: Annotated[int | None, typer.Option(min=0, help="First averaged step. Default: as the released code.")] = (
        None
    )
    recompute: Annotated[bool, typer.Option(help="Recompute activations (gradient checkpointing).")] = True
    seed: Annotated[int, typer.Option(min=0, help="Of prompts, noise and batches.")] = 0
    log_every: Annotated[int | None, typer.Option(min=1, help="Steps between lines of the curve. Default: 10.")] = None
    save_every: Annotated[int | None, typer.Option(min=1, help="Steps between checkpoints. Default: 100.")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False


@dataclass(frozen=True)
class Options:
    """All that a recipe decides itself."""

    models: Models
    texts: Texts
    method: Method
    videos: Videos
    training: Training

    @property
    def variant(self) -> DiffusionVariant:
        """The model's."""
        from diagonal.training.latents.distillation import diffusion_variant

        return diffusion_variant(self.models.model)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width: those that the model was trained on where none were given."""
        usual = self.variant.size
        return self.videos.height or usual[0], self.videos.width or usual[1]

    def distillation(self) -> Distillation:
        """The method with what the options change in it."""
        from diagonal.training.latents.distillation import in_latents
        from diagonal.training.latents.methods import find

        method, model = self.method, self.models.model
        named = {"schedule": "schedule", "context": "context", "flow": "flow_weight", "guidance": "guidance_scale"}
        given = chosen(method, *named.values())
        found = find(method.method, {key: given[one] for key, one in named.items() if one in given})
        rates = chosen(method, "critic_alone") | chosen(self.training, "lr", "critic_lr")
        found = replace(found, recompute=self.training.recompute, **rates)
        found = in_latents(model, found, self.videos.num_frames or self.variant.frames, self.videos.max_frames)
        return replace(found, **chosen(method, "switch"))  # which asks for the longer rollouts
