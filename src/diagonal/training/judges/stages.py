"""The two networks that measure text-to-video students, as more stages of a run folder: `reader` and `judge`.

Both learn from recordings that went through the codec, as everything that they will see has: what the codec blurs is
held against nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from diagonal import checkpoints
from diagonal.evaluation.clips import evenly
from diagonal.evaluation.distilled import DECODED, decode
from diagonal.networks.caption_reader import Answers, Reader
from diagonal.networks.caption_reader import Config as ReaderConfig
from diagonal.networks.inverse_dynamics import Config as JudgeConfig
from diagonal.networks.inverse_dynamics import InverseDynamics
from diagonal.training.data.captioned import Captioned
from diagonal.training.data.recordings import PARTS, frames, join, starts
from diagonal.training.judges import inverse_dynamics
from diagonal.training.judges.caption_reader import ReaderTask, Told
from diagonal.training.latents.work import Work
from diagonal.training.loop import RunConfig
from diagonal.training.recipe import JudgeRecipe
from diagonal.training.stages import MODEL, Stage, build, training
from diagonal.worlds import vizdoom
from diagonal.worlds.recordings import Part

READER, JUDGE = "reader", "judge"


@dataclass(frozen=True, slots=True)
class ReaderRecipe:
    """How the reader is trained, on how many clips."""

    run: RunConfig
    batch: int
    clips: int
    held_out: int
    lr: float = 1e-3


def missing(work: Work, reader: ReaderRecipe, judge: JudgeRecipe, most: int) -> list[Stage]:
    """The stages of those that are not there yet; `most` frames of every scenario are for the judge."""
    both = [reader_stage(work, reader), judge_stage(work, judge, most)]
    return [stage for stage in both if not (stage.folder / MODEL).is_file()]


def reader_stage(work: Work, how: ReaderRecipe) -> Stage:
    """Train the caption reader on clips through the codec."""

    def task() -> ReaderTask:
        codec = work.load_codec()
        data, held_out = (
            told(work.clips(part), codec, count) for part, count in zip(PARTS, (how.clips, how.held_out), strict=True)
        )
        module = build(ReaderConfig(), how.run.seed, work.device)
        return ReaderTask(module, data, held_out, how.batch, how.lr, how.run.seed)

    def keep(made: ReaderTask) -> None:
        checkpoints.save({READER: made.module}, work.folder / READER / MODEL, {READER: work.recipe.model})

    return training(READER, how, work.folder / READER, task, keep)


def judge_stage(work: Work, how: JudgeRecipe, most: int) -> Stage:
    """Train the inverse-dynamics network on recordings through the codec."""

    def data() -> tuple[Part, Part]:
        codec, (train, held_out) = work.load_codec(), (recorded(work, part, most) for part in PARTS)
        return through(train, codec, work.recipe.clip), through(held_out, codec, work.recipe.clip)

    return inverse_dynamics.training_stage(how, work.folder / JUDGE, data)


def load_judges(work: Work) -> tuple[InverseDynamics, Reader]:
    """Both, as their stages left them."""
    networks: tuple[Any, Any] = (JudgeConfig(len(vizdoom.ACTIONS)).build(), ReaderConfig().build())
    for network, stage in zip(networks, (JUDGE, READER), strict=True):
        checkpoints.load(network, checkpoints.read(work.folder / stage / MODEL), stage)
        network.to(work.device).eval().requires_grad_(False)
    return networks


def told(data: Captioned, codec: Any, count: int) -> Told:
    """`count` clips, or all where there are fewer, spread evenly over all scenarios, decoded."""
    chosen = evenly(len(data.facts), count)
    video = decode(codec, data.latents_NFCHW[chosen])
    return Told(video, Answers.of([data.facts[index] for index in chosen.tolist()], video.device))


def recorded(work: Work, part: str, most: int) -> Part:
    """Frames of all scenarios, the first ones of each."""
    data, size = work.folder / "data" / part, work.variant.size
    return join([_first(data / scenario, size, work, most) for scenario in work.recipe.scenarios])


def _first(folder: Path, size: tuple[int, int], work: Work, most: int) -> Part:
    part = frames(folder, size, work.device, most)
    return Part(part.frames_NHWC[:most], part.actions_NA[:most], part.episodes_N[:most])


def through(part: Part, codec: Any, length: int) -> Part:
    """A recording as the codec shows it, in clips of `length` frames one after the other; each is an episode."""
    begin = starts(part.episodes_N, length)
    chosen, end = [], 0
    for first in begin.tolist():
        if first >= end:
            chosen.append(first)
            end = first + length
    index_NT = torch.tensor(chosen)[:, None] + torch.arange(length)
    made = []
    for few in index_NT.to(part.frames_NHWC.device).split(DECODED):
        clips_BTCHW = part.frames_NHWC[few].permute(0, 1, 4, 2, 3)
        made.append(decode(codec, codec.encode(clips_BTCHW)).permute(0, 1, 3, 4, 2).flatten(0, 1))
    episodes = torch.arange(len(chosen)).repeat_interleave(length)
    return Part(torch.cat(made), part.actions_NA[index_NT.flatten().to(part.actions_NA.device)], episodes)
