"""The clips of docs/doom.md again: their LPIPS under every schedule is kept, and a recording is the same on every
machine, so what they show can be set against what parallel decoding cost them, without a GPU."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from diagonal.evaluation import attention
from diagonal.evaluation.clips import change, evenly, sharpness
from diagonal.evaluation.rollouts import TURNS, Clips, cut
from diagonal.evaluation.statistics import FloatArray, bootstrap, correlation
from diagonal.generation.load import load
from diagonal.planning.plan import Order
from diagonal.recipes import find
from diagonal.recipes.questions.jobs import Numbers
from diagonal.training.data.recordings import frames
from diagonal.training.tokens.stages import frame_size
from diagonal.worlds import vizdoom

RESULTS = Path("benchmarks") / "results" / "2026-11-15-h200-doom"
RASTER, K1, K2, OVERLAP = "raster", "diagonal:k=1", "diagonal:k=2", "diagonal:k=1,d=12"
COSTS = {  # columns: the stage's LPIPS under an order, minus under raster
    "raster's weights, k=1": ("base", K1),
    "raster's weights, k=2": ("base", K2),
    "raster's weights, k=1,d=12": ("base", OVERLAP),
    "shipped, k=1": ("diagonal", K1),
    "shipped, k=1,d=12": ("diagonal", OVERLAP),
}
MISSED = {  # attention that an order misses, and what it may explain
    "k=1": ("raster's weights, k=1", "shipped, k=1"),
    "k=1,d=12": ("raster's weights, k=1,d=12", "shipped, k=1,d=12"),
}
EQUAL_THEN, SAME = 1e-6, 1e-3


def measure(folder: Path, workers: int, results: Path = RESULTS) -> Numbers:
    """What each clip shows, and what each schedule cost it."""
    kept = {stage: _read(results, stage) for stage in ("references", "base", "diagonal")}
    about, recipe = kept["base"], find("doom")
    held_out = recipe.held_out_frames
    planned = vizdoom.shards(recipe.scenario, held_out, recipe.held_out_seed, folder / "data", recipe.held_out_episode)
    for _ in vizdoom.record(planned, workers):
        pass
    clips = _clips(folder, about)
    _check(clips, kept["references"])
    numbers: Numbers = {
        "motion": [float(change(one[None]).mean()) for one in clips.frames],
        "sharpness": [float(sharpness(one).mean()) for one in clips.true],
        "turning": (TURNS[clips.actions[:, clips.context - 1 :]] != 0).double().mean(1).tolist(),
    }
    values = {
        (stage, row["schedule"]): np.array(row["lpips_of_clips"])
        for stage in ("base", "diagonal")
        for row in kept[stage]["rows"]
    }
    return numbers | {
        name: (values[stage, order] - values[stage, RASTER]).tolist() for name, (stage, order) in COSTS.items()
    }


def attended(folder: Path, count: int, results: Path = RESULTS) -> Numbers:
    """The share of the shipped world's attention, in the last frame of `count` of these clips, on what each schedule
    has not decoded yet; `folder` holds the recording."""
    about, world = _read(results, "diagonal"), load("doom")
    clips, orders = _clips(folder, about), [Order.of(spec) for spec in (K1, OVERLAP)]
    chosen = evenly(len(clips.frames), count).tolist()
    units = (
        attention.units(
            world,
            clips.frames[index].permute(0, 2, 3, 1).numpy(),
            [vizdoom.ACTIONS[action] for action in clips.actions[index].tolist()],
        )
        for index in chosen
    )
    found = attention.measure(world, units, clips.frames.shape[1] - 1, about["context"], orders)
    missed = {
        name: found.orders[str(order)]["missed"].mean(1).tolist() for name, order in zip(MISSED, orders, strict=True)
    }
    return {"clips": chosen} | missed


def _clips(folder: Path, about: Any) -> Clips:
    part = frames(folder / "data", frame_size(find("doom")), "cpu")
    return cut(part, about["clips"], about["context"], about["frames"])


def _read(results: Path, stage: str) -> Any:
    path = results / f"{stage}.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is needed, with the LPIPS of each clip: run this from the project's folder")
    return json.loads(path.read_text())


def _check(clips: Clips, references: Any) -> None:
    """Refuse clips that are not those that were measured: a picture that stands still is as far from them, to all
    digits that were kept. Equal frames counted 108.13 decibels on that day."""
    still = clips.frames[:, clips.context - 1 : clips.context].expand_as(clips.true).float()
    error = (still - clips.true).square().flatten(2).mean(-1).clamp(min=EQUAL_THEN)
    found = asdict(bootstrap((10 * (255**2 / error).log10()).double().mean(1)[:, None].numpy()))
    then = next(row for row in references["rows"] if row["schedule"] == "last frame repeated")["psnr"]
    if any(abs(found[name] - then[name]) > SAME for name in then):
        raise ValueError(f"these are not the clips of {RESULTS}: {found} decibels from a still picture, not {then}")


def rows(numbers: Numbers, seen: Numbers | None) -> list[Numbers]:
    """Thirds of the clips by what they show, and correlations of that, and of attention, with what schedules cost."""
    values = {name: np.array(one) for name, one in numbers.items()}
    shown = [_row("all clips of docs/doom.md", values, np.arange(len(values["motion"])))]
    ends = {"motion": ("still", "fast"), "sharpness": ("plain", "textured"), "turning": ("straight", "turning")}
    for name, (low, high) in ends.items():
        order = np.argsort(values[name], kind="stable")
        third = len(order) // 3
        shown += [
            _row(f"the {low} third of them", values, order[:third]),
            _row(f"the {high} third", values, order[-third:]),
        ]
    for name in ends:
        row: Numbers = {"content": f"rank correlation with {name}"}
        shown.append(row | {cost: correlation(values[cost], values[name]) for cost in COSTS})
    if seen is not None:
        few = np.array(seen["clips"])
        for name, costs in MISSED.items():
            row = {"content": f"rank correlation with attention that {name} misses", "clips": len(few)}
            shown.append(row | {cost: correlation(values[cost][few], np.array(seen[name])) for cost in costs})
    return shown


def _row(label: str, values: dict[str, FloatArray], where: Any) -> Numbers:
    row: Numbers = {"content": label, "clips": len(where), "motion": float(values["motion"][where].mean())}
    row["sharpness"] = float(values["sharpness"][where].mean())
    return row | {name: bootstrap(values[name][where][:, None]) for name in COSTS}
