"""Distils a bidirectional teacher into a causal few-step student: Distribution Matching on what inference runs.

A generator step rolls the student out by the loop of `engine.chunks.denoise`, with its schedule, cache and window; one
call of each chunk carries gradient. The video is noised once more, and where the teacher (guided) and the critic
disagree about its clean version is where the student has to go. The critic is a copy of the teacher that learns, by
flow matching, what the student makes; it gets several steps for each of the generator's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diagonal.engine.attention import Full
from diagonal.engine.chunks.bidirectional import velocity
from diagonal.engine.chunks.cache import WindowCache
from diagonal.engine.chunks.denoise import Gaussian, Gradient, denoise
from diagonal.engine.chunks.graphs import ChunkGraphs
from diagonal.engine.chunks.protocols import DiffusionModel, Noise, TextKV
from diagonal.engine.chunks.rollout import cache_of, frame_tokens, settings_of, window_of
from diagonal.engine.transfers import sent
from diagonal.planning.denoising.noise import START, shifted
from diagonal.training.batch import BatchShard, Terms
from diagonal.training.data.latents import Batch, Source, Trajectories
from diagonal.training.latents import losses
from diagonal.training.latents.diffusion import (
    Undecoded,
    autocast,
    chunk_levels,
    chunk_memory,
    compiled,
    draw,
    noised,
    recompute,
    seed_of,
)
from diagonal.training.latents.methods import DIFFUSION, Distillation
from diagonal.training.optim import adam

STEPS = 1000  # before the shift, of which one is drawn to score a video at


@dataclass(frozen=True, slots=True)
class Begun:
    """Noise whose first draw of every chunk is given: what a teacher's video was made of."""

    first_BFCHW: Tensor
    later: Noise

    def __call__(self, chunk: int, step: int, shape: tuple[int, ...]) -> Tensor:
        return (
            self.later(chunk, step, shape) if step else self.first_BFCHW[:, chunk * shape[1] : (chunk + 1) * shape[1]]
        )


@dataclass(frozen=True, slots=True)
class Roll:
    """What chance decides about a rollout, and what it starts from."""

    frames: int  # latent frames in all
    exit: float  # in [0, 1): how far every chunk goes, as a part of its steps; the call there carries gradient
    switch: int | None  # the chunk from which on the later text holds
    text_BLC: Tensor
    later_BLC: Tensor
    noise: Noise
    size: tuple[int, int]  # height and width of latents

    @property
    def last(self) -> Tensor:
        """The text of the frames at the end."""
        return self.text_BLC if self.switch is None else self.later_BLC


def rollout(model: DiffusionModel, cache: WindowCache, method: Distillation, roll: Roll) -> Tensor:
    """The student's latents (B, frames, C, H, W). Chunks of the scored end stop at the exit; those before go all the
    way without gradient, as in inference.

    One number decides for all chunks: with the same number of steps they stop at the same one, and where numbers
    differ, every step of a chunk is as likely as its others.
    """
    preset = method.preset
    assert preset.chunk_frames is not None
    first = (roll.frames - method.scored) // preset.chunk_frames

    def step(chunk: int) -> int | None:
        return None if chunk < first else int(roll.exit * len(preset.schedule.levels(chunk)))

    settings = replace(settings_of(preset, roll.noise, roll.size), gradient=Gradient(step, method.recompute))

    def text(chunk: int) -> Tensor:
        return roll.text_BLC if roll.switch is None or chunk < roll.switch else roll.later_BLC

    return torch.cat([chunk.latents for chunk in denoise(model, cache, settings, text, roll.frames)], 1)


@dataclass
class DistillTask(Undecoded):
    """Generator and critic alternate: one step of the generator, then `critic_steps` of the critic. At the start the
    critic may have `critic_alone` steps to itself.

    Generator and critic have float32 weights; the teacher's may be smaller. `first_latent` is for codecs whose first
    latent is another kind than the rest: it is given the frames of a rollout up to the first that is scored, and
    returns that one as the first of a video.
    """

    generator: Any
    critic: Any
    teacher: Any
    source: Source
    negative_1LC: Tensor
    method: Distillation
    size: tuple[int, int]  # height and width of latents
    batch: int
    seed: int
    held_out: Trajectories | None = None
    shard: BatchShard = field(default_factory=BatchShard)
    first_latent: Callable[[Tensor], Tensor] | None = None
    module: nn.Module = field(init=False)
    optimizers: list[torch.optim.Optimizer] = field(init=False)

    def __post_init__(self) -> None:
        method = self.method
        example = self.source.take([0]).video_BFCHW
        if method.needs_videos and not isinstance(self.source, Trajectories):
            raise ValueError("the regression terms need trajectories of the teacher; give them, or weights of 0")
        if method.forcing == DIFFUSION and example is None:
            raise ValueError("diffusion forcing noises real videos; give clips, not prompts alone")
        if example is not None and (method.needs_videos or method.forcing == DIFFUSION):
            wanted = (method.scored, self.generator.config.channels, *self.size)
            if example.shape[1:] != wanted:
                raise ValueError(
                    f"videos of {tuple(example.shape[1:])} given; {wanted} is what is scored of the student"
                )
        self._device = self.negative_1LC.device
        self.teacher.eval().requires_grad_(False)
        self.module = nn.ModuleDict({"generator": self.generator, "critic": self.critic}).train().requires_grad_(True)
        if method.recompute:
            recompute(self.generator)
            recompute(self.critic)
        else:
            compiled(self.critic.blocks, self._device)
        self.optimizers = [
            adam(module, lr, method.betas, method.weight_decay)
            for module, lr in ((self.generator, method.lr), (self.critic, method.critic_lr))
        ]
        self._motion = losses.MOTIONS[method.motion]
        self._stages: dict[int, tuple[DiffusionModel, WindowCache]] = {}
        self._latest: Terms = {}  # of the generator: lines of the curve fall on the critic's steps too
        if method.forcing == DIFFUSION:
            self._blocks = chunk_memory(
                method.preset, method.scored, frame_tokens(self.generator, self.size), self._device
            )

    def loss(self, step: int) -> tuple[Tensor, Terms]:
        since = step - self.method.critic_alone
        if since < 0 or since % (self.method.critic_steps + 1):
            loss, terms = self.shard.mean(self.batch, lambda samples: self._critic(step, samples))
            return loss, self._latest | terms
        loss, self._latest = self.shard.mean(self.batch, lambda samples: self._generator(step, samples))
        return loss, self._latest

    def _generator(self, step: int, samples: Sequence[int]) -> tuple[Tensor, Terms]:
        rngs = [draw(self.seed, step, sample) for sample in samples]
        batch = self._take(rngs)
        with autocast(self._device):
            x, text = self._make(step, batch, rngs)
            real, fake = self._scores(x, text, rngs)
        made: dict[str, Callable[[], Tensor]] = {
            "dmd": lambda: losses.dmd(x, real, fake),
            "flow_dmd": lambda: losses.flow_dmd(x, real, fake, self._motion),
            "regression": lambda: losses.regression(x, _known(batch)),
            "flow_regression": lambda: losses.flow_regression(x, _known(batch), self._motion),
        }
        terms = {name: made[name]() for name in self.method.weights.factors()}
        return losses.total(terms, self.method.weights), terms

    def _critic(self, step: int, samples: Sequence[int]) -> tuple[Tensor, Terms]:
        rngs = [draw(self.seed, step, sample) for sample in samples]
        with autocast(self._device):
            with torch.no_grad():
                x, text = self._make(step, self._take(rngs), rngs)
            sigma, noise = self._noise(x, rngs)
            found = velocity(self.critic, noised(x, sigma, noise), START * sigma, self.critic.embed_text(text), Full())
        loss = losses.flow_matching(found, noise, x)
        return loss, {"critic": loss}

    def _take(self, rngs: Sequence[np.random.Generator]) -> Batch:
        return self.source.take([int(rng.integers(len(self.source))) for rng in rngs])

    def _make(self, step: int, batch: Batch, rngs: Sequence[np.random.Generator]) -> tuple[Tensor, Tensor]:
        """What the student makes and is scored on, and its prompts."""
        if self.method.forcing == DIFFUSION:
            return self._jump(batch, rngs), batch.text_BLC
        roll = self._roll(step, batch, rngs)
        video = rollout(*self._stage(len(rngs)), self.method, roll)
        before = roll.frames - self.method.scored
        x = video[:, before:]
        if before and self.first_latent is not None:
            x = torch.cat([self.first_latent(video[:, : before + 1].detach()), x[:, 1:]], 1)
        return x, roll.last

    def _roll(self, step: int, batch: Batch, rngs: Sequence[np.random.Generator]) -> Roll:
        method, common = self.method, np.random.default_rng([self.seed, step])  # the same in every process and part
        assert method.preset.chunk_frames is not None
        frames = int(common.choice(range(method.scored, method.longest + 1, method.preset.chunk_frames)))
        exit_at, changes = float(common.random()), common.random() < method.switch
        before = (frames - method.scored) // method.preset.chunk_frames
        switch = int(common.integers(1, before + 1)) if before and changes else None
        later = self._take(rngs).text_BLC if switch is not None else batch.text_BLC
        noise: Noise = Gaussian([seed_of(rng) for rng in rngs], self._device)
        if method.needs_videos:
            assert batch.noise_BFCHW is not None
            noise = Begun(batch.noise_BFCHW, noise)
        return Roll(frames, exit_at, switch, batch.text_BLC, later, noise, self.size)

    def _jump(self, batch: Batch, rngs: Sequence[np.random.Generator]) -> Tensor:
        """Clips, each chunk noised to a level of its own, in one call of the student."""
        clean = _known(batch)
        level, sigma = (sent(one, self._device) for one in chunk_levels((self.method.preset,), clean.shape[1], rngs))
        noise = Gaussian([seed_of(rng) for rng in rngs], self._device)(0, 0, tuple(clean.shape))
        x = noised(clean, sigma.float(), noise)
        text = self.generator.embed_text(batch.text_BLC)
        return x - sigma.float()[..., None, None, None] * velocity(self.generator, x, level, text, self._blocks)

    def _noise(self, x: Tensor, rngs: Sequence[np.random.Generator]) -> tuple[Tensor, Tensor]:
        """A sigma for each sample, (B, 1), and the noise: steps are drawn evenly before the shift."""
        low, high = self.method.score_levels
        drawn = [shifted(int(rng.integers(STEPS)) / STEPS, self.method.preset.shift) for rng in rngs]
        sigma = sent([[min(max(one, low / START), high / START)] for one in drawn], self._device)
        return sigma, Gaussian([seed_of(rng) for rng in rngs], self._device)(0, 0, tuple(x.shape))

    @torch.no_grad()
    def _scores(self, x: Tensor, text_BLC: Tensor, rngs: Sequence[np.random.Generator]) -> tuple[Tensor, Tensor]:
        """The clean videos that the guided teacher and the critic see in a noised copy."""
        sigma, noise = self._noise(x, rngs)
        x_t = noised(x, sigma, noise)

        def clean(model: Any, text: TextKV) -> Tensor:
            return x_t - sigma[..., None, None, None] * velocity(model, x_t, START * sigma, text, Full())

        real, scale = clean(self.teacher, self.teacher.embed_text(text_BLC)), self.method.guidance_scale
        if scale != 1:  # 1 is the prompt's own answer
            real = losses.guided(real, clean(self.teacher, self.teacher.embed_text(self.negative_1LC)), scale)
        return real, clean(self.critic, self.critic.embed_text(text_BLC))

    def _stage(self, batch: int) -> tuple[DiffusionModel, WindowCache]:
        """The student, and its cache for so many videos. On a GPU of its own, calls without gradient are recorded: they
        are most of a rollout, and short."""
        if batch not in self._stages:
            preset, cuda = self.method.preset, self._device.type == "cuda"
            window = window_of(preset, None if preset.window_frames else self.method.longest)
            dtype = torch.bfloat16 if cuda else torch.float32
            cache = cache_of(self.generator, window, self.size, batch, self._device, dtype)
            alone = cuda and self.shard.world == 1
            self._stages[batch] = (ChunkGraphs(self.generator, cache) if alone else self.generator, cache)
        return self._stages[batch]

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Against the teacher's videos of the same noise: the distance, and how much of their motion is left."""
        if self.held_out is None:
            return {}
        batch = self.held_out.take(range(min(self.batch, len(self.held_out))))
        teacher, noise = _known(batch), batch.noise_BFCHW
        assert noise is not None
        begun = Begun(noise, Gaussian(range(len(noise)), self._device))
        frames = teacher.shape[1]
        roll = Roll(frames, 1 - 1e-9, None, batch.text_BLC, batch.text_BLC, begun, self.size)
        with autocast(self._device):
            method = replace(self.method, scored=frames, longest=frames, switch=0.0)
            x = rollout(*self._stage(len(noise)), method, roll)
        moved, wanted = (self._motion(one).abs().mean() for one in (x, teacher))
        return {"val_regression": float(losses.regression(x, teacher)), "val_motion": float(moved / wanted)}


def _known(batch: Batch) -> Tensor:
    assert batch.video_BFCHW is not None  # checked at the beginning: every sample of a source has the same
    return batch.video_BFCHW
