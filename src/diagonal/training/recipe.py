"""A training run as data: the numbers of each stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from diagonal.training.loop import RunConfig
from diagonal.training.stages import Gate, Stage


@dataclass(frozen=True, slots=True)
class TokenizerRecipe:
    """How a tokenizer is trained. `variant` is its name in `tokenizers`."""

    variant: str
    run: RunConfig
    batch: int
    lr: float = 1e-3
    lpips_scale: float = 0.5


Mixture = tuple[tuple[str, float], ...]  # orders, and how often each is taught


@dataclass(frozen=True, slots=True)
class WorldRecipe:
    """How a world is trained or fine-tuned: under which mixture of orders, and which of its parts."""

    run: RunConfig
    batch: int
    mixture: Mixture
    lr: float = 3e-3
    muon_lr: float | None = 0.02
    weight_decay: float = 0.01
    corruption: float = 0.0
    held_out_sequences: int = 128  # scored along the way
    later: tuple[tuple[float, Mixture], ...] | None = None  # mixtures from these parts of the run (0 to 1) on
    lora: int | None = None  # the rank of adapters, which are learnt in place of the matrices
    only: tuple[str, ...] | None = None  # of adapters.PARTS: what alone is learnt
    rolled: int | None = None  # frames beyond the window: sequences are so much longer, and roll as live sessions do

    def __post_init__(self) -> None:
        begins = [begin for begin, _ in self.later or ()]
        if begins != sorted(set(begins)) or not all(0 < begin < 1 for begin in begins):
            raise ValueError(f"later mixtures begin at {begins}; they need rising parts of the run between 0 and 1")
        if self.rolled is not None and self.rolled < 1:
            raise ValueError(f"rolled={self.rolled} given; it is 1 frame beyond the window at least, or is left out")
        if self.lora is not None and self.only is not None:
            raise ValueError("a LoRA is learnt alone; leave out either lora or only")


@dataclass(frozen=True, slots=True)
class JudgeRecipe:
    """How the inverse-dynamics network is trained."""

    run: RunConfig
    batch: int
    lr: float = 1e-3


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that makes a world: recorded data, tokenizer, raster training, diagonal training, judge."""

    model: str  # a name in `models`
    world: str  # where the data comes from: a module of `worlds`
    scenario: str
    frames: int  # recorded for training
    tokenizer_frames: int  # of them, those the tokenizer and the judge are trained on
    held_out_frames: int
    seed: int
    tokenizer: TokenizerRecipe
    base: WorldRecipe
    finetune: WorldRecipe  # the paper's short one
    diagonal: WorldRecipe  # the full one
    judge: JudgeRecipe | None
    held_out_episode: int  # frames of a held-out episode: as long as the longest rollout that is judged
    tuned: bool = False  # its tokenizer was trained before, on other pictures, and is fine-tuned

    @property
    def held_out_seed(self) -> int:
        """Held-out episodes are recorded with a seed of their own."""
        return self.seed + 1_000_003


@dataclass(frozen=True, slots=True)
class CodecRecipe:
    """How a codec of latents is trained, on short clips. `variant` is its name in `tokenizers`."""

    variant: str
    run: RunConfig
    batch: int
    clip: int  # frames
    frames: int  # of each scenario, at most
    gate: Gate
    lr: float = 1e-3
    muon_lr: float = 0.01  # of convolutions
    kl_scale: float = 1e-4
    lpips_scale: float = 0.5


@dataclass(frozen=True, slots=True)
class TeacherRecipe:
    """How the bidirectional teacher is trained."""

    run: RunConfig
    batch: int
    gate: Gate
    lr: float = 1e-3
    muon_lr: float | None = 0.02  # of the matrices of its blocks; None: they are like the rest
    shift: float = 5.0
    dropout: float = 0.1  # of prompts


@dataclass(frozen=True, slots=True)
class TrajectoryRecipe:
    """What the teacher makes for its students."""

    count: int
    held_out: int
    batch: int
    steps: int = 48
    shift: float = 5.0
    guidance_scale: float = 3.0


@dataclass(frozen=True, slots=True)
class StudentRecipe:
    """How a student is trained: its ODE start, or its distillation after that."""

    run: RunConfig
    batch: int
    gate: Gate
    lr: float
    critic_lr: float = 0.0  # of a distillation
    guidance_scale: float = 3.0  # of the teacher's scores, in a distillation


@dataclass(frozen=True, slots=True)
class VideoRecipe:
    """Everything that makes a text-to-video world: captioned clips, codec, teacher, trajectories, students."""

    model: str  # a name in `models`
    scenarios: tuple[str, ...]
    frames: int  # recorded of each scenario for training
    held_out_frames: int
    episode_frames: int
    clip: int  # frames of the videos that are learnt
    hop: int  # frames from one clip of an episode to the next
    ways: int  # captions of each clip
    seed: int
    codec: CodecRecipe
    teacher: TeacherRecipe
    trajectories: TrajectoryRecipe
    ode: StudentRecipe
    distill: StudentRecipe
    methods: tuple[str, ...]  # specs of training.methods; the first one's student is the world, the others are compared
    ablations: tuple[str, ...] = ()  # more specs, which tables train: the students' common start serves them too

    @property
    def held_out_seed(self) -> int:
        """Held-out episodes are recorded with a seed of their own."""
        return self.seed + 1_000_003


# What a recipe's function `distill()` returns: the stages that end with a distilled student, in folders of their names
# below the one that is given, on a device. LPIPS joins losses of pixels where the file of its weights is given.
Chain = Callable[[Path, torch.device, Path | None], Sequence[Stage]]
