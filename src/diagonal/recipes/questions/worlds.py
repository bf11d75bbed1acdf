"""Questions that train worlds and compare them: a table of runs, and of the orders under which each is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from diagonal import checkpoints
from diagonal.evaluation import report
from diagonal.evaluation.rollouts import Clips, Judges, cut
from diagonal.evaluation.statistics import Interval, bootstrap
from diagonal.evaluation.sweep import load_judge
from diagonal.generation.load import load
from diagonal.generation.world import World
from diagonal.media.files import atomic
from diagonal.networks import lpips
from diagonal.planning.plan import Order, make_plan
from diagonal.recipes import find
from diagonal.recipes.questions.jobs import Job, Numbers, Setting
from diagonal.training.data.recordings import TokenData, frames
from diagonal.training.recipe import WorldRecipe
from diagonal.training.stages import MODEL, last_line, run, training
from diagonal.training.tokens.stages import frame_size, keep_world, tokens, world_task
from diagonal.training.tokens.world import held_out_windows, lesson, mean_nats
from diagonal.worlds import vizdoom

SHIPPED = "shipped"  # the package's own weights, as a start or to be measured
DATA = "data"
SHIPPED_FILES = checkpoints.ASSETS / "doom"
HELD_OUT = 220  # frames of a held-out episode


@dataclass(frozen=True, slots=True)
class Run:
    """A world that is trained. Runs of one label differ in their seeds alone, and are one row."""

    label: str
    model: str
    how: WorldRecipe
    minutes: float
    start: str = ""  # the label of the run whose weights it begins with (of the same seed, if that has it), or SHIPPED


@dataclass(frozen=True, slots=True)
class Size:
    """How much is recorded and measured."""

    frames: int  # recorded for training
    held_out: int
    sequences: int  # whose nats are measured
    clips: int  # that are generated; 0: nats alone
    clip_frames: int = 12
    context: int = 4
    seeds: int = 3  # of each clip
    minutes: float = 1.0  # that measuring one run takes


@dataclass(frozen=True, slots=True)
class Table:
    """What is trained and what is measured: of each label, the orders. Differences are to the first row."""

    asked: str
    runs: tuple[Run, ...]
    measured: Mapping[str, tuple[str, ...]]
    sizes: Size
    finish: Callable[[list[Numbers]], list[Numbers]] = list  # what else follows from the rows


@dataclass(frozen=True)
class Worlds:
    """A table of worlds, at work."""

    setting: Setting
    table: Table

    @property
    def asked(self) -> str:
        return self.table.asked

    def jobs(self) -> list[Job]:
        sizes = self.table.sizes
        made = [Job(DATA, sizes.frames / 40_000 + 0.5, self._record)]
        made += [self._training(one) for one in self.table.runs]
        return made + [self._measuring(name) for name in self._names()]

    def rows(self) -> list[Numbers]:
        """A row for each label and order; several training seeds are measured as one."""
        found: list[Numbers] = []
        first: Numbers | None = None
        for label, orders in self.table.measured.items():
            results = [self._measuring(name).result(self.setting.work) for name in self._names(label)]
            done = [result for result in results if result is not None]
            for order in orders if done else ():
                joined = _joined([result["orders"][order] for result in done])
                first = first or joined
                row: Numbers = {"trained": label, "schedule": order, "parameters": done[0]["parameters"]}
                row |= {"training seeds": len(done), "steps": done[0]["steps"]} | _shown(joined, first)
                found.append(row)
        return self.table.finish(found)

    def _names(self, label: str | None = None) -> list[str]:
        """Runs that are measured, by name: of one label, or of all."""
        wanted = self.table.measured if label is None else (label,)
        named = [name_of(one) for one in self.table.runs if one.label in wanted]
        return [SHIPPED, *named] if SHIPPED in wanted else named

    def _run(self, name: str) -> Run:
        return next(one for one in self.table.runs if name_of(one) == name)

    def _start(self, one: Run) -> str:
        """The name of the run whose weights it begins with."""
        named = [name_of(other) for other in self.table.runs if other.label == one.start]
        same = f"{slug(one.start)}-{one.how.run.seed}"
        return same if same in named else named[0]

    def _training(self, one: Run) -> Job:
        needs = (DATA,) if one.start in ("", SHIPPED) else (DATA, self._start(one))
        return Job(name_of(one), one.minutes, lambda folder: self._train(one, folder), needs)

    def _measuring(self, name: str) -> Job:
        needs = (DATA,) if name == SHIPPED else (DATA, name)
        return Job(f"measure-{name}", self.table.sizes.minutes, lambda _: self._measure(name), needs)

    def _folder(self, name: str) -> Path:
        return self.setting.work / "jobs" / name

    def _record(self, folder: Path) -> Numbers:
        """Recordings, as tokens of the shipped tokenizer; held-out frames stay for rollouts."""
        sizes, recipe = self.table.sizes, find("doom")
        parts = {"train": (sizes.frames, recipe.seed, vizdoom.EPISODE)}
        parts["held-out"] = (sizes.held_out, recipe.held_out_seed, HELD_OUT)
        for part, (count, seed, episode) in parts.items():
            planned = vizdoom.shards(recipe.scenario, count, seed, folder / part, episode)
            for _ in vizdoom.record(planned, self.setting.workers):
                pass
            made = tokens(recipe, _tokenizer(folder), folder / part, self.setting.device)
            content = {"units": made.units_NU.cpu().short(), "episodes": made.episodes_N.cpu()}
            with atomic(folder / f"{part}.safetensors") as temporary:
                checkpoints.save_tensors(content, temporary)
        return {"frames": sizes.frames, "held_out": sizes.held_out}

    def _train(self, one: Run, folder: Path) -> Numbers:
        start = None if not one.start else self._folder(self._start(one)) / MODEL if one.start != SHIPPED else None
        data = (self._tokens("train"), self._tokens("held-out"))

        def task() -> Any:
            if one.start == SHIPPED:
                return world_task(one.how, one.model, data, SHIPPED_FILES)
            return world_task(one.how, one.model, data, start)

        stage = training(one.label, one.how, folder, task, lambda made: keep_world(one.how, one.model, made, folder))
        for _ in run([stage]):
            pass
        return last_line(folder)

    def _measure(self, name: str) -> Numbers:
        world = self._world(name)
        label = SHIPPED if name == SHIPPED else self._run(name).label
        steps = 0 if name == SHIPPED else self._run(name).how.run.steps
        orders = self.table.measured[label]
        found = {order: {"nats": self._nats(world, order)} for order in orders}
        if self.setting.device != "cpu":
            world.model.to(torch.bfloat16)
        for order in orders if self.table.sizes.clips else ():
            row = report.row(label, world, Order.of(order), self._clips, self._judges, self.table.sizes.seeds)
            found[order] |= _kept(row.numbers)
        parameters = sum(one.numel() for one in world.model.parameters())
        return {"parameters": parameters, "steps": steps, "orders": found}

    def _world(self, name: str) -> World:
        model = self._run(name).model if name != SHIPPED else self._shipped_model()
        weights = SHIPPED_FILES if name == SHIPPED else self._folder(name) / MODEL
        tokenizer = None if name == SHIPPED else _tokenizer(self._folder(DATA)) / MODEL
        return load(model, weights=weights, tokenizer=tokenizer, device=self.setting.device)

    def _shipped_model(self) -> str:
        """The shipped weights in the window of the runs that begin with them."""
        return next((one.model for one in self.table.runs if one.start == SHIPPED), "doom")

    def _nats(self, world: World, order: str) -> list[float]:
        """Nats per token of each held-out sequence (on a GPU with bfloat16 autocast)."""
        config = world.variant.config
        windows = held_out_windows(self._tokens("held-out"), config.frames, self.table.sizes.sequences)
        taught = lesson(make_plan(world.layout(config.frames), order, known=1), windows.device, use_flex=False)
        with torch.autocast(windows.device.type, torch.bfloat16, enabled=windows.is_cuda):
            return [mean_nats(world.model, one, taught, 1) for one in windows.split(1)]

    def _tokens(self, part: str) -> TokenData:
        found = load_file(self._folder(DATA) / f"{part}.safetensors", device=self.setting.device)
        return TokenData(found["units"].int(), found["episodes"])

    @cached_property
    def _judges(self) -> Judges:
        setting = self.setting
        perceptual = None if setting.lpips is None else lpips.load(setting.lpips, setting.device)
        return Judges(load_judge(checkpoints.ASSETS / "judge", setting.device), perceptual)

    @cached_property
    def _clips(self) -> Clips:
        sizes = self.table.sizes
        part = frames(self._folder(DATA) / "held-out", frame_size(find("doom")), self.setting.device)
        return cut(part, sizes.clips, sizes.context, sizes.clip_frames)


def _tokenizer(data: Path) -> Path:
    """A folder with the shipped tokenizer alone, as stages take it."""
    folder = data / "tokenizer"
    if not (folder / MODEL).exists():
        folder.mkdir(parents=True, exist_ok=True)
        state = checkpoints.read(SHIPPED_FILES / "tokenizer.safetensors")
        with atomic(folder / MODEL) as temporary:
            checkpoints.save_tensors(state, temporary)
    return folder


def slug(label: str) -> str:
    """A label as a name of files."""
    return "".join(one if one.isalnum() else "-" for one in label.lower()).strip("-")


def name_of(one: Run) -> str:
    """A run's name: its label and its seed."""
    return f"{slug(one.label)}-{one.how.run.seed}"


VALUES = ("nats", "lpips", "psnr")  # kept of every sequence or clip, so that differences are paired
SHARES = {"frechet_idm": "frechet_idm", "turns_obeyed": "turns obeyed", "steps": "calls"}


def _kept(numbers: Mapping[str, Any]) -> Numbers:
    """What a file keeps of a row: values of every clip (means over its seeds), and the rest as it is shown."""
    kept = {name: report.plain({name: numbers[name]})[name] for name in SHARES if name in numbers}
    for name in VALUES:
        if f"{name}_values" in numbers:
            kept[name] = [float(value) for value in numbers[f"{name}_values"].mean(-1)]
    return kept


def _joined(results: Sequence[Numbers]) -> Numbers:
    """Values (sequences, training seeds) of runs of one label; the rest of the first of them."""
    joined = dict(results[0])
    for name in VALUES:
        if name in joined:
            joined[name] = np.stack([result[name] for result in results], axis=1)
    return joined


def _shown(joined: Numbers, first: Numbers) -> Numbers:
    """Means with intervals over clips and training seeds, and what differs from the first row, paired."""
    row: Numbers = {}
    for name in VALUES:
        if name in joined:
            row[name] = bootstrap(joined[name])
            if name != "psnr" and joined is not first and name in first:
                row[f"{name} minus first row"] = bootstrap(joined[name] - first[name].mean(1, keepdims=True))
    for name, shown in SHARES.items():
        if name in joined:
            value = joined[name]
            row[shown] = Interval(**value) if isinstance(value, dict) else value
    return row


def fitted(rows: list[Numbers]) -> list[Numbers]:
    """Beside each row, its nats minus raster's of the same world; then the power of the parameters that fits each
    schedule's gaps best: gap = a * parameters^-b."""
    base = {(row["trained"]): row["nats"].mean for row in rows if row["schedule"] == "raster"}
    for row in rows:
        row["gap in nats"] = row["nats"].mean - base[row["trained"]]
    for order, tuned in product(dict.fromkeys(row["schedule"] for row in rows), (False, True)):
        same = [row for row in rows if row["schedule"] == order and ("+" in row["trained"]) == tuned]
        points = [(row["parameters"], row["gap in nats"]) for row in same if row["gap in nats"] > 0]
        if len(points) > 2:
            size, gap = np.log(np.array(points, dtype=np.float64)).T
            power, scale = np.polyfit(size, gap, 1)
            where = "after 1k steps" if tuned else "without training"
            curve = f"{math.exp(scale):.3g} * parameters^{power:.2f}"
            rows.append({"trained": f"fitted, {where}", "schedule": order, "gap in nats": curve})
    return rows


def seeded(one: Run, seeds: Sequence[int]) -> tuple[Run, ...]:
    """The same run with several seeds."""
    return tuple(replace(one, how=replace(one.how, run=replace(one.how.run, seed=seed))) for seed in seeds)
