"""Question 3: how do errors grow over hundreds of frames, under each schedule, rolled or refilled?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from diagonal import checkpoints
from diagonal.evaluation import long_rollouts
from diagonal.evaluation.long_rollouts import Curves, Limits
from diagonal.evaluation.rollouts import Clips, Judges, cut
from diagonal.evaluation.sweep import load_judge
from diagonal.generation.load import load
from diagonal.media.files import atomic
from diagonal.networks import lpips
from diagonal.planning.plan import Order
from diagonal.recipes import find
from diagonal.recipes.questions.jobs import Job, Numbers, Setting
from diagonal.training.data.recordings import frames
from diagonal.training.tokens.stages import frame_size
from diagonal.worlds import vizdoom

CURVES, LIMITS = "curves.safetensors", "limits"
LASTING = 0.5  # of the frames that are recorded lie in episodes that last to the end, at least


@dataclass(frozen=True, slots=True)
class Size:
    """How much is played."""

    starts: int
    at_once: int  # seats of an arena
    frames: int
    settings: tuple[tuple[str, str], ...]  # schedule, context
    minutes: float  # of one job, predicted
    context: int = 4  # true frames that are given


CHEAP = (("diagonal:k=1", "roll"), ("diagonal:k=1", "refill"), ("raster", "roll"), ("diagonal:k=2", "roll"))
ALL = (*CHEAP, ("diagonal:k=2", "refill"), ("raster", "refill"), ("lossless", "roll"))
SIZES = {
    "smoke": Size(2, 2, 5, CHEAP[:2], 0.1),
    "cpu": Size(32, 8, 200, CHEAP, 6.0),
    "full": Size(256, 128, 500, ALL, 1.5),
}


@dataclass(frozen=True)
class LongRollouts:
    """The shipped world along true actions. Starts are played a few at a time; a row is of those that are done."""

    setting: Setting
    asked = "How do errors grow past 100 frames, and is a rolled context as good as a refilled one?"

    @property
    def size(self) -> Size:
        return SIZES[self.setting.size]

    def jobs(self) -> list[Job]:
        size = self.size
        made = [Job(LIMITS, size.minutes / 4, self._limits)]
        for part in range(0, size.starts, size.at_once):
            for schedule, context in size.settings:
                made.append(self._job(schedule, context, part))
        return made

    def rows(self) -> list[Numbers]:
        """A row a setting, of the starts that it has played; what differs from the first row is of those that both
        have, paired by start."""
        known = self.jobs()[0].result(self.setting.work)
        if known is None:
            return []
        limit = Limits(torch.tensor(known["jump"]), known["sharpness"], known["lost"])
        early = min(long_rollouts.EARLY, self.size.frames // 2)
        rows, first = list[Numbers](), dict[int, Curves]()
        for schedule, context in self.size.settings:
            parts = self._parts(schedule, context)
            if not parts:
                continue
            calls = [(self._job(schedule, context, part).result(self.setting.work) or {})["calls"] for part in parts]
            row: Numbers = {"schedule": schedule, "context": context, "calls a frame": sum(calls) / len(calls)}
            row |= long_rollouts.summarise(long_rollouts.join(list(parts.values())), limit, early)
            both = sorted(parts.keys() & first.keys())
            if both and limit.lost is not None:
                own, other = (long_rollouts.join([one[part] for part in both]) for one in (parts, first))
                row["lpips minus first row"] = long_rollouts.difference(own, other, "lpips")
            first = first or parts
            rows.append(row)
        return rows

    def _parts(self, schedule: str, context: str) -> dict[int, Curves]:
        """The curves of the starts that a setting has played, by the number of the first start."""
        work, found = self.setting.work, dict[int, Curves]()
        for part in range(0, self.size.starts, self.size.at_once):
            job = self._job(schedule, context, part)
            if job.result(work) is not None:
                found[part] = load_file(job.folder(work) / CURVES)
        return found

    def _job(self, schedule: str, context: str, part: int) -> Job:
        name = f"{schedule}-{context}-{part}".replace(":", "-")
        return Job(name, self.size.minutes, lambda folder: self._play(schedule, context, part, folder), (LIMITS,))

    def _play(self, schedule: str, context: str, part: int, folder: Path) -> Numbers:
        size, clips = self.size, self._clips
        few = slice(part, part + size.at_once)
        chosen = replace(clips, frames=clips.frames[few], actions=clips.actions[few])
        world = load("doom", device=self.setting.device)
        if self.setting.device != "cpu":
            world.model.to(torch.bfloat16)  # as it is played there
        played = long_rollouts.play(world, chosen, Order.of(schedule), context, first_seed=part)
        with atomic(folder / CURVES) as temporary:
            save_file(long_rollouts.look(chosen, played.videos, self._judges), temporary)
        return {"calls": played.calls, "seconds": played.seconds}

    def _limits(self, _: Path) -> Numbers:
        found = long_rollouts.limits(self._clips, self._judges)
        return {"jump": found.jump_A.tolist(), "sharpness": found.sharpness, "lost": found.lost}

    @cached_property
    def _judges(self) -> Judges:
        setting = self.setting
        perceptual = None if setting.lpips is None else lpips.load(setting.lpips, setting.device)
        return Judges(load_judge(checkpoints.ASSETS / "judge", setting.device), perceptual)

    @cached_property
    def _clips(self) -> Clips:
        """An episode each: recorded episodes are as long as a clip, so every one that lasts has one place for it."""
        size, setting = self.size, self.setting
        length = size.context + size.frames
        count = round(size.starts * length / LASTING) + length
        seed, folder = find("doom").held_out_seed, setting.work / "data" / f"episodes-{length}"
        for _ in vizdoom.record(vizdoom.shards("my_way_home", count, seed, folder, length), setting.workers):
            pass
        return cut(frames(folder, frame_size(find("doom")), setting.device), size.starts, size.context, size.frames)
