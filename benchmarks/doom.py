"""Every number of docs/doom.md, in one command:

    python benchmarks/doom.py RUN --lpips alex.safetensors --device cuda --out benchmarks/results/NAME

RUN is the folder of `diagonal train all --recipe doom --out RUN`: held-out recording, tokenizer, base, fine-tuned and
diagonal world, judge. Each stage's numbers go to `<stage>.json` row by row; `--stages` measures some of them, and
`--tables` prints the tables of a folder without measuring anything.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diagonal import load
from diagonal.evaluation import report, rollouts
from diagonal.evaluation.report import Row
from diagonal.evaluation.rollouts import Clips, Judges
from diagonal.evaluation.statistics import bootstrap
from diagonal.evaluation.sweep import load_judge
from diagonal.generation.world import World
from diagonal.media.files import atomic
from diagonal.media.video import write_picture
from diagonal.networks import lpips
from diagonal.networks.inverse_dynamics import judge
from diagonal.planning.decoding import parse
from diagonal.planning.plan import Order, StandIn, make_plan
from diagonal.recipes import find
from diagonal.training.data import recordings as data
from diagonal.training.recipe import Recipe
from diagonal.training.tokens import stages
from diagonal.training.tokens.world import held_out_windows, lesson, mean_nats
from diagonal.worlds.recordings import Part

RASTER, K1, K2, WINDOW, OVERLAP = "raster", "diagonal:k=1", "diagonal:k=2", "window:s=4", "diagonal:k=1,d=12"
LONG = "long"  # the name of the long rollouts' file
NAMES = {
    "references": "",
    "base": "raster training only",
    "finetune": "+ 1,000 steps of k=1",
    "diagonal": "+ diagonal training (shipped)",
}
ABOVE, PROMPT = Order(parse(K1), StandIn.ABOVE), Order(parse(K1), StandIn.PROMPT_FRAME)
NO_REFEED = Order(parse(K1), refeed=False)
ROWS: dict[str, list[Order]] = {
    "base": [*map(Order.of, (RASTER, K1, K2, WINDOW)), ABOVE, PROMPT, NO_REFEED, Order.of(OVERLAP)],
    "finetune": [Order.of(K1), Order.of(RASTER)],
    "diagonal": [*map(Order.of, (RASTER, K1, K2, OVERLAP, WINDOW)), ABOVE, NO_REFEED],
}
DIFFERENCES = [  # LPIPS of the first (stage, schedule) minus that of the second
    (("base", K2), ("base", RASTER)),
    (("base", K1), ("base", RASTER)),
    (("base", WINDOW), ("base", RASTER)),
    (("base", str(ABOVE)), ("base", K1)),
    (("base", str(PROMPT)), ("base", K1)),
    (("base", str(NO_REFEED)), ("base", K1)),
    (("finetune", K1), ("base", RASTER)),
    (("diagonal", K1), ("diagonal", RASTER)),
    (("diagonal", K2), ("diagonal", RASTER)),
    (("diagonal", OVERLAP), ("diagonal", RASTER)),
]


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    clips: int = 256
    seeds: int = 3
    context: int = 4
    frames: int = 12
    long_frames: int = 200
    sequences: int = 512  # for the nats


@dataclass(frozen=True)
class Bench:
    """What the stages share."""

    recipe: Recipe
    run: Path
    device: str
    out: Path
    sizes: Sizes
    part: Part  # the held-out recording
    judges: Judges

    @property
    def about(self) -> dict[str, Any]:
        gpu = torch.cuda.get_device_name() if self.device != "cpu" else "cpu"
        return {"device": gpu, "torch": torch.__version__} | asdict(self.sizes)

    def world(self, stage: str) -> World:
        """A stage's world; on a GPU the transformer runs in bfloat16, the tokenizer stays in float32."""
        tokenizer = self.run / "tokenizer"
        return load(self.recipe.model, weights=self.run / stage, tokenizer=tokenizer, device=self.device)

    def clips(self, frames: int) -> Clips:
        return rollouts.cut(self.part, self.sizes.clips, self.sizes.context, frames)

    def save(self, name: str, content: dict[str, Any]) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        with atomic(self.out / f"{name}.json") as temporary:
            temporary.write_text(report.as_json(self.about | content))


def say(text: str, began: float = time.perf_counter()) -> None:
    sys.stderr.write(f"[{time.perf_counter() - began:6.1f} s] {text}\n")


def nats(bench: Bench, world: World) -> dict[str, float]:
    """Nats per token of held-out sequences under every mask (on a GPU with bfloat16 autocast)."""
    config = world.variant.config
    tokens = data.tokenize(bench.part, world.tokenizer, config.codebook)
    windows = held_out_windows(tokens, config.frames, bench.sizes.sequences)
    result = {}
    for spec in (RASTER, K2, K1):
        taught = lesson(make_plan(world.layout(config.frames), spec, known=1), windows.device, use_flex=False)
        with torch.autocast(windows.device.type, torch.bfloat16, enabled=windows.is_cuda):
            result[spec] = mean_nats(world.model, windows, taught, 16)
    return result


def measure_stage(bench: Bench, stage: str) -> None:
    """Nats, then row after row; each is saved as soon as it is there."""
    world, clips = bench.world(stage), bench.clips(bench.sizes.frames)
    content: dict[str, Any] = {"nats": nats(bench, world), "rows": []}
    say(f"{stage}: {content['nats']}")
    if bench.device != "cpu":
        world.model.to(torch.bfloat16)
    for order in ROWS[stage]:
        row = report.row(NAMES[stage], world, order, clips, bench.judges, bench.sizes.seeds)
        content["rows"].append(as_plain(row))
        bench.save(stage, content)
        shown = {name: str(row.numbers[name]) for name in report.COLUMNS if name in row.numbers}
        say(f"{stage}, {order}: {shown}, {row.numbers['seconds']:.1f} s")


def as_plain(row: Row) -> dict[str, Any]:
    """A row for JSON, with each clip's LPIPS (mean over seeds): differences are paired by clip."""
    numbers = {"schedule": row.schedule or row.label} | report.plain(row.numbers)
    if "lpips_values" in row.numbers:
        numbers["lpips_of_clips"] = [round(float(value), 5) for value in row.numbers["lpips_values"].mean(-1)]
    return numbers


def measure_references(bench: Bench) -> None:
    """The bounds: true frames through the tokenizer, a still picture, and what the judge makes of true frames."""
    clips = bench.clips(bench.sizes.frames)
    seen, _ = judge(bench.judges.idm, clips.frames[:, clips.context - 1 :])
    true = rollouts.obeyed(seen[:, None], clips.actions[:, None, clips.context - 1 :])
    rows = [as_plain(row) for row in report.references(bench.world("diagonal"), clips, bench.judges)]
    bench.save("references", {"rows": [*rows, {"schedule": "true frames"} | report.plain(true)]})


def measure_long(bench: Bench) -> None:
    """Rollouts of hundreds of frames along real actions: do they stay sound, and how long do they stay on the spot?"""
    world, clips = bench.world("diagonal"), bench.clips(bench.sizes.long_frames)
    if bench.device != "cpu":
        world.model.to(torch.bfloat16)
    made = rollouts.roll(world, clips, Order.of(K1), world.variant.sampling, seeds=1)
    say(f"long rollouts: {made.steps} steps, {made.seconds:.1f} s")
    videos = made.videos[:, 0]
    write_picture(bench.out / f"{LONG}.png", strips(clips, videos, 8))
    numbers = rollouts.stability(clips, videos) | rollouts.measure(clips, made, bench.judges)
    if bench.judges.lpips is not None:
        lost = rollouts.frames_until_lost(clips, videos, bench.judges.lpips)
        numbers["frames_until_lost"] = {str(share): float(np.quantile(lost, share)) for share in (0.25, 0.5, 0.75)}
    bench.save(LONG, report.plain(numbers))
    say(str({key: str(value) for key, value in numbers.items() if "by_frame" not in key and "values" not in key}))


def strips(clips: Clips, videos: Tensor, count: int, pictures: int = 12) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """True frames of a few long clips, each above the generated ones."""
    chosen = np.linspace(0, len(videos) - 1, count).astype(int)
    times = np.unique(np.geomspace(1, videos.shape[1], pictures).astype(int)) - 1
    rows = [torch.cat(list(video[times].cpu()), -1) for index in chosen for video in (clips.true[index], videos[index])]
    return torch.cat(rows, -2).permute(1, 2, 0).numpy()


def tables(folder: Path) -> str:
    """The tables of docs/doom.md as Markdown, from the stages' files."""
    found = {name: json.loads((folder / f"{name}.json").read_text()) for name in NAMES}
    names = [name for name in report.COLUMNS if name in found["base"]["rows"][0]]
    lines = ["| trained with | schedule | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    for stage, label in NAMES.items():
        for row in found[stage]["rows"]:
            lines.append(f"| {label} | {row['schedule']} | " + " | ".join(cell(row.get(name)) for name in names) + " |")
    lines += ["", "| trained with | raster | k=2 | k=1 |", "|---|---|---|---|"]
    for stage in ROWS:
        values = found[stage]["nats"]
        lines.append(f"| {NAMES[stage]} | " + " | ".join(f"{values[spec]:.3f}" for spec in (RASTER, K2, K1)) + " |")
    lines += ["", "| LPIPS | minus | difference |", "|---|---|---|"]
    values = {(s, row["schedule"]): row.get("lpips_of_clips") for s in ROWS for row in found[s]["rows"]}
    for one, two in DIFFERENCES:
        if values.get(one) and values.get(two):
            paired = np.asarray(values[one]) - np.asarray(values[two])
            lines.append(f"| {one[0]}, {one[1]} | {two[0]}, {two[1]} | {bootstrap(paired[:, None])} |")
    return "\n".join(lines)


def cell(value: Any) -> str:
    """A number, or a mean with its interval."""
    if isinstance(value, dict):
        return f"{value['mean']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"
    return "" if value is None or value == 0 else f"{value:.1f}" if isinstance(value, float) else f"{value:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="folder of the training run")
    parser.add_argument("--recipe", default="doom")
    parser.add_argument("--lpips", type=Path, help="LPIPS (alex) weights")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stages", nargs="+", default=[*NAMES, LONG], choices=[*NAMES, LONG])
    parser.add_argument("--tables", action="store_true", help="only print the tables of --out")
    for name, default in asdict(Sizes()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=default)
    given = parser.parse_args()
    if not given.tables:
        if given.run is None:
            parser.error("RUN is missing")
        measure(given, Sizes(**{name: vars(given)[name] for name in asdict(Sizes())}))
    if all((given.out / f"{name}.json").is_file() for name in NAMES):
        sys.stdout.write(tables(given.out) + "\n")


def measure(given: argparse.Namespace, sizes: Sizes) -> None:
    recipe = find(given.recipe)
    part = data.frames(given.run / "data" / "held-out", stages.frame_size(recipe), given.device)
    perceptual = lpips.load(given.lpips, given.device) if given.lpips else None
    judges = Judges(load_judge(given.run / "judge", given.device), perceptual)
    bench = Bench(recipe, given.run, given.device, given.out, sizes, part, judges)
    bench.out.mkdir(parents=True, exist_ok=True)
    for stage in given.stages:
        if stage == "references":
            measure_references(bench)
        elif stage == LONG:
            measure_long(bench)
        else:
            measure_stage(bench, stage)


if __name__ == "__main__":
    main()
