"""Ways to distil a causal few-step student, as numbers: Diagonal Distillation, and what it is compared with.

    find("self-forcing"), find("diagonal-distillation:schedule=4444444,context=clean,flow=0")

A method is a name, and after a colon what is changed in it:

    schedule     steps of each chunk, or any schedule without commas
    context      level at which later chunks see a chunk: clean, 100 (before the shift), t100 (after it)
    flow         gamma of eq. 12, the weight of both terms of motion
    motion       what motion is: difference or field
    regression   the weight of eq. 3; that of eq. 11 is under `flow` alone
    guidance     the scale of the teacher's guidance; 1 is the prompt alone
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from diagonal.planning.presets import PRESETS, Preset
from diagonal.training.latents.diffusion import check_frames
from diagonal.training.latents.losses import MOTIONS, LossWeights

SELF, DIFFUSION = "self", "diffusion"
EQUATION_12 = LossWeights()


@dataclass(frozen=True, slots=True)
class Distillation:
    """How a student is trained. Numbers without a comment are those of the released code.

    `forcing` says what the student is scored on. `self`: its own rollouts, by the loop and the schedule that inference
    runs. `diffusion`: one call on noised clips, each chunk at a level of its own, under the block-causal mask.
    """

    preset: Preset
    weights: LossWeights = EQUATION_12
    forcing: str = SELF
    motion: str = "difference"  # a name in losses.MOTIONS
    guidance_scale: float = 4.0  # of the teacher; the released code writes it as 3.0 beyond the prompt's own answer
    score_levels: tuple[float, float] = (20.0, 980.0)  # timesteps between which videos are noised to be scored
    critic_steps: int = 5  # for each step of the generator
    critic_alone: int = 0  # steps at the start in which only the critic learns, what the student makes as it comes
    lr: float = 2e-6
    critic_lr: float = 4e-7
    betas: tuple[float, float] = (0.0, 0.999)
    weight_decay: float = 0.01
    scored: int = 21  # latent frames at the end of a rollout that are scored and carry gradient
    longest: int = 21  # latent frames of a rollout; its length is drawn from `scored` up, chunk by chunk
    switch: float = 0.0  # how often the prompt changes in a rollout that is longer than what is scored
    recompute: bool = False  # activations in the backward pass, to save memory

    def __post_init__(self) -> None:
        check_frames(self.preset, self.scored)
        check_frames(self.preset, self.longest)
        low, high = self.score_levels
        if self.forcing not in (SELF, DIFFUSION):
            raise ValueError(f"forcing {self.forcing!r} given; known: {SELF}, {DIFFUSION}")
        if self.motion not in MOTIONS:
            raise ValueError(f"motion {self.motion!r} given; known: {', '.join(MOTIONS)}")
        if not 0 <= self.guidance_scale < math.inf:
            raise ValueError(f"guidance {self.guidance_scale} given; it must be a number of 0 or more, such as 3")
        if self.scored < 2:
            raise ValueError(f"{self.scored} latent frames scored; motion needs at least 2")
        if self.longest < self.scored:
            raise ValueError(
                f"rollouts of at most {self.longest} latent frames given; {self.scored} of them are scored"
            )
        counts = self.critic_steps >= 1 and self.critic_alone >= 0
        if not (0 <= low < high <= 1000 and counts and 0 <= self.switch <= 1):
            raise ValueError(f"impossible distillation: {self}")
        if self.switch and self.longest == self.scored:
            raise ValueError("a prompt that changes given; rollouts must be longer than what is scored of them")
        if self.longest > self.scored and (self.forcing == DIFFUSION or self.needs_videos):
            raise ValueError("rollouts beyond what is scored given; no video of the teacher is so long, nor any clip")

    @property
    def needs_videos(self) -> bool:
        """Whether the loss compares with videos that the teacher made of the same noise."""
        return bool({"regression", "flow_regression"} & self.weights.factors().keys())


_PLAIN = LossWeights(regression=0.0, motion=0.0)
METHODS = {
    "diagonal-distillation": Distillation(PRESETS["diagonal-distillation"]),
    # All that needs no videos of the teacher's: prompts alone, as the released code is trained.
    "diagonal-distillation-prompts": Distillation(
        PRESETS["diagonal-distillation"], LossWeights(regression=0.0, flow_regression=0.0)
    ),
    "self-forcing": Distillation(PRESETS["self-forcing"], _PLAIN),
    "causvid": Distillation(
        PRESETS["causvid"], _PLAIN, forcing=DIFFUSION, guidance_scale=4.5, betas=(0.9, 0.999), critic_lr=2e-6
    ),
}


WEIGHTS = {"flow": "motion", "regression": "regression"}  # changes, and the fields of losses.LossWeights that they set
CHANGES = ("schedule", "context", "motion", "guidance", *WEIGHTS)


def find(
    spec: str, more: Mapping[str, str | float] | None = None, methods: Mapping[str, Distillation] = METHODS
) -> Distillation:
    """The method of a name, or of a name and changes; `more` are changes that are given beside it."""
    name, colon, text = spec.partition(":")
    if name not in methods:
        raise ValueError(f"no method is called {name!r}; known: {', '.join(methods)}")
    changes = dict(more or {})
    for change in text.split(",") if colon else ():
        key, equals, value = change.partition("=")
        if key not in CHANGES or not equals or not value:
            raise ValueError(f"{spec!r} says {change!r}; it may say {', '.join(f'{one}=...' for one in CHANGES)}")
        if key in changes:
            raise ValueError(f"{key} {value!r} given along with {key} {changes[key]!r}; give it once")
        changes[key] = value
    return _changed(methods[name], changes)


def _changed(method: Distillation, changes: Mapping[str, str | float]) -> Distillation:
    preset = method.preset
    if "schedule" in changes:  # before the context: a schedule may bring one of its own
        preset = preset.with_schedule(str(changes["schedule"]))
    if "context" in changes:
        preset = preset.with_context(str(changes["context"]))
    weights = {field: _number(key, changes[key]) for key, field in WEIGHTS.items() if key in changes}
    return replace(
        method,
        preset=preset,
        weights=replace(method.weights, **weights),
        motion=str(changes.get("motion", method.motion)),
        guidance_scale=_number("guidance", changes.get("guidance", method.guidance_scale)),
    )


def _number(key: str, value: str | float) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise ValueError(f"{key} {value!r} given; it must be a number of 0 or more, such as 0.5") from error
