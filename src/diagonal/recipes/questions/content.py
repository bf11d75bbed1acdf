"""Question 4: what content is hard to decode in parallel, and does attention predict it?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from diagonal import checkpoints
from diagonal.evaluation import attention, report
from diagonal.evaluation.clips import change, sharpness
from diagonal.evaluation.rollouts import Judges, cut
from diagonal.evaluation.statistics import FloatArray, Interval, bootstrap, correlation
from diagonal.evaluation.sweep import load_judge
from diagonal.generation.load import load
from diagonal.generation.world import World
from diagonal.networks import lpips
from diagonal.planning.plan import Order, make_plan
from diagonal.recipes import find, find_video
from diagonal.recipes.questions import measured_clips
from diagonal.recipes.questions.jobs import Job, Numbers, Setting
from diagonal.training.data.recordings import frames, tokenize
from diagonal.training.tokens.stages import frame_size
from diagonal.training.tokens.world import held_out_windows, lesson, mean_nats
from diagonal.worlds import vizdoom
from diagonal.worlds.recordings import Part

RASTER, FAST = "raster", "diagonal:k=1"
EPISODE = 48  # frames, so that a clip each comes from many places
AGAIN, ATTENDED = "clips-of-docs-doom", "attention-of-these-clips"
ATTENDED_CLIPS = 64


@dataclass(frozen=True, slots=True)
class Size:
    """Of each scenario."""

    clips: int
    seeds: int
    scenarios: int
    minutes: float
    frames: int = 12
    context: int = 4


SIZES = {"smoke": Size(2, 1, 1, 0.2, frames=1, context=2), "cpu": Size(8, 1, 8, 3.0), "full": Size(64, 3, 8, 1.0)}


@dataclass(frozen=True)
class Content:
    """The shipped world on the scenarios of the captioned recordings: what k=1 costs each clip, over raster."""

    setting: Setting
    asked = "What content is hard to decode in parallel, and does attention predict it?"

    @property
    def size(self) -> Size:
        return SIZES[self.setting.size]

    @property
    def scenarios(self) -> tuple[str, ...]:
        return find_video("doom_t2v").scenarios[: self.size.scenarios]

    def jobs(self) -> list[Job]:
        made = [Job(name, self.size.minutes, self._job(name)) for name in self.scenarios]
        return made if self.setting.size == "smoke" else [self._again, self._attended, *made]

    @property
    def _again(self) -> Job:
        return Job(AGAIN, 3.0, lambda folder: measured_clips.measure(folder, self.setting.workers))

    @property
    def _attended(self) -> Job:
        recorded = self._again.folder(self.setting.work)
        return Job(ATTENDED, 4.0, lambda _: measured_clips.attended(recorded, ATTENDED_CLIPS), (AGAIN,))

    def rows(self) -> list[Numbers]:
        """The clips of docs/doom.md by what they show; then scenarios, all their clips by motion and by texture, and
        correlations."""
        found = {job.name: job.result(self.setting.work) for job in self.jobs()}
        again, seen = found.pop(AGAIN, None), found.pop(ATTENDED, None)
        rows = [] if again is None else measured_clips.rows(again, seen)
        done = {name: _arrays(result) for name, result in found.items() if result is not None}
        rows += [_row(name, one, slice(None)) for name, one in done.items()]
        if len(done) < 2:
            return rows
        whole = {name: np.concatenate([one[name] for one in done.values()]) for name in next(iter(done.values()))}
        rows += [_row(label, whole, where) for label, where in _thirds(whole).items()]
        gap = _gap(whole)
        for name in ("missed", "motion", "sharpness", "nats"):
            rows.append(
                {"content": f"correlation of the gap in nats with {name}", "gap in nats": correlation(gap, whole[name])}
            )
        return rows

    def _job(self, scenario: str) -> Any:
        return lambda folder: self._measure(scenario, folder)

    def _measure(self, scenario: str, folder: Path) -> Numbers:
        size, setting, world = self.size, self.setting, load("doom", device=self.setting.device)
        length = size.context + size.frames
        part = self._record(scenario, folder)
        clips = cut(part, size.clips, size.context, size.frames)
        windows = held_out_windows(tokenize(part, world.tokenizer, world.variant.config.codebook), length, size.clips)
        numbers: Numbers = {
            "motion": change(clips.frames).mean(1).tolist(),
            "sharpness": sharpness(clips.frames).mean(1).tolist(),
            "missed": _missed(world, windows, length, size.context),
        }
        for name, spec in (("nats", RASTER), ("nats k=1", FAST)):
            taught = lesson(make_plan(world.layout(length), spec, known=size.context), windows.device, use_flex=False)
            numbers[name] = [mean_nats(world.model, one, taught, 1) for one in windows.split(1)]
        perceptual = None if setting.lpips is None else lpips.load(setting.lpips, setting.device)
        judges = Judges(load_judge(checkpoints.ASSETS / "judge", setting.device), perceptual)
        bound = next(report.references(world, clips, judges)).numbers
        if perceptual is not None:
            numbers["lpips of the tokenizer"] = bound["lpips_values"].mean(-1).tolist()
        for name, spec in (("lpips", RASTER), ("lpips k=1", FAST)):
            made = report.row(scenario, world, Order.of(spec), clips, judges, size.seeds).numbers
            if perceptual is not None:
                numbers[name] = made["lpips_values"].mean(-1).tolist()
        return numbers

    def _record(self, scenario: str, folder: Path) -> Part:
        size, seed = self.size, find("doom").held_out_seed
        planned = vizdoom.shards(scenario, 2 * size.clips * EPISODE, seed, folder / "data", EPISODE, captions=True)
        for _ in vizdoom.record(planned, self.setting.workers):
            pass
        return frames(folder / "data", frame_size(find("doom")), self.setting.device)


def _missed(world: World, windows_NL: Tensor, length: int, known: int) -> list[float]:
    """The share of attention, in the last frame of each sequence, on what k=1 has not decoded."""
    units = windows_NL.unflatten(1, (length, world.layout(1).unit))
    found = attention.measure(world, list(units), length - 1, known, [Order.of(FAST)])
    return [float(one) for one in found.orders[FAST]["missed"].mean(1)]


def _arrays(result: Numbers) -> dict[str, FloatArray]:
    return {name: np.array(values) for name, values in result.items()}


def _gap(numbers: dict[str, FloatArray]) -> FloatArray:
    return numbers["nats k=1"] - numbers["nats"]


def _row(label: str, numbers: dict[str, FloatArray], where: Any) -> Numbers:
    chosen = {name: values[where] for name, values in numbers.items()}
    row: Numbers = {"content": label, "clips": len(chosen["nats"]), "motion": float(chosen["motion"].mean())}
    row |= {"sharpness": float(chosen["sharpness"].mean()), "missed": _mean(chosen["missed"])}
    row |= {"nats": _mean(chosen["nats"]), "gap in nats": _mean(_gap(chosen))}
    for name in ("lpips of the tokenizer", "lpips"):
        if name in chosen:
            row[name] = _mean(chosen[name])
    if "lpips" in chosen:
        row["gap in lpips"] = _mean(chosen["lpips k=1"] - chosen["lpips"])
    return row


def _thirds(numbers: dict[str, FloatArray]) -> dict[str, Any]:
    """Clips that are stillest and fastest, plainest and most textured: a third each."""
    found: dict[str, Any] = {}
    for name, low, high in (("motion", "still third", "fast third"), ("sharpness", "plain third", "textured third")):
        order = np.argsort(numbers[name], kind="stable")
        third = len(order) // 3
        found |= {low: order[:third], high: order[-third:]}
    return found


def _mean(values: FloatArray) -> Interval:
    return bootstrap(values[:, None])
