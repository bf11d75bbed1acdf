"""Makes clips by a distilled student and by its teacher, of the same prompts and noise, and measures them.

    videos = StudentPipeline(model, codec, preset).videos(asked)
    numbers = compare(look(videos, judges), told, References(real, teacher), judges)

References are real clips that nobody trained on, through the codec, and the teacher's clips.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diagonal.engine.chunks.bidirectional import trajectory
from diagonal.engine.chunks.denoise import Gaussian, denoise
from diagonal.engine.chunks.rollout import cache_of, settings_of, window_of
from diagonal.evaluation import clips
from diagonal.evaluation.flow import flow_magnitude
from diagonal.evaluation.metrics.lpips import lpips_distance
from diagonal.evaluation.statistics import FloatArray, Interval, bootstrap, resampled
from diagonal.networks.caption_reader import Answers, Reader, read, right
from diagonal.networks.inverse_dynamics import InverseDynamics, judge
from diagonal.planning.presets import Preset

DECODED = 16  # clips that are decoded at a time


@dataclass(frozen=True, slots=True)
class Asked:
    """Videos that are asked for: prompts (N, L, C), a seed for each, and the form of their latents."""

    text_NLC: Tensor
    seeds: Sequence[int]
    shape: tuple[int, int, int, int]  # latent frames, channels, rows and columns
    batch: int = 64  # made at a time

    def parts(self) -> Iterator[Asked]:
        """A batch each."""
        for first in range(0, len(self.seeds), self.batch):
            few = slice(first, first + self.batch)
            yield replace(self, text_NLC=self.text_NLC[few], seeds=self.seeds[few])


@dataclass(frozen=True, slots=True)
class StudentPipeline:
    """A causal model, the codec that shows its latents, and how it is run."""

    model: Any
    codec: Any
    preset: Preset

    def calls(self, frames: int) -> int:
        """Calls of the model for a video of so many latent frames."""
        return sum(self.preset.calls(frames))

    def videos(self, asked: Asked) -> Tensor:
        """Clips (N, T, C, H, W)."""
        made = [torch.cat(list(self._chunks(part, asked.shape[0])), 1) for part in asked.parts()]
        return decode(self.codec, torch.cat(made))

    def stream(self, asked: Asked) -> Iterator[Tensor]:
        """One video of every prompt without end: its next frames (N, t, C, H, W), chunk after chunk. What is kept in
        memory does not grow."""
        state: dict[str, Tensor] = {}
        for latents in self._chunks(asked, None):
            yield self.codec.decode(latents.float(), state)

    def _chunks(self, asked: Asked, frames: int | None) -> Iterator[Tensor]:
        preset, (longest, _, *size) = self.preset, asked.shape
        weight, window = next(self.model.parameters()), window_of(preset, None if preset.window_frames else longest)
        cache = cache_of(self.model, window, size, len(asked.seeds), weight.device, weight.dtype)
        settings = settings_of(preset, Gaussian(asked.seeds, weight.device), size)
        made = denoise(self.model, cache, settings, lambda _: asked.text_NLC, frames)
        return (chunk.latents for chunk in made)


def endless(preset: Preset, longest: int) -> Preset:
    """The preset for videos without end. One that sees all sees what it was trained with, `longest` latent frames, and
    a sink moves along, for no training saw one fall behind further and further."""
    return replace(preset, window_frames=preset.window_frames or longest, relative_rope=preset.sink_frames > 0)


@dataclass(frozen=True, slots=True)
class TeacherPipeline:
    """The bidirectional model, and how it is run: Euler steps over sigmas, with guidance."""

    model: Any
    codec: Any
    sigmas: Sequence[float]
    guidance_scale: float
    negative_1LC: Tensor
    chunk_frames: int  # of the students that start from the same noise

    @property
    def calls(self) -> int:
        """Calls of the model for a video: with the prompt and without it."""
        return 2 * len(self.sigmas)

    def videos(self, asked: Asked) -> Tensor:
        """Clips (N, T, C, H, W)."""
        made = []
        for part in asked.parts():
            texts = (part.text_NLC, self.negative_1LC)
            *_, clean = trajectory(self.model, self.sigmas, texts, self.guidance_scale, self._noise(part))
            made.append(clean)
        return decode(self.codec, torch.cat(made))

    def _noise(self, asked: Asked) -> Tensor:
        """What the chunks of a student with these seeds start from, one after the other."""
        (frames, *size), draw = asked.shape, Gaussian(asked.seeds, asked.text_NLC.device)
        shape = (len(asked.seeds), self.chunk_frames, *size)
        return torch.cat([draw(chunk, 0, shape) for chunk in range(frames // self.chunk_frames)], 1)


def decode(codec: Any, latents_NFCHW: Tensor) -> Tensor:
    """Pixels (N, T, C, H, W) of many clips, a few at a time."""
    return torch.cat([codec.decode(part.float(), {}) for part in latents_NFCHW.split(DECODED)])


@dataclass(frozen=True, slots=True)
class TextToVideoJudges:
    """What measures: two networks of our own, and LPIPS where its weights are given."""

    idm: InverseDynamics
    reader: Reader
    lpips: Mapping[str, Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """Clips and all that is measured of each by itself."""

    video_NTCHW: Tensor
    looks: dict[str, Tensor]  # (N, frames or pairs of frames)
    features_NTF: Tensor  # of the inverse-dynamics network, for each pair of frames
    answers: Answers


def look(video_NTCHW: Tensor, judges: TextToVideoJudges) -> Seen:
    """See all there is to see in clips."""
    _, features = judge(judges.idm, video_NTCHW)
    return Seen(video_NTCHW, looks(video_NTCHW), features, read(judges.reader, video_NTCHW))


def looks(video_NTCHW: Tensor) -> dict[str, Tensor]:
    """How frames look and move, (N, T or T-1) each."""
    kinds = {
        "sharpness": clips.laplacian_variance,
        "saturation": clips.saturation,
        "change": clips.change,
        "flow": flow_magnitude,
    }
    return {
        name: torch.cat([measure(part) for part in video_NTCHW.split(DECODED)]).cpu() for name, measure in kinds.items()
    }


@dataclass(frozen=True, slots=True)
class References:
    """What clips are compared with; the teacher's are of the same prompts and noise, one for each."""

    real: Seen
    teacher: Seen | None = None


def compare(made: Seen, told: Answers, references: References, judges: TextToVideoJudges) -> dict[str, Interval]:
    """All numbers of a set of clips, each with its 95 % interval over clips. `told` is what their prompts say."""
    count, numbers = len(made.video_NTCHW), {name: _mean(one) for name, one in made.looks.items()}

    def flow_distance(other: Seen) -> Interval:
        return resampled(lambda some: clips.wasserstein(made.looks["flow"][some], other.looks["flow"]), count)

    numbers |= {"frechet_idm": clips.frechet_distance(made.features_NTF, references.real.features_NTF)}
    numbers |= {"flow_distance": flow_distance(references.real)}
    numbers |= {"colour_spread": clips.colour_spread(made.video_NTCHW, told.scenario_N)}
    teacher = references.teacher
    if teacher is not None:
        numbers |= {"frechet_idm_teacher": clips.frechet_distance(made.features_NTF, teacher.features_NTF)}
        numbers |= {"flow_distance_teacher": flow_distance(teacher)}
        if judges.lpips is not None:
            numbers["lpips_teacher"] = _mean(lpips_distance(made.video_NTCHW, teacher.video_NTCHW, judges.lpips))
    return numbers | alignment(made.answers, told)


def alignment(seen: Answers, told: Answers) -> dict[str, Interval]:
    """How much of what is told is seen: the scenario, the first motion, all motions in their order, the things."""
    numbers = {name: _mean(one[:, None]) for name, one in right(seen, told).items()}
    thing, known = told.things_NM.cpu(), seen.things_NM.cpu()
    return numbers | {"things_f1": resampled(lambda some: clips.f1(thing[some], known[some]), len(thing))}


def _mean(values_NT: Tensor | FloatArray) -> Interval:
    """Over frames, then over clips, which the interval is over."""
    return bootstrap(np.asarray(torch.as_tensor(values_NT).double().mean(1).cpu())[:, None])
